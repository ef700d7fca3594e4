"""The cost of a failure: chains on which Newton's method takes about one iteration a step."""

import dataclasses
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import deeppcr
import depth
from deeppcr import Newton, Sequential
from experiments.bench.engine import Case, bench
from experiments.bench.programs import Step, baselines, by_loop, by_method
from experiments.bench.table import Row
from experiments.bench.timing import Effort

FAR_DEVICE = "H200"
LENGTH = 1024
RENAMED = {"iterations": "iterations", "ended": "ended", "error": "error, lax.scan"}
DROPPED = ("program", "baseline", "speedup")


@dataclasses.dataclass(frozen=True)
class Hard:
    """A chain that amplifies differences."""

    name: str
    step: Step
    init: Array
    inputs: Array


def logistic(length: int = LENGTH) -> Hard:
    """The logistic map, which is chaotic at r = 3.9."""
    start = jax.random.uniform(jax.random.key(0), (8, 1), minval=0.2, maxval=0.8)
    return Hard(
        "logistic map, r = 3.9",
        lambda z, x: 3.9 * z * (1 - z) + 0 * x[None],
        start,
        jnp.zeros((length, 1)),
    )


def network(length: int = LENGTH) -> Hard:
    """A recurrent network whose weights are too large."""
    key = jax.random.key(0)
    weights = jax.random.normal(key, (16, 16))
    weights = 2 * weights / jnp.abs(jnp.linalg.eigvals(weights)).max()
    inputs = 0.1 * jax.random.normal(key, (length, 16))
    return Hard(
        "tanh RNN, spectral radius 2",
        lambda z, x: jnp.tanh(z @ weights + x[None]),
        jnp.zeros((8, 16)),
        inputs,
    )


CHAINS = (logistic, network)


def giving_up(chain: Hard, device: depth.Device, effort: Effort) -> Iterator[Row]:
    """A row for each method; Newton's as planned for a GPU stops at its budget.

    Raises:
        RuntimeError: the plan for the GPU has no Newton's method.
    """
    # From shapes, as "auto" plans: with arrays the plan would see that the chain is hard.
    init = jax.eval_shape(lambda: chain.init)
    found = deeppcr.plan(
        deeppcr.Chain(chain.step, chain.inputs), init, device=FAR_DEVICE, batch_ndim=1
    )
    newton, sequential = found.main.newton, found.main.sequential
    if newton is None or not isinstance(planned := newton.method, Newton):
        raise RuntimeError(f"{chain.name}: the plan for {FAR_DEVICE} is {found.method}")
    methods: dict[str, Any] = {
        "sequential": Sequential(),
        "auto": "auto",
        f"planned for {FAR_DEVICE}": planned,
        "no budget but its own": dataclasses.replace(planned, max_iterations=None),
    }
    variants = {name: by_method(chain.step, method, 1) for name, method in methods.items()}
    case = Case(
        labels={},
        arguments=[(chain.init, chain.inputs)],
        baselines=baselines(partial(by_loop, chain.step), len(chain.inputs), longest=0),
        variants=variants,
        tolerance=math.inf,  # rounding is amplified, too: two sequential programs differ
    )
    rows = {row["program"]: row for row in bench(case, device, effort) if not row["baseline"]}
    for name, row in rows.items():
        cells: Row = {"part": "giving-up", "chain": chain.name, "method": name}
        cells |= {title: row.pop(key) for key, title in RENAMED.items() if key in row}
        if "ms" in row and "ms" in rows["sequential"]:
            cells["times sequential, here"] = row["ms"] / rows["sequential"]["ms"]
        if "iterations" in cells:
            spent = cells["iterations"] * newton.iteration_seconds / sequential.seconds
            cells[f"predicted for {FAR_DEVICE}"] = 1 + spent
        if "speedup" in row:
            cells["over best loop"] = row["speedup"]
        yield cells | {key: value for key, value in row.items() if key not in DROPPED}
