"""Newton's iterations: how many every form of the method takes, what a few of them give, and what the block width costs.

forms       every form on every chain: iterations, error, time beside `jax.lax.scan`, memory
accuracy    the error after k iterations, and how many digits a classifier gets right with them
width       time and memory of a GRU against its width, at one length
damping     Newton's method plain and damped, on a trained GRU that samples waves from its own output, and chaos; growth rates

An error is the largest difference from the sequential program's states, relative to the largest of these.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import deeppcr
from deeppcr import BlockDiagonal, Diagonal, Newton, Result, Scalar, TrustRegion
from deeppcr.lyapunov import forecast_iterations
from experiments.common import autoregressive, data, models
from experiments.common.forms import Case, case, forms
from experiments.common.iterations_figure import draw
from experiments.common.progress import progress
from experiments.common.results import FOLDER, device, write
from experiments.common.table import table
from experiments.common.timing import Timing, build, interleave

Row = dict[str, Any]
Chain = tuple[str, int, int]  # kind, size, length
Counts = dict[str, tuple[int, ...]]  # by form

RANDOM = ("tanh", "relu", "gru", "lstm")
TRAINED: list[Chain] = [("residual", 32, 100), ("diffusion", 64, 200), ("diffusion", 64, 1000)]
CHAOTIC: Chain = ("chaotic", 1, 1000)
SHORT: list[Chain] = [(kind, 16, 1000) for kind in RANDOM]
CHAINS = [*SHORT, ("gru", 4, 10_000), ("lstm", 4, 10_000), *TRAINED, CHAOTIC]
ALL = [*((kind, n, length) for length in (1000, 10_000) for n in (4, 16, 64) for kind in RANDOM), *TRAINED, CHAOTIC]
CURVES: list[Chain] = [*SHORT[:3], *TRAINED[:2], ("chaotic", 1, 256)]
COUNTS = {"dense": (1, 2, 3, 4, 5, 6, 8, 16, 64), "diagonal": (1, 2, 4, 8, 16, 64), "scalar": (1, 2, 4, 8, 16, 64)}
WIDTHS = [2, 4, 8, 16, 32, 64, 128]

QUICK_CHAINS: list[Chain] = [("gru", 4, 256), ("residual", 32, 100)]
QUICK_CURVES: list[Chain] = [("residual", 32, 100)]
QUICK_COUNTS = {"dense": (1, 2, 3), "diagonal": (1, 4), "scalar": (1, 4)}
QUICK_WIDTHS = [2, 8]

WIDE_LENGTH = 1024
PARTS = ["forms", "accuracy", "width", "damping"]
DAMPED = 300  # iterations, most
LOGISTIC = (3.2, 3.6, 3.9)
IMAGES = 128
SECONDS = 1.0  # a call that takes longer is timed once
REPEATS = 7
ENDS = {Result.CONVERGED: "converged", Result.FINISHED_SEQUENTIALLY: "sequential", Result.NOT_CONVERGED: "not yet"}


def sequential(model: models.Model) -> Callable[[Any, Any], Any]:
    """All states, by `jax.lax.scan`; a program of the initial state and the inputs."""

    def run(z0: Any, inputs: Any) -> Any:
        def body(z: Any, x: Any) -> tuple[Any, Any]:
            z = model.step(z, x)
            return z, z

        return lax.scan(body, z0, inputs)[1]

    return run


def solved(model: models.Model, method: Newton, batch_ndim: int = 0) -> Callable[[Any, Any], Any]:
    """All states, iterations, and how it ended."""

    def run(z0: Any, inputs: Any) -> tuple[Any, Array, Array]:
        chain = deeppcr.Chain(model.step, inputs)
        solution = deeppcr.solve(chain, z0, method=method, batch_ndim=batch_ndim)
        return solution.trajectory, solution.stats.iterations, solution.result

    return run


def guessed(model: models.Model) -> Any:
    """What is returned after no iteration: the steps applied to the guess, which is the steps applied to the initial state."""
    apply = jax.vmap(model.step)
    constant = jax.tree.map(
        lambda z, x: jnp.broadcast_to(z, x.shape), model.z0, jax.eval_shape(sequential(model), *arguments(model))
    )
    guess = apply(constant, model.inputs)
    moved = jax.tree.map(lambda z, after: jnp.concatenate([z[None], after[:-1]]), model.z0, guess)
    return apply(moved, model.inputs)


def arguments(model: models.Model) -> tuple[Any, Any]:
    """What the programs take."""
    return model.z0, model.inputs


def error(states: Any, expected: Any) -> float:
    """The largest difference, relative to the largest state; infinite or NaN after an overflow."""
    pairs = list(zip(map(np.asarray, jax.tree.leaves(states)), map(np.asarray, jax.tree.leaves(expected)), strict=True))
    largest = max(float(np.abs(b).max()) for _, b in pairs)
    with np.errstate(all="ignore"):
        return max(float(np.abs(a - b).max()) for a, b in pairs) / largest


def compare(model: models.Model, methods: dict[str, Newton], repeats: int) -> Iterator[Row]:
    """Every method on one chain, in turn with the sequential program."""
    programs = {"scan": sequential(model), **{name: solved(model, method) for name, method in methods.items()}}
    builds, results, first = {}, {}, {}
    for name, program in programs.items():
        builds[name] = build(program, *arguments(model))
        start = time.perf_counter()
        results[name] = jax.block_until_ready(builds[name].call(*arguments(model)))
        first[name] = time.perf_counter() - start
    calls = {name: partial(builds[name].call, *arguments(model)) for name in programs if first[name] < SECONDS}
    times = {name: Timing((seconds,)) for name, seconds in first.items()} | interleave(calls, repeats)
    for name in methods:
        states, iterations, result = results[name]
        yield {
            "form": name,
            "iterations": int(iterations),
            "ended": ENDS[Result(int(result))],
            "error": error(states, results["scan"]),
            "ms": 1e3 * times[name].median,
            "scan ms": 1e3 * times["scan"].median,
            "scan/form": times["scan"].median / times[name].median,
            "temp MB": (builds[name].temporary_bytes or 0) / 1e6,
            "calls": times[name].count,
        }


def by_form(chains: list[Chain], repeats: int) -> Iterator[Row]:
    """Every form on every chain."""
    for chain in progress(chains, "forms"):
        one = case(*chain)
        found = dict(forms(one))
        what = {"part": "forms", "chain": one.kind, "w": one.width, "L": one.length}
        for name, reason in found.items():
            if isinstance(reason, str):
                yield {**what, "form": name, "ended": reason}
        for row in compare(one.model, {name: form for name, form in found.items() if isinstance(form, Newton)}, repeats):
            yield {**what, **row}


def by_count(chains: list[Chain], counts: Counts) -> Iterator[Row]:
    """The error after k iterations, until it has converged."""
    for chain in progress(chains, "accuracy"):
        one = case(*chain)
        if one.kind == "residual":
            yield from after(one, models.residual_chain(one.length, batch=(IMAGES,)), counts, right(one.length))
        else:
            yield from after(one, one.model, counts, lambda states: {})


def after(one: Case, model: models.Model, counts: Counts, more: Callable[[Any], Row]) -> Iterator[Row]:
    """The error of a chain after k iterations of three forms; ``more(states)`` says more of them."""
    expected = jax.jit(sequential(model))(*arguments(model))
    scalar = Scalar(of_input=lambda x: x["a"]) if one.kind == "diffusion" else Scalar()
    exact = {"dense": Newton(linearize="dense")}
    others = {"diagonal": Newton(linearize=Diagonal(probes=0)), "scalar": Newton(linearize=scalar)}
    what = {"part": "accuracy", "chain": one.kind, "w": one.width, "L": one.length}
    examples = jax.tree.leaves(model.z0)[0].ndim - 1
    for name, form in {**exact, **(others if one.width > 1 else {"scalar": others["scalar"]})}.items():
        states = guessed(model)
        yield {**what, "form": name, "k": 0, **finite("error", error(states, expected)), "ended": "not yet", **more(states)}
        for count in counts[name]:
            method = dataclasses.replace(form, max_iterations=count, on_failure="return")
            states, iterations, result = jax.jit(solved(model, method, examples))(*arguments(model))
            k, ended = int(iterations), ENDS[Result(int(result))]
            yield {**what, "form": name, "k": k, **finite("error", error(states, expected)), "ended": ended, **more(states)}
            if ended == "converged":
                break


def right(blocks: int) -> Callable[[Any], Row]:
    """How many of the digits the trained residual network tells, from its last state."""
    decode, labels = np.asarray(models.residual_params(blocks)["decode"]), data.digits().test_y[:IMAGES]

    def share(states: Any) -> Row:
        with np.errstate(all="ignore"):
            scores = np.asarray(states)[-1] @ decode
        return {"digits right": float((scores.argmax(axis=-1) == labels).mean())}

    return share


def finite(name: str, value: float) -> Row:
    """The entry of a row; none after an overflow, which JSON has no number for."""
    return {name: value} if np.isfinite(value) else {}


def by_width(widths: list[int], length: int, repeats: int) -> Iterator[Row]:
    """A GRU of several widths, at one length."""
    methods = {
        "dense": Newton(linearize="dense"),
        "diagonal": Newton(linearize=Diagonal(probes=0)),
        "blocks 4": Newton(linearize=BlockDiagonal(4)),
    }
    for width in progress(widths, "width"):
        for row in compare(case("gru", width, length).model, methods, repeats):
            yield {"part": "width", "chain": "gru", "w": width, "L": length, **row}


def by_damping(seeds: int, length: int, repeats: int) -> Iterator[Row]:
    """Plain and damped, on chains on which iterates overflow or wander."""
    methods = {"plain": Newton(max_iterations=DAMPED), "trust region": Newton(max_iterations=DAMPED, damping=TrustRegion())}
    chains = {f"sampling gru, seed {seed}": partial(sampling, seed, length) for seed in range(seeds)}
    chains |= {f"logistic {rate}": partial(models.logistic_chain, 256, rate) for rate in LOGISTIC[:seeds]}
    for name in progress(list(chains), "damping"):
        model = chains[name]()
        chain = deeppcr.Chain(model.step, model.inputs)
        solution = jax.jit(partial(deeppcr.solve, method=Newton(max_iterations=1, record=True)))(chain, model.z0)
        assert solution.stats.growth_rate is not None
        rate, steps = float(solution.stats.growth_rate), len(jax.tree.leaves(model.inputs)[0])
        for row in compare(model, methods, repeats):
            forecast = forecast_iterations(rate, steps)
            yield {"part": "damping", "chain": name, "L": steps, "growth rate": rate, "forecast": forecast, **row}


def sampling(seed: int, length: int) -> models.Model:
    """The chain of `experiments.common.autoregressive`."""
    return models.Model(*autoregressive.sampling_chain(autoregressive.train(seed), length, seed))


def main(argv: list[str]) -> None:
    """Measure, print a table for each part, keep and draw them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments iterations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="small sizes only, less than a minute")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="timed calls of each program")
    parser.add_argument("--keep", metavar="NAME", help="write the rows to results/<device>/NAME.jsonl, and draw NAME.png beside")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there")
    parser.add_argument(
        "--all", action="store_true", help="every random chain at n = 4, 16, 64 and L = 1000, 10000: half an hour"
    )
    options = parser.parse_args(argv)
    quick = options.quick
    parts = {
        "forms": partial(by_form, QUICK_CHAINS if quick else ALL if options.all else CHAINS, options.repeats),
        "accuracy": partial(by_count, QUICK_CURVES if quick else CURVES, QUICK_COUNTS if quick else COUNTS),
        "width": partial(by_width, QUICK_WIDTHS if quick else WIDTHS, WIDE_LENGTH, options.repeats),
    }
    parts["damping"] = partial(by_damping, 1 if quick else 6, 256 if quick else 1000, options.repeats)
    rows: list[Row] = []
    for name in options.parts:
        found = list(parts[name]())
        print(table([{key: value for key, value in row.items() if key != "part"} for row in found]), end="\n\n", flush=True)
        rows += found
    if options.keep:
        print("kept in", write(options.keep, rows))
    path = options.plot or (FOLDER / device() / f"{options.keep}.png" if options.keep else None)
    if path:
        draw(rows, path)
        print("drawn in", path)
