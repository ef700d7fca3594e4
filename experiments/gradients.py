"""The gradient of a GRU by every adjoint, side by side, and its forward pass.

h_t = GRU(h_{t-1}, x_t) for t = 1..T with n units and random weights, alone or eight sequences at once. "gradient" is that of the
mean square of all states with respect to weights, first state and inputs; "forward" is the states. What the network makes of its
inputs alone is made for all steps at once in all programs. The programs of the gradient, all but "auto" after a forward pass by
`jax.lax.scan`:

    auto                 method and adjoint as `deeppcr.plan` chooses them
    adjoint, sequential  one step after another, backwards, and all gradients of the weights at once
    adjoint, recurrence  the Jacobians of all steps at once; their linear recurrence one step after another
    adjoint, pcr         the same, the recurrence by parallel cyclic reduction

and of the forward pass "auto", and Newton's method with a sequential recurrence: all steps evaluated at once, nothing more.
"""

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax

from deeppcr import Newton, Recurrence
from experiments.common.baselines import SCAN, baselines
from experiments.common.options import conclude, in_time, model, parser, positive, record
from experiments.common.plots import figure
from experiments.common.progress import progress
from experiments.common.summary import best, cases
from experiments.common.table import table
from experiments.common.versus import Case, Program, race, shown
from experiments.rnn_parts.recurrent import Network, Way

Row = dict[str, Any]

BATCHES = (1, 8)
WAYS: Mapping[str, Mapping[str, Way]] = {
    "forward": {
        "auto": Way(),
        "newton, recurrence": Way(Newton(linearize="dense", linear=Recurrence())),
    },
    "gradient": {
        "auto": Way(),
        "adjoint, sequential": Way("sequential", "sequential"),
        "adjoint, recurrence": Way("sequential", Recurrence()),
        "adjoint, pcr": Way("sequential", "pcr"),
    },
}
DIRECTIONS = ("gradient", "forward")
INPUTS = 2  # tuples of arguments


@dataclass(frozen=True)
class Size:
    """A network, and what it reads."""

    length: int
    width: int
    batch: int


SIZES = [
    Size(length, n, batch)
    for length, n in ((10_000, 4), (10_000, 2), (10_000, 8), (2_000, 16))
    for batch in BATCHES
]
QUICK = [Size(2_000, 4, batch) for batch in BATCHES]


def case(size: Size, direction: str) -> Case:
    """One size, one direction: the programs that are to be compared."""
    network = Network("gru", size.width)
    make = network.states if direction == "forward" else network.gradient
    programs = {
        name: Program(
            make(way.scan), solve=None if way.method == "sequential" else network.solve(way.method)
        )
        for name, way in WAYS[direction].items()
    }
    return Case(
        labels={
            "kind": "gru",
            "L": size.length,
            "w": size.width,
            "batch": size.batch,
            "direction": direction,
        },
        arguments=[network.arguments(size.length, size.batch, seed) for seed in range(INPUTS)],
        baselines=baselines(make, size.length),
        programs=programs,
    )


def sizes(options: argparse.Namespace) -> list[Size]:
    """What is asked for, or else what is measured if nobody says what."""
    chosen = QUICK if options.quick else SIZES
    if not (options.lengths or options.widths or options.batches):
        return chosen
    lengths = options.lengths or sorted({size.length for size in chosen})
    widths = options.widths or sorted({size.width for size in chosen})
    return [Size(*size) for size in product(lengths, widths, options.batches or BATCHES)]


def summary(rows: Sequence[Row]) -> list[str]:
    """What "auto" comes to, in the geometric mean over all cases of a direction, and where it does least."""
    lines = []
    for direction in DIRECTIONS:
        found = [
            row
            for row in rows
            if (row["direction"], row["program"]) == (direction, "auto") and "speedup" in row
        ]
        if found:
            plain, strong = (
                [float(row[key]) for row in found] for key in (f"over {SCAN}", "speedup")
            )
            lines.append(
                f"{direction}, auto: {statistics.geometric_mean(plain):.2f}x {SCAN} (geometric mean), least {min(plain):.2f}x; "
                f"{statistics.geometric_mean(strong):.2f}x the fastest loop, least {min(strong):.2f}x"
            )
    return lines


def draw(rows: Sequence[Row], path: Path) -> None:
    """Speedups over the fastest loop by case, gradients beside forward passes: filled as measured, hollow as predicted."""
    with figure(path, columns=len(DIRECTIONS), height=5) as columns:
        for direction, axes in zip(DIRECTIONS, columns, strict=True):
            found = [
                (labels, group) for labels, group in cases(rows) if labels["direction"] == direction
            ]
            for number, name in enumerate(WAYS[direction]):
                of_it = [
                    next((row for row in group if row["program"] == name), {}) for _, group in found
                ]
                places = [place + 0.15 * number for place in range(len(found))]
                for key, face in (("predicted speedup", "none"), ("speedup", f"C{number}")):
                    line = [row.get(key, math.nan) for row in of_it]
                    axes.plot(line, places, "o", ms=5, color=f"C{number}", markerfacecolor=face)
                axes.plot([], [], "o", ms=5, color=f"C{number}", label=name)
            axes.axvline(1, color="black", linewidth=1)
            names = [f"T = {of['L']}, n = {of['w']}, batch {of['batch']}" for of, _ in found]
            axes.set_yticks(range(len(found)), names, fontsize=7)
            axes.set_ylim(max(len(found), 1) - 0.3, -0.3)
            axes.set(title=f"{direction}: speedup over the fastest loop\n\n", xscale="log")
            low, high = axes.get_xlim()
            axes.set_xlim(
                10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            )  # else no power of ten may be seen
            axes.xaxis.set_major_formatter("{x:g}")
            axes.legend(fontsize=7, ncols=2, loc="lower left", bbox_to_anchor=(-0.03, 1))


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    command = parser("gradients", __doc__)
    command.add_argument("--lengths", nargs="+", type=positive, metavar="T", help="steps")
    command.add_argument("--widths", nargs="+", type=positive, metavar="N", help="units")
    command.add_argument(
        "--batches", nargs="+", type=positive, metavar="B", help="sequences at once"
    )
    command.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=DIRECTIONS)
    options = command.parse_args(argv)
    device, kept = model(options), record(options)
    todo = list(product(sizes(options), options.directions))
    for size, direction in progress(in_time(todo, options.seconds), "gradients", len(todo)):
        rows = list(race(case(size, direction), device, options.repeats))
        kept.add(*rows)
        print(table([shown(row) for row in rows]) + "\n", flush=True)
        jax.clear_caches()  # compiled programs of cases that are done would fill the memory
    kept.finish()
    print(table(list(best(kept.rows))))
    print("\n".join(summary(kept.rows)))
    conclude(options, kept, partial(draw, kept.rows))
