"""Which solver of a linear recurrence is the fastest, and does "auto" take it?

y_l = A_l y_{l-1} + b_l for l = 1..L, with random blocks A_l of w rows and norm about 1/2. The
sequential programs are `jax.lax.scan` with unroll 1, 4 and 16, a Python loop for short chains, and
"sequential" (`deeppcr.Recurrence`). The parallel ones are all solvers of deeppcr and
`jax.lax.associative_scan`.
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

import depth
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
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.command import positive
from experiments.bench.engine import Case, bench
from experiments.bench.programs import Scan, baselines
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.recurrence.figure import pictures

KINDS = ("dense", "pairs", "neighbours", "diagonal", "scalar")
SEQUENTIAL = "sequential"
ASSOCIATIVE = "associative_scan"
PARALLEL = tuple(name for name in SOLVERS if name not in ("auto", SEQUENTIAL))
TAKES = "3 min"
SOLVER_COLUMNS = {
    **LABELS,
    "sequential": "fastest sequential program",
    "sequential ms": "its time, in milliseconds",
    "parallel": "fastest parallel solver of deeppcr",
    "parallel ms": "its time, in milliseconds",
    "associative ms": "time of jax.lax.associative_scan, in milliseconds",
    "scan/best parallel": "time of jax.lax.associative_scan / time of the fastest parallel solver",
    "auto": 'the solver that solver="auto" takes here',
    "auto/best": "its time / time of the fastest of all programs",
}
LENGTHS = (4096, 1024, 8192, 2048)
WIDTHS = (4, 8, 16, 32, 64)
LONG = 65_536  # on accelerators, too
LOOPS = 64  # the longest Python loop among the baselines
MOST_ENTRIES = 7e7  # of the blocks of a case: 280 MB
INPUTS = 3  # tuples of arguments that calls cycle through, so that caches hold none of them


@dataclass(frozen=True)
class Size:
    """Blocks of one kind: L of them for each element of the batch, with w rows."""

    kind: str
    length: int
    width: int
    batch: int = 1


def associative_scan(blocks: Blocks, b: Array) -> Array:
    """The parallel solver that a user of jax would write."""

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
    """The sequential solver that a user of jax would write, by ``scan``."""

    def solve(blocks: Blocks, b: Array) -> Array:
        def step(y: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, b_l = inputs
            y = block.apply_step(y) + b_l
            return y, y

        y: Array = scan(step, jnp.zeros_like(b[0]), (blocks, b))[1]
        return y

    return solve


def backwards(scan: Scan) -> Callable[[Blocks, Array], Array]:
    """The transposed recurrence, lam_l = g_l + A_{l+1}^T lam_{l+1}, by a reversed ``scan``."""

    def solve(blocks: Blocks, g: Array) -> Array:
        def step(mu: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, g_l = inputs
            lam = g_l + mu
            return block.transpose().apply_step(lam), lam

        lam: Array = scan(step, jnp.zeros_like(g[0]), (blocks, g), reverse=True)[1]
        return lam

    return solve


def problem(size: Size, seed: int) -> tuple[Blocks, Array]:
    """Blocks of norm about 1/2; a batch of 1 has no batch axis."""
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
    """The sequential programs of a size, and the parallel solvers ``names``."""
    if transposed:
        loops: dict[str, Any] = baselines(backwards, size.length, longest=0)  # it has no reverse
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
    """The fastest programs of a case, of those that are right, beside what "auto" takes."""
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
    """The sizes that are asked for, the most important first."""
    on_cpu = jax.default_backend() == "cpu"
    usual = [1024] if options.quick else [*LENGTHS] if on_cpu else [*LENGTHS, LONG]
    widths = options.widths or ([4, 16] if options.quick else [*WIDTHS])
    chosen = product(options.kinds, options.lengths or usual, widths, options.batches)
    found = [Size(*one) for one in chosen]
    if options.lengths and options.widths:
        return found
    return [one for one in found if one.length * one.width**2 * one.batch <= MOST_ENTRIES]


def main(argv: list[str]) -> None:
    """Time the solvers."""
    arguments = command.parser("recurrence", __doc__)
    add = arguments.add_argument
    add("--kinds", nargs="+", choices=KINDS, default=["dense"], help="kinds of blocks (dense)")
    add("--lengths", nargs="+", type=positive, metavar="L", help="numbers of steps")
    add("--widths", nargs="+", type=positive, metavar="W", help="numbers of rows of a block")
    add("--batches", nargs="+", type=positive, metavar="B", default=[1], help="batch sizes (1)")
    add(
        "--solvers",
        nargs="+",
        choices=PARALLEL,
        default=PARALLEL,
        help="which parallel solvers (all)",
    )
    add(
        "--transposed",
        action="store_true",
        help="solve the transposed recurrence, as the adjoint does",
    )
    options = arguments.parse_args(argv)
    if {"pairs", "neighbours"} & {*options.kinds} and any(w % 2 for w in options.widths or ()):
        given = " ".join(map(str, options.widths))
        arguments.error(f"--widths {given}: pairs and neighbours need even ones")
    device, effort = depth.at_hand(), Effort(options.repeats)

    def measured(size: Size) -> Iterator[Row]:
        one = case(size, options.transposed, options.solvers)
        rows = list(bench(one, device, effort))
        yield from rows
        yield compared(rows, name_of(choose_solver(one.arguments[0][0], jax.default_backend())))

    command.run(
        options,
        [partial(measured, size) for size in sizes(options)],
        {"": BENCH, "solvers": SOLVER_COLUMNS},
        pictures=pictures,
        together=["solvers"],
    )
