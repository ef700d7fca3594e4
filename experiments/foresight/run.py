"""Are predictions right?

Plans beside times, for random programs that no figure was fitted to.

Cells, filters, equations, layers, states of many leaves and short steps, of random widths and
batches. Every row of a plan is a row here: the time that `deeppcr.plan` predicts of it, and what a
call takes. Programs are called in turn, and the least time counts.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from functools import partial

import deeppcr
from deeppcr.planning.candidates import Candidate, Instance, instance_of
from experiments.bench import command
from experiments.bench.engine import AUTO, Case
from experiments.bench.plots import Figures, legend, looks, sheet, styled
from experiments.bench.summary import percentile
from experiments.bench.table import Row
from experiments.bench.timing import Effort, build, interleave
from experiments.foresight.programs import Program, drawn

TAKES = "5 min"
SEED, COUNT = 0, 40  # figures of `depth.models.generic_cpu` were fitted to other seeds
QUICK = 3
COLUMNS = {
    "kind": "of program",
    "title": "the program: its kind, its width, its batch",
    "L": "steps",
    "direction": "forward or gradient, by the state, the inputs and the weights",
    "program": "a row of the plan",
    "ms": "time of a call, the least of several",
    "predicted ms": "the same as `deeppcr.plan` predicts it",
    "predicted / measured": "their ratio",
    "speedup": "over `jax.lax.scan`, of what the plan chooses",
    "predicted speedup": "the same, predicted",
}


def rows(program: Program, effort: Effort) -> Iterator[Row]:
    """A row for each row of the plan of a program."""
    instance, plan = planned(program)
    for direction, found in (("forward", plan.forward), ("gradient", plan.gradient)):
        calls = {
            one.name: partial(
                build(instance.program(one), *instance.arguments).call, *instance.arguments
            )
            for one in found
        }
        times = {name: min(time.seconds) for name, time in interleave(calls, effort).items()}
        plain = next(one for one in found if one.method is None)
        for one in found:
            row: Row = {"kind": program.kind, "title": program.name, "L": program.length}
            row |= {"direction": direction, "program": one.name, "ms": 1e3 * times[one.name]}
            row |= {"predicted ms": 1e3 * one.seconds}
            row["predicted / measured"] = one.seconds / times[one.name]
            if one is found[0]:
                row["speedup"] = times[plain.name] / times[one.name]
                row["predicted speedup"] = plain.seconds / one.seconds
            yield row


def planned(program: Program) -> tuple[Instance, deeppcr.Plan]:
    """A program with its arrays, and its plan."""
    given = program.step, program.init, program.inputs
    return instance_of(*given, None, False, None), deeppcr.plan(*given)


def error(ratio: float) -> float:
    """A ratio as a factor of 1 or more."""
    return max(ratio, 1 / ratio)


def errors(rows: Sequence[Row]) -> Row:
    """How far predictions are from times, as factors: of all rows, and of speedups."""
    times = [error(row["predicted / measured"]) for row in rows]
    gains = [error(row["predicted speedup"] / row["speedup"]) for row in rows if "speedup" in row]
    return {
        "rows": len(times),
        "median": statistics.median(times),
        "90 %": percentile(times, 0.9),
        "within 2, %": 100 * sum(each <= 2 for each in times) / len(times),
        "speedup, median": statistics.median(gains) if gains else math.nan,
        "speedup, 90 %": percentile(gains, 0.9) if gains else math.nan,
    }


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """The errors of all rows, and of each kind of program."""
    for kind in ("all", *dict.fromkeys(row["kind"] for row in rows)):
        mine = [row for row in rows if kind in ("all", row["kind"])]
        if mine:
            found = errors(mine)
            yield f"{kind}: " + ", ".join(f"{key} {value:.3g}" for key, value in found.items())


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Predicted over measured times; a line for what is right, and two for a factor of two."""
    title = "Predicted and measured times of all rows of the plans"
    drawing, panels = sheet(title, 2, height=4.2, sharey=True)
    for axes, direction in zip(panels, ("forward", "gradient"), strict=True):
        for kind, look in looks(rows, "kind").items():
            mine = [row for row in rows if (row["kind"], row["direction"]) == (kind, direction)]
            x, y = ([row[key] for row in mine] for key in ("ms", "predicted ms"))
            axes.plot(x, y, **look, ls="", label=kind, alpha=0.8, mew=0)
        ends = [min(row["ms"] for row in rows), max(row["ms"] for row in rows)]
        for factor, width in ((1.0, 1.0), (2.0, 0.5), (0.5, 0.5)):
            axes.plot(ends, [factor * end for end in ends], color="black", linewidth=width)
        axes.set(xscale="log", yscale="log", title=direction, xlabel="measured [ms]")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("predicted [ms]")
    legend(drawing, 6)
    return {"": drawing}


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    found = []
    for program in drawn(SEED, QUICK):
        instance, _ = planned(program)
        run = instance.program(Candidate(deeppcr.Sequential(), deeppcr.adjoint.Backpropagation()))
        found.append(Case({"title": program.name}, [instance.arguments], {}, {AUTO: run}))
    return found


def main(argv: list[str]) -> None:
    """Plan and time all programs."""
    options = command.parser("foresight", __doc__).parse_args(argv)
    effort = Effort(options.repeats, share=0.02, most=100)
    jobs = [
        partial(rows, program, effort) for program in drawn(SEED, QUICK if options.quick else COUNT)
    ]
    command.run(options, jobs, {"": COLUMNS}, summary=summary, pictures=pictures)
