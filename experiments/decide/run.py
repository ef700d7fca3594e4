"""Does "auto" choose the fastest program, and where does parallel pay off?

regret     chains of six kinds and random sizes, forward and gradient: what "auto" takes, beside the
           fastest of `jax.lax.scan`, an unrolled loop and all candidates of the planner
map        a GRU over width and length: the best parallel candidate beside the sequential program,
           measured and predicted here, and predicted for other devices
giving-up  chains that amplify differences, on which Newton's method stops at its budget and the
           sequential fallback takes over

Times of the first two parts are minima, and programs that take five times as long as the fastest
are called only twice; those of the last part are medians.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import depth
from experiments.bench import command
from experiments.bench.columns import LABELS
from experiments.bench.command import positive
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.decide import breakeven, giving_up
from experiments.decide.breakeven import FAR_DEVICES, HERE
from experiments.decide.figure import pictures
from experiments.decide.programs import Chain
from experiments.decide.regret import SUMMARY, by_kind, confusion, regret
from experiments.models import zoo

PARTS = ("regret", "map", "giving-up")
CHAINS = 60
FIRST = 3 * len(zoo.KINDS)  # chains that come before the other parts
LEAST: dict[str, Any] = {
    "most": 100,
    "slow": 5.0,
}  # for minima: many calls of fast programs, two of slow ones
TAKES = "15 min"
LAST = {
    "speedup": "jax.lax.scan / chosen program, measured",
    "temp MB": "memory for temporaries of the chosen program, in MB",
    "lax.scan MB": "the same of jax.lax.scan",
    "over lax.scan": "jax.lax.scan / this program, measured",
    "over best loop": "fastest loop without deeppcr / this program, measured",
    "predicted speedup": "speedup, predicted",
    "depth speedup": "depth of jax.lax.scan / depth of this program",
    "log2": "log2(predicted time / measured time)",
    "error": "largest difference from lax.scan, relative to the largest entry",
    "note": "what is wrong",
}
TABLES = {
    "regret": {
        **LABELS,
        "chosen": 'what "auto" takes',
        "fastest": "the fastest program",
        "regret %": "how much longer the chosen program takes than the fastest, in percent",
        **LAST,
    },
    "map": {
        **LABELS,
        "parallel": "the best parallel candidate",
        "realised": "its speedup over the sequential program, measured here",
        f"predicted, {HERE}": "the same, predicted",
        **{f"predicted, {name}": f"the same, predicted for {name}" for name in FAR_DEVICES},
        **LAST,
    },
    "giving-up": {
        "chain": "a chain that amplifies differences",
        "method": "how it is solved",
        "iterations": "Newton iterations",
        "ended": "how they ended",
        "times sequential, here": "time / time of the sequential method, measured",
        f"predicted for {giving_up.FAR_DEVICE}": "the same, predicted for this GPU",
        "error, lax.scan": "difference from lax.scan; two sequential programs differ as much",
        **LAST,
    },
    "regret by kind": SUMMARY,
}


def jobs(options: argparse.Namespace) -> list[command.Job]:
    """All cases that the command line asks for: some chains, the other parts, more chains."""
    device = depth.at_hand()
    rounds, seconds = options.repeats, 0.03 if options.quick else 0.3
    effort = Effort(rounds, seconds / rounds, **LEAST)

    def both(of: Callable[..., Row], specimen: zoo.Specimen) -> Iterator[Row]:
        return (of(chain, device, effort) for chain in Chain.both(specimen))

    drawn = zoo.small() if options.quick else zoo.specimens(options.chains, options.seed)
    chains: list[command.Job] = [partial(both, regret, specimen) for specimen in drawn]
    widths, lengths = ((4,), (64,)) if options.quick else (breakeven.WIDTHS, breakeven.LENGTHS)
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
    """Measure what the command line asks for."""
    arguments = command.parser("decide", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    add(
        "--chains",
        type=positive,
        default=CHAINS,
        metavar="N",
        help="number of random chains (%(default)s)",
    )
    add("--seed", type=int, default=0, help="of the random chains (%(default)s)", metavar="N")
    options = arguments.parse_args(argv)
    command.run(options, jobs(options), TABLES, summary=summary, pictures=pictures, together=PARTS)


def summary(rows: list[Row]) -> Iterator[str | list[Row]]:
    """The regret by kind of chain, and what was chosen where something else was the fastest."""
    regrets = [row for row in rows if row["part"] == "regret"]
    yield command.part("regret by kind", by_kind(regrets))
    yield from confusion(regrets)
