"""The linear recurrence: every parallel solver beside the sequential ones and `jax.lax.associative_scan`, and how "auto" chooses.

y_l = A_l y_{l-1} + b_l for l = 1..L, with blocks A_l of w rows, drawn so that their norm is about 1/2. The baselines are
`jax.lax.scan` with unroll 1, 4 and 16, a Python loop where L allows, and "sequential", which is `deeppcr.Recurrence`. A table at
the end has for every case

    scan/best parallel   the time of `jax.lax.associative_scan`, in that of the fastest parallel solver
    auto, auto/best      what ``solver="auto"`` takes here, and its time in that of the fastest of all programs
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.linear import (
    SOLVERS,
    BlockDiagonals,
    Blocks,
    Diagonals,
    Matrices,
    Scalars,
    choose_solver,
    find_solver,
    name_of,
    solve_recurrence,
)
from experiments.common.baselines import Scan, baselines
from experiments.common.options import conclude, in_time, model, parser, positive, record
from experiments.common.progress import progress
from experiments.common.recurrence_figure import draw
from experiments.common.table import table
from experiments.common.versus import Case, race, shown

Row = dict[str, Any]

KINDS = ("dense", "pairs", "neighbours", "diagonal", "scalar")
SEQUENTIAL = "sequential"
ASSOCIATIVE = "associative_scan"
PARALLEL = tuple(name for name in SOLVERS if name not in ("auto", SEQUENTIAL))
LENGTHS = (4096, 1024, 8192, 2048)  # the most important first
WIDTHS = (4, 8, 16, 32, 64)
LONG = 65_536  # on accelerators, too
LOOPS = 64  # the longest Python loop among the baselines
MOST_ENTRIES = 7e7  # of the blocks of a case: 280 MB
INPUTS = 3  # in turn, so that none is still in a cache only because it was used last


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
    """The transposed recurrence, lam_l = g_l + A_{l+1}^T lam_{l+1}, by ``scan``, from the last step on."""

    def solve(blocks: Blocks, g: Array) -> Array:
        def step(mu: Array, inputs: tuple[Blocks, Array]) -> tuple[Array, Array]:
            block, g_l = inputs
            lam = g_l + mu
            return block.transpose().apply_step(lam), lam

        lam: Array = scan(step, jnp.zeros_like(g[0]), (blocks, g), reverse=True)[1]
        return lam

    return solve


def problem(size: Size, seed: int) -> tuple[Blocks, Array]:
    """Blocks of norm about 1/2; no batch axis for a batch of 1. Pairs are of entries of the two halves of the state."""
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
    sequential: Mapping[str, Any]
    programs: dict[str, Any]
    if transposed:
        sequential = baselines(
            backwards, size.length, longest=0
        )  # a Python loop runs forwards only
        sequential |= {SEQUENTIAL: find_solver(SEQUENTIAL).solve_transposed}
        programs = {name: find_solver(name).solve_transposed for name in names}
    else:
        sequential = baselines(by_steps, size.length, LOOPS)
        sequential |= {SEQUENTIAL: partial(solve_recurrence, solver=find_solver(SEQUENTIAL))}
        programs = {name: partial(solve_recurrence, solver=find_solver(name)) for name in names}
        programs[ASSOCIATIVE] = associative_scan
    return Case(
        labels={
            "kind": size.kind,
            "L": size.length,
            "w": size.width,
            "batch": size.batch,
            "direction": "transposed" if transposed else "forward",
        },
        arguments=[problem(size, seed) for seed in range(INPUTS)],
        baselines=sequential,
        programs=programs,
    )


def compared(rows: Sequence[Row], auto: str) -> Row:
    """What the rows of a case come to; only programs that are right are compared.

    Args:
        rows: of one race.
        auto: the name of the solver that "auto" takes.
    """
    ms = {row["program"]: float(row["ms"]) for row in rows if "speedup" in row}
    loops, solvers = (
        {
            row["program"]: ms[row["program"]]
            for row in rows
            if row["program"] in ms and row["baseline"] == baseline
        }
        for baseline in (True, False)
    )
    associative = solvers.pop(ASSOCIATIVE, None)
    found = {key: rows[0][key] for key in ("kind", "L", "w", "batch", "direction")}
    line: Row = {"part": "solvers", **found}
    if loops:
        name = min(loops, key=lambda name: loops[name])
        line |= {"sequential": name, "sequential ms": loops[name]}
    if solvers:
        name = min(solvers, key=lambda name: solvers[name])
        line |= {"parallel": name, "parallel ms": solvers[name]}
        if associative:
            line |= {
                "associative ms": associative,
                "scan/best parallel": associative / solvers[name],
            }
    line["auto"] = auto
    if auto in ms:
        line["auto/best"] = ms[auto] / min(ms.values())
    return line


def sizes(options: argparse.Namespace) -> list[Size]:
    """What is asked for, or else what is measured if nobody says what, the most important first."""
    on_cpu = jax.default_backend() == "cpu"
    lengths = options.lengths or (
        [1024] if options.quick else [*LENGTHS] if on_cpu else [*LENGTHS, LONG]
    )
    widths = options.widths or ([4, 16] if options.quick else [*WIDTHS])
    found = [
        Size(kind, length, width, batch)
        for kind, length, width, batch in product(options.kinds, lengths, widths, options.batches)
    ]
    given = options.lengths and options.widths
    return [
        size for size in found if given or size.length * size.width**2 * size.batch <= MOST_ENTRIES
    ]


def main(argv: list[str]) -> None:
    """Time the solvers, print the tables, and with --keep write the rows and the figure."""
    command = parser("recurrence", __doc__)
    command.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=["dense"], help="of blocks (dense)"
    )
    command.add_argument("--lengths", nargs="+", type=positive, metavar="L", help="steps")
    command.add_argument("--widths", nargs="+", type=positive, metavar="W", help="rows of a block")
    command.add_argument(
        "--batches", nargs="+", type=positive, metavar="B", default=[1], help="examples (1)"
    )
    command.add_argument(
        "--solvers", nargs="+", choices=PARALLEL, default=PARALLEL, help="the parallel ones (all)"
    )
    command.add_argument(
        "--transposed", action="store_true", help="the transposed recurrence, as the adjoint has it"
    )
    options = command.parse_args(argv)
    if {"pairs", "neighbours"} & {*options.kinds} and any(
        width % 2 for width in options.widths or ()
    ):
        command.error(
            f"--widths {' '.join(map(str, options.widths))}: pairs and neighbours need even ones"
        )
    device, kept = model(options), record(options)
    todo = sizes(options)
    for size in progress(in_time(todo, options.seconds), "recurrence", len(todo)):
        one = case(size, options.transposed, options.solvers)
        rows = list(race(one, device, options.repeats))
        chosen = name_of(choose_solver(one.arguments[0][0], jax.default_backend()))
        kept.add(*rows, compared(rows, chosen))
        print(table([shown(row) for row in rows]) + "\n", flush=True)
        jax.clear_caches()  # compiled programs of sizes that are done would fill the memory
    kept.finish()
    print(
        table(
            [
                {key: value for key, value in row.items() if key != "part"}
                for row in kept.rows
                if "part" in row
            ]
        )
    )
    conclude(options, kept, partial(draw, kept.rows))
