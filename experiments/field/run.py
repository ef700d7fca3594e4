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

import jax
from jax import lax

from deeppcr import Newton
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, Variant, measure, solve_statistics
from experiments.bench.plots import Figures, lines, styled
from experiments.bench.programs import SCAN, by_loop, solver
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.field.claims import Claim, claims, window_claims
from experiments.models import published
from experiments.models.chains import Model

GAINS = (0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.8, 2.2)
LENGTHS = (64, 128, 256, 512)
QUICK_GAINS, QUICK_LENGTHS = (0.6, 1.0, 1.8), (32, 64)
CLEAR = 0.02  # per step: rates nearer to 0 show only on longer chains
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


def case(claim: Claim, model: Model) -> Case:
    """The chain of a claim by `jax.lax.scan` and by the method that it is about."""
    ours = Variant(
        solver(model.step, claim.method),
        comparable=lambda solution: solution.trajectory,
        statistics=lambda solution: solve_statistics([solution]),
    )
    arguments = [(model.z0, model.inputs)]
    loop = {SCAN: by_loop(model.step, lax.scan)}
    labels = {"problem": claim.problem, "options": claim.said}
    return Case(
        labels, arguments, loop, {"ours": ours}, tolerance=math.inf
    )  # the claim has its own


def measured(claim: Claim, effort: Effort) -> Iterator[Row]:
    """A row with the published figure and ours."""
    model = claim.make()
    found = measure(case(claim, model), effort)
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


def predictability(gains: Sequence[float], lengths: Sequence[int]) -> Iterator[Row]:
    """Iterations of plain Newton against length and growth rate: where a chain is predictable.

    X. Gonzalez, L. Kozachkov, D. M. Zoltowski, K. L. Clarkson, S. W. Linderman, *Predictability
    Enables Parallelization of Nonlinear State Space Models* (NeurIPS 2025): the number of
    iterations hardly depends on T where the largest Lyapunov exponent is negative, and is about T
    where it is positive.

    Yields:
        A row for each gain and length, and the verdict at the end.
    """
    found: list[Row] = []
    for length in lengths:
        # As many iterations as always suffice.
        method = Newton(linearize="dense", max_iterations=length + 1, record=True)
        solve = jax.jit(solver(published.mean_field_rnn(1.0, length).step, method))
        for gain in gains:
            done = len(found) / len(gains) / len(lengths)
            PROGRESS.say(f"solving gain {gain}, L = {length}", done)
            model = published.mean_field_rnn(gain, length)
            solution = solve(model.z0, model.inputs)
            row = {"part": "predictability", "problem": "mean-field RNN", "gain": gain, "L": length}
            row |= {"growth rate": float(solution.stats.growth_rate)}
            found.append(row | solve_statistics([solution]))
            yield found[-1]
    yield verdict(found)


def verdict(found: Sequence[Row]) -> Row:
    """Whether iterations are flat where differences decay, and about T where they grow.

    The exponent p of ``iterations ~ T^p`` between the shortest and the longest chain tells; the
    rate is that of the longest.
    """
    slopes = [(rate, slope) for rate, slope in exponents(found) if abs(rate) > CLEAR]
    flat = [slope for rate, slope in slopes if rate < 0]
    steep = [slope for rate, slope in slopes if rate > 0]
    holds = bool(flat and steep) and max(flat) < 0.5 < min(steep)
    return {
        "part": "published",
        "problem": "mean-field RNN",
        "L": max(row["L"] for row in found),
        "source": "LLE",
        "options": "dense",
        "published": "T^0, T^1",
        "ours": ", ".join(f"T^{p:.1f}" for p in (max(flat, default=0), min(steep, default=0))),
        "pass": "yes" if holds else "no",
    }


def exponents(found: Sequence[Row]) -> Iterator[tuple[float, float]]:
    """``(growth rate, p)`` of each gain."""
    for gain in dict.fromkeys(row["gain"] for row in found):
        mine = sorted((row for row in found if row["gain"] == gain), key=lambda row: int(row["L"]))
        first, last = mine[0], mine[-1]
        more, longer = (math.log(last[key] / first[key]) for key in ("iterations", "L"))
        yield last["growth rate"], more / longer


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """How many rows pass."""
    verdicts = [row["pass"] for row in rows if "pass" in row]
    yield f"{verdicts.count('yes')} of {len(verdicts)} rows pass."


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Iterations of plain Newton on predictable chains and on chaotic ones."""
    mine = [row for row in rows if row.get("part") == "predictability"]
    if not mine:
        return {}
    named = [row | {"T": f"T = {row['L']:,}"} for row in mine]
    title = "Newton's method on a mean-field RNN (fewer is better)"
    rate = "growth rate"
    said = "largest Lyapunov exponent [nats per step]; chaotic right of 0"
    panels = {"": (named, "iterations", "iterations")}
    return {"predictability": lines(title, panels, rate, said, key="T", xscale="linear")}


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    few = [claim for claim in claims(quick=True) if claim.problem == "contracting RNN"]
    return [case(claim, claim.make()) for claim in few]


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    arguments = command.parser("field", __doc__)
    arguments.set_defaults(repeats=3)
    options = arguments.parse_args(argv)
    effort = Effort(options.repeats, share=0.0)
    jobs: list[command.Job] = [partial(measured, claim, effort) for claim in claims(options.quick)]
    gains, lengths = (QUICK_GAINS, QUICK_LENGTHS) if options.quick else (GAINS, LENGTHS)
    in_windows = partial(window_claims, options.quick)
    jobs.append(lambda: (row for claim in in_windows() for row in measured(claim, effort)))
    jobs.append(partial(predictability, gains, lengths))
    command.run(options, jobs, TABLES, summary=summary, pictures=pictures, together=TABLES)
