"""Do the published results of the field come back: as few iterations, as small an error?

published       a row for each result: the published figure, ours, and whether ours is as good
predictability  iterations against length, for chains from forgetful to chaotic

An error is the largest difference from the states of `jax.lax.scan`, relative to the largest state.
Peers' own code is not run. Weights, inputs and scales are drawn and chosen here, so a pass means
that a chain of that kind takes no more iterations, not that the published run was repeated.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from jax import lax

import deeppcr
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, Variant, measure, solve_statistics
from experiments.bench.programs import SCAN, by_loop
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.field import predictability
from experiments.field.claims import Claim, claims, window_claims
from experiments.field.figure import pictures
from experiments.models.chains import Model

TAKES = "5 min"
COLUMNS = {
    "problem": "the chain",
    "L": BENCH["L"],
    "source": "who published it; docs/experiments/field.md has the references",
    "options": "options of Newton's method, other than the defaults",
    "published": "the published iterations, or what becomes of them; here: by a loop that ran here",
    "ours": "iterations of ours",
    "pass": "whether ours is as good",
    "error": BENCH["error"],
    "CPU ms": "time of all cores for a call, in milliseconds (median)",
    "scan CPU ms": "the same of jax.lax.scan",
    "published error": "the published error",
    "ended": BENCH["ended"],
    "note": BENCH["note"],
}
PREDICTABILITY = {
    "problem": "the chain",
    "gain": "factor of its recurrent weights",
    "L": BENCH["L"],
    "growth rate": "largest Lyapunov exponent: differences grow as exp(rate l)",
    "iterations": BENCH["iterations"],
    "ended": BENCH["ended"],
}
TABLES = {"published": COLUMNS, "predictability": PREDICTABILITY}


def measured(claim: Claim, effort: Effort) -> Iterator[Row]:
    """A row with the published figure and ours."""
    model = claim.make()

    def solve(z0: Any, inputs: Any) -> deeppcr.Solution:
        return deeppcr.solve(deeppcr.Chain(model.step, inputs), z0, method=claim.method)

    ours = Variant(
        solve,
        comparable=lambda solution: solution.trajectory,
        statistics=lambda solution: solve_statistics([solution]),
    )
    arguments = [(model.z0, model.inputs)]
    loop = {SCAN: by_loop(model.step, lax.scan)}
    case = Case({}, arguments, loop, {"ours": ours}, tolerance=math.inf)  # the claim has its own
    found = measure(case, effort)
    plain, one = found[SCAN], found["ours"]
    row = labels(claim, model) | one.row | one.times()
    row["pass"] = "no"
    if "iterations" in row:  # else it did not run, and a note says why
        row["ours"] = row["iterations"]
        if claim.holds(row["ended"], row["iterations"], row["error"]):
            row["pass"] = "yes"
    if "CPU ms" in (times := plain.times()):
        row["scan CPU ms"] = times["CPU ms"]
    note = one.note or claim.note
    yield row | ({"note": note} if note else {})


def labels(claim: Claim, model: Model) -> Row:
    """The first cells of a row."""
    row = {
        "part": "published",
        "problem": claim.problem,
        "L": model.length,
        "source": claim.source,
        "options": claim.said,
        "published": claim.published,
    }
    return row | ({} if claim.error is None else {"published error": claim.error})


def windows(quick: bool, effort: Effort) -> Iterator[Row]:
    """The rows of ParaDiGMS's window."""
    for claim in window_claims(quick):
        yield from measured(claim, effort)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """How many rows pass."""
    verdicts = [row["pass"] for row in rows if "pass" in row]
    yield f"{verdicts.count('yes')} of {len(verdicts)} rows pass."


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    arguments = command.parser("field", __doc__)
    arguments.set_defaults(repeats=3)
    options = arguments.parse_args(argv)
    effort = Effort(options.repeats, share=0.0)
    jobs: list[command.Job] = [partial(measured, claim, effort) for claim in claims(options.quick)]
    gains, lengths = (
        (predictability.QUICK_GAINS, predictability.QUICK_LENGTHS)
        if options.quick
        else (predictability.GAINS, predictability.LENGTHS)
    )
    jobs.append(partial(windows, options.quick, effort))
    jobs.append(partial(predictability.rows, gains, lengths))
    command.run(
        options,
        jobs,
        TABLES,
        summary=summary,
        pictures=pictures,
        together=tuple(TABLES),
    )
