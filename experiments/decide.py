"""Does "auto" choose what is fastest? Regret on chains of every kind, where parallel pays off, and what giving up costs.

regret     chains of six kinds, their sizes drawn from a wide range, forward and gradient: what "auto" takes, beside the fastest
           of `jax.lax.scan`, an unrolled loop and all that the planner has in the running, and beside `jax.lax.scan` with unroll
           4 and 16; a program that does not compute what `jax.lax.scan` computes does not count, and is named in a note
map        a GRU over units and length: the best parallel candidate beside the sequential program, predicted and realised here,
           and predicted for devices that are not at hand
giving-up  chains that amplify differences, on which Newton's method stops at its budget and goes on step by step

In the first two parts times are the least of all calls, and what is five times as slow as the fastest is called only twice; in
the last one they are medians. "log2" is that of the predicted over the measured time of what was chosen. It runs with jax and
numpy alone.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import jax

import depth
from experiments.common import zoo
from experiments.common.decide_figure import draw
from experiments.common.options import conclude, in_time, model, parser, positive, record
from experiments.common.progress import progress
from experiments.common.table import table
from experiments.decide_parts import breakeven, giving_up
from experiments.decide_parts.measured import Effort
from experiments.decide_parts.programs import Chain
from experiments.decide_parts.regret import regret, report

Row = dict[str, Any]
Job = Callable[[], Iterator[Row]]

PARTS = ("regret", "map", "giving-up")
CHAINS = 60
FIRST = 3 * len(zoo.KINDS)  # chains before the other parts
SHOWN = {  # of a row, in the terminal
    "regret": (
        *(
            "kind",
            "w",
            "L",
            "batch",
            "direction",
            "chosen",
            "fastest",
            "regret %",
            "sequential depth",
        ),
        *(
            "depth",
            "depth speedup",
            "predicted speedup",
            "speedup",
            "over best loop",
            "log2",
            "error",
            "note",
        ),
    ),
    "map": (
        *(
            "w",
            "L",
            "direction",
            "parallel",
            "sequential depth",
            "depth",
            "depth speedup",
            "predicted, here",
            "realised",
        ),
        *("over lax.scan", "over best loop", "log2", "error", "note"),
    ),
    "giving-up": (
        *("chain", "method", "iterations", "ended", "error, lax.scan", "times sequential, here"),
        *(
            f"predicted for {giving_up.FAR_DEVICE}",
            "depth",
            "depth speedup",
            "predicted speedup",
            "over best loop",
        ),
        *("over lax.scan", "log2", "note"),
    ),
}


def jobs(options: argparse.Namespace) -> list[Job]:
    """All that is asked for, each a function that makes its rows: some chains, the other parts, then all other chains."""
    device = model(options)
    effort = Effort(options.repeats, 0.03) if options.quick else Effort(options.repeats)

    def both(
        measure: Callable[[Chain, depth.Device, Effort], Row], specimen: zoo.Specimen
    ) -> Iterator[Row]:
        return (measure(chain, device, effort) for chain in Chain.both(specimen))

    drawn = zoo.small() if options.quick else zoo.specimens(options.chains, options.seed)
    chains: list[Job] = [partial(both, regret, specimen) for specimen in drawn]
    widths, lengths = ((1, 4), (64,)) if options.quick else (breakeven.WIDTHS, breakeven.LENGTHS)
    hard = [partial(giving_up.logistic, 256)] if options.quick else giving_up.CHAINS
    found: list[Job] = chains[:FIRST] if "regret" in options.parts else []
    if "giving-up" in options.parts:
        found += [
            partial(lambda make: giving_up.giving_up(make(), device, options.repeats), make)
            for make in hard
        ]
    if "map" in options.parts:
        found += [
            partial(both, breakeven.cell, breakeven.gru(*size)) for size in product(widths, lengths)
        ]
    return found + (chains[FIRST:] if "regret" in options.parts else [])


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    command = parser("decide", __doc__)
    command.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (%(default)s)"
    )
    command.add_argument(
        "--chains",
        type=positive,
        default=CHAINS,
        help="how many, at least, for the regret (%(default)s)",
    )
    command.add_argument("--seed", type=int, default=0, help="which chains are drawn")
    options = command.parse_args(argv)
    todo, kept = jobs(options), record(options)
    for job in progress(in_time(todo, options.seconds), "decide", len(todo)):
        rows = []
        for row in job():
            rows.append(row)
            kept.add(row)
        print(table([shown(row) for row in rows]) + "\n", flush=True)
        jax.clear_caches()  # compiled programs of chains that are done would fill the memory
    kept.finish()
    parts = {part: [row for row in kept.rows if row["part"] == part] for part in PARTS}
    for text in filter(
        None, [report(parts["regret"]), table([shown(row) for row in parts["map"]])]
    ):
        print(text)
    conclude(options, kept, partial(draw, kept.rows) if parts["regret"] or parts["map"] else None)


def shown(row: Row) -> Row:
    """The cells of a row that fit a terminal."""
    return {key: row[key] for key in SHOWN[row["part"]] if key in row}
