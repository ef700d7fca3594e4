"""The linear recurrence: every solver beside `jax.lax.associative_scan`, and how well "auto" chooses."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.linear import (
    BlockDiagonals,
    Blocks,
    Diagonals,
    Matrices,
    Scalars,
    Zeros,
    choose_solver,
    find_solver,
    solve_recurrence,
)
from deeppcr.linear.choose import SOLVERS
from experiments.common.results import write
from experiments.common.table import table
from experiments.common.timing import Timing, interleave

KINDS = ["dense", "pairs", "neighbours", "diagonal", "scalar", "zero"]
NAMES = [name for name in SOLVERS if name != "auto"]
COPIES = 3  # inputs in turn, so that none is still in a cache only because it was used last


def associative_scan(blocks: Blocks, b: Array) -> Array:
    """The parallel solution that a user of JAX would write."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (A, a), (B, b) = earlier, later
        if A.ndim == a.ndim:
            return B * A, B * a + b
        return B @ A, jnp.einsum("...ij,...j->...i", B, a) + b

    def scan(A: Array, b: Array) -> Array:
        y: Array = lax.associative_scan(combine, (A, b))[1]
        return y

    match blocks:
        case Zeros():
            return b
        case Scalars(scalar):
            return scan(scalar.reshape(-1, *(1,) * (b.ndim - 1)), b)
        case BlockDiagonals(matrix, groups):
            return groups.merge(scan(matrix, groups.split(b)))
        case _:
            return scan(jax.tree.leaves(blocks)[0], b)


def programs(transposed: bool, names: list[str]) -> dict[str, Callable[..., Array]]:
    """What to time, by name."""
    solvers = {name: find_solver(name) for name in names}
    if transposed:
        return {name: jax.jit(solver.solve_transposed) for name, solver in solvers.items()}
    ours = {name: jax.jit(partial(solve_recurrence, solver=solver)) for name, solver in solvers.items()}
    return {**ours, "associative_scan": jax.jit(associative_scan)}


def problem(kind: str, width: int, length: int, batch: int, seed: int) -> tuple[Blocks, Array]:
    """Blocks of norm about 1/2; no batch axis for a batch of 1. Pairs are of entries of the two halves of the state."""
    keys = jax.random.split(jax.random.key(seed))
    batch_shape = (batch,) if batch > 1 else ()
    b = jax.random.normal(keys[1], (length, *batch_shape, width))

    def blocks(*shape: int) -> Array:
        return jax.random.normal(keys[0], (length, *shape)) / 2

    match kind:
        case "diagonal":
            return Diagonals(blocks(*batch_shape, width)), b
        case "scalar":
            return Scalars(blocks(), batch_shape, width), b
        case "zero":
            return Zeros.like(b), b
        case "pairs" | "neighbours":
            if width % 2:
                raise ValueError(f"width is {width}, expected an even number for {kind}.")
            entries = np.arange(width)
            groups = entries.reshape(2, -1).T if kind == "pairs" else entries.reshape(-1, 2)
            return BlockDiagonals(blocks(*batch_shape, width // 2, 2, 2) / 2**0.5, groups), b
        case _:
            return Matrices(blocks(*batch_shape, width, width) / width**0.5), b


def measure(functions: dict[str, Callable[..., Array]], inputs: list[Any], repeats: int) -> dict[str, Timing]:
    """Interleaved times of jitted functions on inputs that take turns."""

    def call(function: Callable[..., Array]) -> Callable[[], Array]:
        turns = iter(range(10**9))
        return lambda: function(*inputs[next(turns) % len(inputs)])

    return interleave({name: call(function) for name, function in functions.items()}, repeats=repeats)


def row(kind: str, width: int, length: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    inputs = [problem(kind, width, length, batch, seed) for seed in range(COPIES)]
    times = measure(programs(options.transposed, options.solvers), inputs, options.repeats)
    ms = {name: 1e3 * timing.median for name, timing in times.items()}
    parallel = [ms[name] for name in options.solvers if name != "sequential"]
    line: dict[str, Any] = {"kind": kind, "w": width, "L": length, "batch": batch, **ms}
    if "associative_scan" in ms and parallel:
        line["scan/best parallel"] = ms["associative_scan"] / min(parallel)
    chosen = choose_solver(inputs[0][0], jax.default_backend())
    line["auto"] = next((name for name in options.solvers if find_solver(name) == chosen), type(chosen).__name__)
    if line["auto"] in ms:
        line["auto/best"] = ms[line["auto"]] / min(ms.values())
    return line


def main(argv: list[str]) -> None:
    """Time the solvers and print a table, milliseconds a solution."""
    parser = argparse.ArgumentParser(prog="python -m experiments recurrence", description=__doc__)
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=["dense"])
    parser.add_argument("--widths", nargs="+", type=int, default=[4, 8, 16, 32, 64])
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--solvers", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--transposed", action="store_true", help="as the adjoint uses it")
    parser.add_argument("--keep", metavar="NAME", help="write the rows to results/<device>/NAME.jsonl, too")
    options = parser.parse_args(argv)
    rows = [
        row(kind, width, length, batch, options)
        for kind in options.kind
        for width in options.widths
        for length in options.lengths
        for batch in options.batches
    ]
    print(table(rows))
    if options.keep:
        print("kept in", write(options.keep, rows))
