"""Which solver of a linear recurrence is the fastest, and does "auto" take it?

y_l = A_l y_{l-1} + b_l for l = 1..L, with random blocks A_l of w rows and norm about 1/2. The
sequential programs are `jax.lax.scan` with unroll 1, 4 and 16, a Python loop for short chains, and
"sequential" (`deeppcr.Recurrence`). The parallel ones are all solvers of deeppcr and
`jax.lax.associative_scan`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from deeppcr.linear import SOLVERS, Matrices, choose_solver, name_of
from experiments.bench import command
from experiments.bench.columns import BENCH, BEST, LABELS
from experiments.bench.engine import Case, bench
from experiments.bench.plots import Figures, loops, speedup_maps, styled
from experiments.bench.programs import Scan, baselines
from experiments.bench.summary import best, is_benchmark
from experiments.bench.table import Row
from experiments.bench.timing import Effort

SEQUENTIAL, ASSOCIATIVE = "sequential", "associative_scan"
PARALLEL = tuple(name for name in SOLVERS if name not in ("auto", SEQUENTIAL))
TAKES = "1 min"
SOLVER_COLUMNS = {
    **LABELS,
    **{key: BEST[key] for key in ("sequential", "sequential ms", "parallel", "parallel ms")},
    "associative ms": "time of jax.lax.associative_scan, in milliseconds",
    "auto": 'the solver that solver="auto" takes here',
    "auto/best": "its time / time of the fastest of all programs",
}
LENGTHS, WIDTHS = (4096, 1024), (4, 16, 64)
QUICK: Sequence[tuple[int, int]] = ((1024, 4), (1024, 16))
LONG = 65_536  # on accelerators, too
LOOPS = 64  # the longest Python loop among the baselines
MOST_ENTRIES = 7e7  # of the blocks of a case: 280 MB
INPUTS = 3  # tuples of arguments that calls cycle through, so that caches hold none of them


def associative_scan(A: Array, b: Array) -> Array:
    """The parallel solver that a user of jax would write."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (A, a), (B, b) = earlier, later
        return B @ A, jnp.einsum("lij,lj->li", B, a) + b

    y: Array = lax.associative_scan(combine, (A, b))[1]
    return y


def by_steps(scan: Scan) -> Callable[[Array, Array], Array]:
    """The sequential solver that a user of jax would write, by ``scan``."""

    def step(y: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        A, b = inputs
        y = A @ y + b
        return y, y

    return lambda A, b: scan(step, jnp.zeros_like(b[0]), (A, b))[1]


def problem(length: int, width: int, seed: int) -> tuple[Array, Array]:
    """Blocks of norm about 1/2, and vectors."""
    of_blocks, of_vectors = jax.random.split(jax.random.key(seed))
    A = jax.random.normal(of_blocks, (length, width, width), jnp.float32)
    return 0.5 * width**-0.5 * A, jax.random.normal(of_vectors, (length, width), jnp.float32)


def case(length: int, width: int, names: Sequence[str]) -> Case:
    """The sequential programs of a size, and the parallel solvers ``names``."""

    def solver(name: str) -> Callable[[Array, Array], Array]:
        return lambda A, b: deeppcr.solve_bidiagonal(A, b, solver=name)

    labels = {"kind": "dense", "L": length, "w": width, "batch": 1, "direction": "forward"}
    sequential: dict[str, Any] = {SEQUENTIAL: solver(SEQUENTIAL)}
    return Case(
        labels,
        arguments=[problem(length, width, seed) for seed in range(INPUTS)],
        baselines=baselines(by_steps, length, LOOPS) | sequential,
        variants={name: solver(name) for name in names} | {ASSOCIATIVE: associative_scan},
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
    line["auto"] = auto
    return line | ({"auto/best": ms[auto] / min(ms.values())} if auto in ms else {})


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Speedups over L and w, of dense blocks."""
    rows = [row for row in rows if is_benchmark(row)]
    if not rows:
        return {}
    what, names = "Linear recurrence, dense blocks", {"L": "steps L", "w": "rows w of a block"}
    found: Figures = {}
    if cells := list(best(rows)):
        found["speedup"] = speedup_maps(
            f"{what}: speedup over the best loop",
            {"measured": (cells, "speedup"), "predicted": (cells, "predicted speedup")},
            ("L", names["L"]),
            ("w", names["w"]),
            f"best parallel solver over the fastest of {loops(rows)}",
        )
    return found


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    return [case(64, 4, PARALLEL), case(64, 4, ("auto",))]


def main(argv: list[str]) -> None:
    """Time the solvers."""
    options = command.parser("recurrence", __doc__).parse_args(argv)
    on_cpu = jax.default_backend() == "cpu"
    usual = product(LENGTHS if on_cpu else (*LENGTHS, LONG), WIDTHS)
    sizes = QUICK if options.quick else [(n, w) for n, w in usual if n * w**2 <= MOST_ENTRIES]
    device, effort = depth.at_hand(), Effort(options.repeats)

    def measured(length: int, width: int) -> Iterator[Row]:
        one = case(length, width, PARALLEL)
        rows = list(bench(one, device, effort))
        yield from rows
        blocks = Matrices(one.arguments[0][0])
        yield compared(rows, name_of(choose_solver(blocks)))

    command.run(
        options,
        [partial(measured, *size) for size in sizes],
        {"": BENCH, "solvers": SOLVER_COLUMNS},
        pictures=pictures,
        together=["solvers"],
    )
