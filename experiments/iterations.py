"""Newton's iterations: how many every form of the method takes, what a few of them give, and what the block width costs.

forms       every form on every chain: iterations, error, memory, and time beside the sequential program's
accuracy    the error after k iterations, and how many digits a classifier gets right with them
width       time and memory of a GRU against its width, at one length
damping     Newton's method plain and damped, on a trained GRU that samples waves from its own output, and chaos; growth rates

An error is the largest difference from the sequential program's states, relative to the largest of these. Speedups are over the
fastest of jax.lax.scan with unroll 1, 4 and 16 and, up to 128 steps, a Python loop; and over the plain one.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain as join
from itertools import zip_longest
from typing import Any

from experiments.common import models
from experiments.common.forms import problem
from experiments.common.iterations_figure import draw
from experiments.common.options import conclude, in_time, model, parser, record
from experiments.common.progress import progress
from experiments.common.summary import best
from experiments.common.table import table
from experiments.iterations_parts import races
from experiments.iterations_parts.accuracy import Counts, by_count
from experiments.iterations_parts.races import Track

Row = dict[str, Any]
Chain = tuple[str, int, int]  # kind, size, length
Job = Callable[[], Iterator[Row]]

PARTS = ("forms", "accuracy", "width", "damping")
RANDOM = ("tanh", "relu", "gru", "lstm")
TRAINED: list[Chain] = [("residual", 32, 100), ("diffusion", 64, 200), ("diffusion", 64, 1000)]
CHAOTIC: Chain = ("chaotic", 1, 1000)
SHORT: list[Chain] = [(kind, 16, 1000) for kind in RANDOM]
CHAINS = [*SHORT, ("gru", 4, 10_000), ("lstm", 4, 10_000), *TRAINED, CHAOTIC]
ALL = [
    *((kind, n, length) for length in (1000, 10_000) for n in (4, 16, 64) for kind in RANDOM),
    *TRAINED,
    CHAOTIC,
]
CURVES: list[Chain] = [*SHORT[:3], *TRAINED[:2], ("chaotic", 1, 256)]
COUNTS: Counts = {
    "dense": (1, 2, 3, 4, 5, 6, 8, 16, 64),
    "diagonal": (1, 2, 4, 8, 16, 64),
    "scalar": (1, 2, 4, 8, 16, 64),
}
WIDTHS = [2, 4, 8, 16, 32, 64, 128]
WIDE_LENGTH = 1024
SEEDS, SAMPLED = 6, 1000
LOGISTIC = (3.2, 3.6, 3.9)
LOGISTIC_LENGTH = 256
LABELS = (
    "part",
    "chain",
    "w",
    "L",
    "growth rate",
    "forecast",
)  # of rows, which are printed above a table of them
HIDDEN = ("baseline", "min ms", "max ms", "repeats", "trace s", "work")  # of a printed row

QUICK_CHAINS: list[Chain] = [("gru", 4, 256), ("residual", 32, 100)]
QUICK_CURVES: list[Chain] = [("residual", 32, 100)]
QUICK_COUNTS: Counts = {"dense": (1, 3), "diagonal": (4,), "scalar": (4,)}
QUICK_WIDTHS = [2, 8]
QUICK_FORMS = ("dense", "scalar", "plain", "trust region")


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """All that is asked for, each a function that makes its rows: of every part in turn, the most important ones first."""
    track = Track(model(options), options.repeats, QUICK_FORMS if options.quick else None)
    makers = {"forms": forms, "accuracy": accuracy, "width": widths, "damping": damping}
    parts = [makers[part](options, track) for part in options.parts]
    yield from filter(None, join.from_iterable(zip_longest(*parts)))


def forms(options: argparse.Namespace, track: Track) -> list[Job]:
    """A job for every chain."""
    chains = QUICK_CHAINS if options.quick else ALL if options.all else CHAINS
    return [partial(_one, races.by_form, chain, track) for chain in chains]


def accuracy(options: argparse.Namespace, track: Track) -> list[Job]:
    """A job for every chain."""
    chains, counts = (QUICK_CURVES, QUICK_COUNTS) if options.quick else (CURVES, COUNTS)
    return [partial(_one, by_count, chain, counts) for chain in chains]


def widths(options: argparse.Namespace, track: Track) -> list[Job]:
    """A job for every width."""
    chains = [("gru", width, WIDE_LENGTH) for width in (QUICK_WIDTHS if options.quick else WIDTHS)]
    return [partial(_one, races.by_width, chain, track) for chain in chains]


def damping(options: argparse.Namespace, track: Track) -> list[Job]:
    """A job for every seed of the trained GRU, and every growth rate of the logistic map."""
    seeds, length = (1, 256) if options.quick else (SEEDS, SAMPLED)
    chains: dict[str, Callable[[], models.Model]]
    chains = {
        f"sampling gru, seed {seed}": partial(races.sampling, seed, length) for seed in range(seeds)
    }
    chains |= {
        f"logistic {rate}": partial(models.logistic_chain, LOGISTIC_LENGTH, rate)
        for rate in LOGISTIC[:seeds]
    }
    return [partial(_damped, name, make, track) for name, make in chains.items()]


def _one(rows: Callable[..., Iterator[Row]], chain: Chain, more: Any) -> Iterator[Row]:
    return rows(problem(*chain), more)


def _damped(name: str, make: Callable[[], models.Model], track: Track) -> Iterator[Row]:
    return races.by_damping(name, make(), track)


def printed(rows: Sequence[Row]) -> str:
    """The table of a job, under what is common to its rows."""
    labels = {key: rows[0][key] for key in LABELS if rows and key in rows[0]}
    cells = [
        {key: value for key, value in row.items() if key not in (*LABELS, *HIDDEN)} for row in rows
    ]
    title = ", ".join(
        f"{key} = {value:.3g}" if isinstance(value, float) else f"{key} = {value}"
        for key, value in labels.items()
    )
    return f"{title}\n{table(cells)}\n"


def main(argv: list[str]) -> None:
    """Measure, print a table for each chain, keep and draw them."""
    command = parser("iterations", __doc__)
    command.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (all)"
    )
    command.add_argument(
        "--all",
        action="store_true",
        help="every random chain at n = 4, 16, 64 and L = 1000, 10000: an hour on two cores",
    )
    options = command.parse_args(argv)
    kept = record(options)
    todo = list(jobs(options))
    for job in progress(in_time(todo, options.seconds), "iterations", len(todo)):
        rows = list(job())
        kept.add(*rows)
        print(printed(rows), flush=True)
    kept.finish()
    print(table(list(best(kept.rows))))
    conclude(options, kept, partial(draw, kept.rows))
