"""The linear recurrence: every solver, sequential and parallel, and how "auto" chooses.

y_l = A_l y_{l-1} + b_l for l = 1..L, with blocks A_l of w rows, drawn so that their norm is about
1/2. The baselines are `jax.lax.scan` with unroll 1, 4 and 16, a Python loop where L allows, and
"sequential", which is `deeppcr.Recurrence`. A table at the end has for every case

    scan/best parallel   the time of `jax.lax.associative_scan`, in that of the fastest parallel
                         solver
    auto, auto/best      what ``solver="auto"`` takes here, and its time in that of the fastest of
                         all programs
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
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
    choose_solver,
    find_solver,
    solve_recurrence,
)
from deeppcr.linear.choose import SOLVERS, name_of
from experiments.bench import command
from experiments.bench.command import positive
from experiments.bench.engine import Case, bench
from experiments.bench.programs import Scan, baselines
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.recurrence.figure import draw

KINDS = ("dense", "pairs", "neighbours", "diagonal", "scalar")
SEQUENTIAL = "sequential"
ASSOCIATIVE = "associative_scan"
PARALLEL = tuple(name for name in SOLVERS if name not in ("auto", SEQUENTIAL))
LENGTHS = (4096, 1024, 8192, 2048)  # the most important first
WIDTHS = (4, 8, 16, 32, 64)
LONG = 65_536  # on accelerators, too
LOOPS = 64  # the longest Python loop among the baselines
MOST_ENTRIES = 7e7  # of the blocks of a case: 280 MB
INPUTS = 3  # cycled through, so that none is still in a cache only because it was used last


@dataclass(frozen=True)
class Size:
    """Blocks of one kind: L of them for each example of a batch, of w rows."""

    kind: str
    length: int
    width: int
    batch: int = 1


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
        case Scalars(scalar):
            return scan(scalar.reshape(-1, *(1,) * (b.ndim - 1)), b)
        case BlockDiagonals(matrix, groups):
            return groups.merge(scan(matrix, groups.split(b)))
        case _:
            return scan(jax.tree.leaves(blocks)[0], b)


def by_steps(scan: Scan) -> Callable[[Blocks, Array], Array]:
    """The solution that a user of JAX would write step by step, by ``scan``."""

    def solve(blocks: Blocks, b: Array) -> Array:
        def step(y: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, b_l = inputs
            y = block.apply_step(y) + b_l
            return y, y

        y: Array = scan(step, jnp.zeros_like(b[0]), (blocks, b))[1]
        return y

    return solve


def backwards(scan: Scan) -> Callable[[Blocks, Array], Array]:
    """The transposed recurrence, lam_l = g_l + A_{l+1}^T lam_{l+1}, by ``scan``, backwards."""

    def solve(blocks: Blocks, g: Array) -> Array:
        def step(mu: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, g_l = inputs
            lam = g_l + mu
            return block.transpose().apply_step(lam), lam

        lam: Array = scan(step, jnp.zeros_like(g[0]), (blocks, g), reverse=True)[1]
        return lam

    return solve


def problem(size: Size, seed: int) -> tuple[Blocks, Array]:
    """Blocks of norm about 1/2.

    No batch axis for a batch of 1. Pairs are of entries of the two halves of the state.
    """
    keys = jax.random.split(jax.random.key(seed))
    length, width = size.length, size.width
    batch_shape = (size.batch,) if size.batch > 1 else ()
    b = jax.random.normal(keys[1], (length, *batch_shape, width), jnp.float32)

    def blocks(*shape: int, scale: float = 1.0) -> Array:
        return jax.random.normal(keys[0], (length, *shape), jnp.float32) * (scale / 2)

    match size.kind:
        case "diagonal":
            return Diagonals(blocks(*batch_shape, width)), b
        case "scalar":
            return Scalars(blocks(), batch_shape, width), b
        case "pairs" | "neighbours":
            entries = np.arange(width)
            groups = entries.reshape(2, -1).T if size.kind == "pairs" else entries.reshape(-1, 2)
            return BlockDiagonals(blocks(*batch_shape, width // 2, 2, 2, scale=2**-0.5), groups), b
        case _:
            return Matrices(blocks(*batch_shape, width, width, scale=width**-0.5)), b


def case(size: Size, transposed: bool = False, names: Sequence[str] = PARALLEL) -> Case:
    """One size: the sequential programs, and the parallel solvers of these names."""
    if transposed:
        loops: dict[str, Any] = baselines(backwards, size.length, longest=0)  # forwards only
        solvers: dict[str, Any] = {
            name: find_solver(name).solve_transposed for name in (SEQUENTIAL, *names)
        }
    else:
        loops = baselines(by_steps, size.length, LOOPS)
        solvers = {
            name: partial(solve_recurrence, solver=find_solver(name))
            for name in (SEQUENTIAL, *names)
        }
        solvers[ASSOCIATIVE] = associative_scan
    labels = {"kind": size.kind, "L": size.length, "w": size.width, "batch": size.batch}
    return Case(
        labels | {"direction": "transposed" if transposed else "forward"},
        arguments=[problem(size, seed) for seed in range(INPUTS)],
        baselines=loops | {SEQUENTIAL: solvers.pop(SEQUENTIAL)},
        variants=solvers,
    )


def compared(rows: Sequence[Row], auto: str) -> Row:
    """What the rows of a case come to; only programs that are right are compared.

    Args:
        rows: of one case.
        auto: the name of the solver that "auto" takes.
    """
    right = [row for row in rows if "speedup" in row]
    ms = {row["program"]: float(row["ms"]) for row in right}
    loops = [row["program"] for row in right if row["baseline"]]
    solvers = [name for name in ms if name not in (*loops, ASSOCIATIVE)]
    line: Row = {"part": "solvers"}
    line |= {key: rows[0][key] for key in ("kind", "L", "w", "batch", "direction")}
    for what, names in (("sequential", loops), ("parallel", solvers)):
        if names:
            fastest = min(names, key=ms.__getitem__)
            line |= {what: fastest, f"{what} ms": ms[fastest]}
    if ASSOCIATIVE in ms and solvers:
        line["associative ms"] = ms[ASSOCIATIVE]
        line["scan/best parallel"] = ms[ASSOCIATIVE] / line["parallel ms"]
    line["auto"] = auto
    return line | ({"auto/best": ms[auto] / min(ms.values())} if auto in ms else {})


def sizes(options: argparse.Namespace) -> list[Size]:
    """What is asked for, or else what is measured if nobody says what, the most important first."""
    on_cpu = jax.default_backend() == "cpu"
    usual = [1024] if options.quick else [*LENGTHS] if on_cpu else [*LENGTHS, LONG]
    widths = options.widths or ([4, 16] if options.quick else [*WIDTHS])
    chosen = product(options.kinds, options.lengths or usual, widths, options.batches)
    found = [Size(*one) for one in chosen]
    if options.lengths and options.widths:
        return found
    return [one for one in found if one.length * one.width**2 * one.batch <= MOST_ENTRIES]


def main(argv: list[str]) -> None:
    """Time the solvers, print the tables, and with --keep write the rows and the figure."""
    arguments = command.parser("recurrence", __doc__)
    add = arguments.add_argument
    add("--kinds", nargs="+", choices=KINDS, default=["dense"], help="of blocks (dense)")
    add("--lengths", nargs="+", type=positive, metavar="L", help="steps")
    add("--widths", nargs="+", type=positive, metavar="W", help="rows of a block")
    add("--batches", nargs="+", type=positive, metavar="B", default=[1], help="batch sizes (1)")
    add("--solvers", nargs="+", choices=PARALLEL, default=PARALLEL, help="the parallel ones (all)")
    add("--transposed", action="store_true", help="the transposed recurrence, that of the adjoint")
    options = arguments.parse_args(argv)
    if {"pairs", "neighbours"} & {*options.kinds} and any(w % 2 for w in options.widths or ()):
        given = " ".join(map(str, options.widths))
        arguments.error(f"--widths {given}: pairs and neighbours need even ones")
    device, effort = command.model(options), Effort(options.repeats)

    def measured(size: Size) -> Iterator[Row]:
        one = case(size, options.transposed, options.solvers)
        rows = list(bench(one, device, effort))
        yield from rows
        yield compared(rows, name_of(choose_solver(one.arguments[0][0], jax.default_backend())))

    def shown(rows: list[Row]) -> str:
        return show([row for row in rows if "part" not in row], command.HIDDEN)

    kept = command.run(
        options, "recurrence", [partial(measured, size) for size in sizes(options)], shown
    )
    print(show([row for row in kept.rows if "part" in row], hidden=["part"]))
    command.conclude(options, kept, partial(draw, kept.rows))
