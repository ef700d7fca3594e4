"""Does "auto" choose what is fastest? Regret, where parallel pays off, what giving up costs.

regret     chains of six kinds, their sizes drawn from a wide range, forward and gradient: what
           "auto" takes, beside the fastest of `jax.lax.scan`, an unrolled loop and all that the
           planner has in the running, and beside `jax.lax.scan` with unroll 4 and 16; a program
           that does not compute what `jax.lax.scan` computes does not count, and is named in a note
map        a GRU over units and length: the best parallel candidate beside the sequential program,
           predicted and realised here, and predicted for devices that are not at hand
giving-up  chains that amplify differences, on which Newton's method stops at its budget and goes on
           step by step

In the first two parts times are the least of all calls, and what is five times as slow as the
fastest is called only twice; in the last one they are medians. "log2" is that of the predicted over
the measured time of what was chosen. It runs with jax and numpy alone.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import depth
from experiments.bench import command
from experiments.bench.command import positive
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.decide import breakeven, giving_up
from experiments.decide.figure import draw
from experiments.decide.programs import Chain
from experiments.decide.regret import regret, report
from experiments.models import zoo

PARTS = ("regret", "map", "giving-up")
CHAINS = 60
FIRST = 3 * len(zoo.KINDS)  # chains before the other parts
LEAST: dict[str, Any] = {
    "most": 100,
    "slow": 5.0,
}  # for least times: many calls of what is fast, two of what is not
DEPTHS = ("sequential depth", "depth", "depth speedup", "predicted speedup")
LAST = ("over best loop", "log2", "error", "note")
SHOWN = {  # of a row, in the terminal
    "regret": (
        *("kind", "w", "L", "batch", "direction", "chosen", "fastest", "regret %"),
        *(*DEPTHS, "speedup", *LAST),
    ),
    "map": (
        *("w", "L", "direction", "parallel", *DEPTHS, "predicted, here", "realised"),
        *("over lax.scan", *LAST),
    ),
    "giving-up": (
        *("chain", "method", "iterations", "ended", "error, lax.scan", "times sequential, here"),
        *(f"predicted for {giving_up.FAR_DEVICE}", *DEPTHS, "over lax.scan", *LAST),
    ),
}


def jobs(options: argparse.Namespace) -> list[command.Job]:
    """All that is asked for, each a function that makes its rows.

    Some chains, the other parts, then all other chains.
    """
    device = command.model(options)
    rounds, seconds = options.repeats, 0.03 if options.quick else 0.3
    effort = Effort(rounds, seconds / rounds, **LEAST)

    def both(
        measure: Callable[[Chain, depth.Device, Effort], Row], specimen: zoo.Specimen
    ) -> Iterator[Row]:
        return (measure(chain, device, effort) for chain in Chain.both(specimen))

    drawn = zoo.small() if options.quick else zoo.specimens(options.chains, options.seed)
    chains: list[command.Job] = [partial(both, regret, specimen) for specimen in drawn]
    widths, lengths = ((1, 4), (64,)) if options.quick else (breakeven.WIDTHS, breakeven.LENGTHS)
    hard = [partial(giving_up.logistic, 256)] if options.quick else giving_up.CHAINS
    found = chains[:FIRST] if "regret" in options.parts else []
    if "giving-up" in options.parts:
        usual = Effort(rounds)
        found += [lambda make=make: giving_up.giving_up(make(), device, usual) for make in hard]  # type: ignore[misc]
    if "map" in options.parts:
        sizes = product(widths, lengths)
        found += [partial(both, breakeven.cell, breakeven.gru(*size)) for size in sizes]
    return found + (chains[FIRST:] if "regret" in options.parts else [])


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    arguments = command.parser("decide", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (%(default)s)")
    add("--chains", type=positive, default=CHAINS, help="for the regret, at least (%(default)s)")
    add("--seed", type=int, default=0, help="which chains are drawn")
    options = arguments.parse_args(argv)
    kept = command.run(options, "decide", jobs(options), shown)
    parts = {part: [row for row in kept.rows if row["part"] == part] for part in PARTS}
    print("\n".join(filter(None, [report(parts["regret"]), shown(parts["map"])])))
    is_drawn = parts["regret"] or parts["map"]
    command.conclude(options, kept, partial(draw, kept.rows) if is_drawn else None)


def shown(rows: list[Row]) -> str:
    """The cells of rows that fit a terminal."""
    return show([{key: row[key] for key in SHOWN[row["part"]] if key in row} for row in rows])
