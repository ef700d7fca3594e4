"""What giving up costs: chains on which Newton's method takes about as many iterations as there are steps."""

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
from experiments.common.baselines import baselines
from experiments.common.solves import Step, at_once, by_loop
from experiments.common.versus import Case, race

Row = dict[str, Any]

FAR_DEVICE = "H200"
LENGTH = 1024
KEPT = (  # of the rows of a race
    *(
        "ms",
        "min ms",
        "max ms",
        "repeats",
        "trace s",
        "compile s",
        "temp MB",
        "depth",
        "work",
        "predicted ms",
        "log2",
    ),
    *("residual", "over lax.scan", "depth speedup", "predicted speedup", "note"),
)


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


def giving_up(chain: Hard, device: depth.Device, repeats: int) -> Iterator[Row]:
    """Rows of methods: "auto" does not take Newton's here, and one that was planned for a GPU stops at its budget.

    Raises:
        RuntimeError: the plan for the GPU is sequential.
    """
    found = deeppcr.plan(
        deeppcr.Chain(chain.step, chain.inputs), chain.init, device=FAR_DEVICE, batch_ndim=1
    )
    planned = found.method
    if not isinstance(planned, Newton):
        raise RuntimeError(f"{chain.name}: the plan for {FAR_DEVICE} is {planned}")
    methods: dict[str, Any] = {
        "sequential": Sequential(),
        "auto": "auto",
        f"planned for {FAR_DEVICE}": planned,
        "no budget but its own": dataclasses.replace(planned, max_iterations=None),
    }
    case = Case(
        labels={},
        arguments=[(chain.init, chain.inputs)],
        baselines=baselines(partial(by_loop, chain.step), len(chain.inputs), longest=0),
        programs={
            name: at_once(chain.step, method, batch_ndim=1) for name, method in methods.items()
        },
        tolerance=math.inf,  # rounding is amplified, too: two sequential programs end far apart
    )
    rows = {row["program"]: row for row in race(case, device, repeats) if not row["baseline"]}
    newton, sequential = found.main.forward[0], found.main.sequential
    for name, row in rows.items():
        said: Row = {"part": "giving-up", "chain": chain.name, "method": name}
        for key, title in (
            ("iterations", "iterations"),
            ("ended", "ended"),
            ("error", "error, lax.scan"),
        ):
            if key in row:
                said[title] = row[key]
        if "ms" in row and "ms" in rows["sequential"]:
            said["times sequential, here"] = row["ms"] / rows["sequential"]["ms"]
        if "iterations" in row:
            turns = row["iterations"] * newton.iteration_seconds / sequential.seconds
            said[f"predicted for {FAR_DEVICE}"] = 1 + turns
        said |= {key: row[key] for key in KEPT if key in row}
        if "speedup" in row:
            said["over best loop"] = row["speedup"]
        yield said
