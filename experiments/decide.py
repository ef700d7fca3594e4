"""Does "auto" choose the fastest program, and where does parallel pay off?

regret     chains of six kinds and random sizes, forward and gradient: what "auto" takes, beside the
           fastest of `jax.lax.scan` and of all methods and adjoints that may be asked for by name
map        a GRU over width and length: the best parallel program beside the best loop, measured,
           and the speedup that `deeppcr.plan` predicts, here and for other devices
giving-up  chains that amplify differences, on which Newton's method takes an iteration a step

Times of the first two parts are minima, and programs that take five times as long as the fastest
are called only twice; those of the last part are medians.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import jax
from jax import lax

import deeppcr
import depth
from deeppcr.adjoint import Autodiff, Backpropagation
from deeppcr.linear import name_of
from experiments.bench import command
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.engine import Case, Outcome, bench, measure
from experiments.bench.plots import Figures, legend, looks, sheet, speedup_maps, styled
from experiments.bench.programs import SCAN, Setting, baselines, by_loop, by_method, fused
from experiments.bench.progress import PROGRESS
from experiments.bench.summary import percentile
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import chains, published, zoo
from experiments.models.chains import Model

PARTS = ("regret", "map", "giving-up")
DIRECTIONS = ("forward", "gradient")
CHAINS = 24
SMALL = zoo.Specimen("tanh", 4, 64, 1)  # with --quick
FIRST = 3 * len(zoo.KINDS)  # chains that come before the other parts
FAR_DEVICES = ("H200", "A100", "TPU v5e")
HERE = "here"
WIDTHS, LENGTHS = (1, 8, 64), (64, 1024)  # of the map
LONGEST_LOOP = 16  # steps of a Python loop among the loops
LONGEST = 5.0  # seconds; what is predicted to take longer is not run
MOST_BYTES = 5e8  # of the Jacobians of all steps; larger programs are not run
AUTO, AGAIN = "auto", "lax.scan, again"  # the second is compiled once more, for the noise
CANDIDATES: Mapping[str, Mapping[str, Setting]] = {
    "forward": {
        "sequential": Setting("sequential"),
        "newton": Setting("newton"),
    },
    "gradient": {
        **{
            f"sequential / {adjoint}": Setting("sequential", adjoint)
            for adjoint in ("autodiff", "backprop", "sequential", "pcr")
        },
        "newton / pcr": Setting("newton", "pcr"),
    },
}
BLOCKS = ("newton", "sequential / sequential", "sequential / pcr", "newton / pcr")  # have Jacobians
LEAST: Any = {"most": 100, "slow": 5.0}  # for minima: many calls of fast programs, two of slow ones
TAKES = "4 min"
LAST = {
    "temp MB": BENCH["temp MB"],
    "lax.scan MB": "the same of jax.lax.scan",
    "over best loop": "fastest loop without deeppcr / this program, measured",
    "log2": "log2(predicted time / measured time)",
}
LAST |= {key: BENCH[key] for key in ("over lax.scan", "predicted speedup", "depth speedup")}
LAST |= {key: BENCH[key] for key in ("error", "note")}
TABLES = {
    "regret": {
        **LABELS,
        "chosen": 'what "auto" takes',
        "fastest": "the fastest program",
        "regret %": "how much longer the chosen program takes than the fastest, in percent",
        "speedup": "jax.lax.scan / chosen program, measured",
        **LAST,
    },
    "map": {
        **LABELS,
        "parallel": "the fastest parallel program",
        "realised": "its speedup over deeppcr's sequential program, measured here",
        **{
            f"predicted, {name}": f"speedup by deeppcr.plan, {name}"
            for name in (HERE, *FAR_DEVICES)
        },
        **LAST,
    },
    "giving-up": {
        "chain": "a chain that amplifies differences",
        "method": "how it is solved",
        "iterations": "Newton iterations",
        "ended": "how they ended",
        "times sequential, here": "time / time of the sequential method, measured",
        "error, lax.scan": "difference from lax.scan; two sequential programs differ as much",
        **LAST,
    },
}


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain in one direction, forward or gradient."""

    specimen: zoo.Specimen
    task: zoo.Task
    direction: str

    @classmethod
    def both(cls, specimen: zoo.Specimen) -> Iterator["Chain"]:
        """A chain in both directions."""
        task = zoo.task(specimen)
        return (cls(specimen, task, direction) for direction in DIRECTIONS)

    def program(self, scan: Callable[..., Any]) -> Callable[..., Any]:
        """The program that runs its steps by a scan."""
        is_gradient = self.direction == "gradient"
        return self.task.gradient(scan) if is_gradient else self.task.forward(scan)

    def speedup(self, device: str | None = None) -> float:
        """The speedup that the plan predicts for this direction."""
        plan, _ = planned(self.specimen, device)
        forward = self.direction == "forward"
        return plan.predicted_speedup if forward else plan.gradient_speedup

    def chosen(self) -> str:
        """What the plan takes, in words as those of `CANDIDATES`."""
        plan, _ = planned(self.specimen)
        method = "newton" if isinstance(plan.method, deeppcr.Newton) else "sequential"
        if self.direction == "forward":
            return method
        names = {Autodiff: "autodiff", Backpropagation: "backprop"}
        adjoint: Any = plan.adjoint
        return f"{method} / {names.get(type(adjoint)) or name_of(adjoint.linear)}"

    def case(self) -> Case:
        """All programs: the loops, "auto" and the candidates."""
        loops = baselines(self.program, self.specimen.length, LONGEST_LOOP)
        programs = {AGAIN: self.program(lax.scan), AUTO: self.program(Setting().scan)}
        for name, setting in CANDIDATES[self.direction].items():
            if name not in BLOCKS or self.specimen.jacobian_bytes <= MOST_BYTES:
                programs[name] = self.program(setting.scan)
        programs |= fused(self.program, self.task.arguments, batch_ndim=1)
        labels = {"chain": self.specimen.name, "direction": self.direction}
        return Case(labels, [self.task.arguments], loops, programs)

    def measure(self, device: depth.Device, effort: Effort) -> dict[str, Outcome]:
        """All programs, timed beside each other."""
        return measure(self.case(), effort, device, LONGEST)


@cache
def planned(specimen: zoo.Specimen, device: str | None = None) -> tuple[deeppcr.Plan, float]:
    """What `deeppcr.plan` says of a chain, from shapes, as "auto" decides; and its seconds."""
    task = zoo.task(specimen)
    chain = deeppcr.Chain(partial(task.step, task.weights), task.inputs)
    init, start = jax.eval_shape(lambda: task.init), time.perf_counter()
    plan = deeppcr.plan(chain, init, device=device, batch_ndim=1)
    return plan, time.perf_counter() - start


def seconds_of(found: Mapping[str, Outcome]) -> dict[str, float]:
    """The minimum time of each program that has the result of `jax.lax.scan`."""
    return {
        name: min(one.timing.seconds) for name, one in found.items() if one.is_right and one.timing
    }


def cells(found: Mapping[str, Outcome], name: str) -> Row:
    """The cells of a program: its times, measured and predicted, memory, depth and error."""
    one, scan, seconds = found[name], found[SCAN], seconds_of(found)
    assert one.timing is not None
    loops = [loop for loop in seconds if loop.startswith(SCAN) or loop == "unrolled"]
    best = min((loop for loop in loops if loop != AGAIN), key=seconds.__getitem__)
    row: Row = {"best loop": best, "over best loop": seconds[best] / seconds[name]}
    row |= {"us": 1e6 * seconds[name], **one.row}
    if one.predicted:
        row |= {"log2": math.log2(one.predicted / seconds[name])}
    if one.cost and scan.cost:
        row |= {"depth speedup": scan.cost.depth / max(one.cost.depth, 1)}
    return row


def noted(found: Mapping[str, Outcome]) -> Row:
    """A note of all that went wrong."""
    notes = [f"{name}: {one.note}" for name, one in found.items() if one.note]
    return {"note": "; ".join(notes)} if notes else {}


def regret(chain: Chain, device: depth.Device, effort: Effort) -> Row:
    """What "auto" takes for a chain, and how much longer that needs than the fastest program.

    "regret %" compares it with plain `jax.lax.scan` and all `CANDIDATES`.
    """
    PROGRESS.say(f"planning {chain.specimen.name}, {chain.direction}")
    _, planning = planned(chain.specimen)
    found = chain.measure(device, effort)
    seconds, specimen = seconds_of(found), chain.specimen
    row: Row = {"part": "regret", "kind": specimen.kind, "w": specimen.width}
    row |= {"L": specimen.length, "batch": specimen.batch, "direction": chain.direction}
    row["chosen"] = chain.chosen()
    if {SCAN, AGAIN, AUTO} <= seconds.keys():
        again, scan, mine = seconds.pop(AGAIN), seconds[SCAN], seconds[AUTO]
        within = {SCAN, AUTO, "fused", *CANDIDATES[chain.direction]} & seconds.keys()
        fastest, built = min(within, key=seconds.__getitem__), found[AUTO].build
        assert built is not None
        row |= {
            "fastest": row["chosen"] if fastest == AUTO else fastest,
            "regret %": 100 * (mine / seconds[fastest] - 1),
            "noise %": 100 * (max(again, scan) / min(again, scan) - 1),
            "lax.scan us": 1e6 * scan,
            "speedup": scan / mine,
            **cells(found, AUTO),
            "lax.scan MB": found[SCAN].row["temp MB"],
            "planning %": 100 * planning / (built.lower + built.compile),
        }
    row |= {"predicted speedup": chain.speedup(), "seconds": seconds}
    row["predicted"] = {name: one.predicted for name, one in found.items() if one.predicted}
    row["errors"] = {name: one.error for name, one in found.items() if one.build}
    return row | noted(found)


def cell(chain: Chain, device: depth.Device, effort: Effort) -> Row:
    """A row of the map: a speedup measured here, and predicted here and for others."""
    found = chain.measure(device, effort)
    seconds, specimen = seconds_of(found), chain.specimen
    row: Row = {"part": "map", "w": specimen.width, "L": specimen.length}
    row |= {"direction": chain.direction, f"predicted, {HERE}": chain.speedup()}
    parallel, loops = [name for name in BLOCKS if name in seconds], {SCAN} & seconds.keys()
    if parallel and loops:
        best = row["parallel"] = min(parallel, key=seconds.__getitem__)
        plain = [name for name in CANDIDATES[chain.direction] if name not in BLOCKS]
        least = min(seconds[name] for name in plain if name in seconds)
        row |= {"realised": least / seconds[best], "over lax.scan": seconds[SCAN] / seconds[best]}
        row |= cells(found, best)
    for name in FAR_DEVICES:
        row[f"predicted, {name}"] = chain.speedup(name)
    return row | noted(found)


# -- chains on which Newton's method takes about one iteration a step


HARD: dict[str, Callable[[], Model]] = {
    "logistic map, r = 3.9": partial(chains.logistic_chain, 1024),
    "tanh RNN, spectral radius 2": partial(published.mean_field_rnn, 2.0, 1024),
}


def giving_up(name: str, device: depth.Device, effort: Effort) -> Iterator[Row]:
    """A row for each method on a chain of `HARD`."""
    step, inputs, init = HARD[name]()
    methods = ("sequential", "auto", "newton")
    case = Case(
        labels={},
        arguments=[(init, inputs)],
        baselines=baselines(partial(by_loop, step), 1024, longest=0),
        variants={method: by_method(step, method) for method in methods},
        tolerance=math.inf,  # rounding is amplified, too: two sequential programs differ
    )
    rows = {row["program"]: row for row in bench(case, device, effort) if not row["baseline"]}
    for method, row in rows.items():
        found: Row = {"part": "giving-up", "chain": name, "method": method}
        found |= {key: row[key] for key in ("iterations", "ended") if key in row}
        if "ms" in row and "ms" in rows["sequential"]:
            found["times sequential, here"] = row["ms"] / rows["sequential"]["ms"]
        if "speedup" in row:
            found |= {"over best loop": row.pop("speedup"), "error, lax.scan": row.pop("error")}
        yield found | {key: row[key] for key in row if key not in ("program", "baseline")}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """The regret over all chains."""
    for direction in DIRECTIONS:
        mine = [row for row in rows if row.get("direction") == direction and "regret %" in row]
        if regrets := [row["regret %"] for row in mine]:
            yield (
                f"{direction}: regret of {len(mine)} chains: median "
                f"{statistics.median(regrets):.1f}, 90th percentile "
                f"{percentile(regrets, 0.9):.1f}, worst {max(regrets):.1f} %"
            )


# -- pictures


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Speedups over L and w, here and on other devices; the regret of "auto"."""
    found: Figures = {}
    mapped = [row for row in rows if row["part"] == "map"]
    parts = {name: [row for row in mapped if row["direction"] == name] for name in DIRECTIONS}
    axes = ("L", "steps L"), ("w", "units of the GRU")
    said = "speedup over jax.lax.scan"
    maps = {
        "measured": "over lax.scan",
        'predicted: what "auto" takes': f"predicted, {HERE}",
    }
    for name, mine in reversed(parts.items()):
        if mine:
            panels = {program: (mine, key) for program, key in maps.items()}
            found[name] = speedup_maps(f"GRU of batch 1, {name}, here", panels, *axes, said)
    for device in FAR_DEVICES if mapped else ():
        panels = {name: (mine, f"predicted, {device}") for name, mine in parts.items() if mine}
        topic = device.lower().replace(" ", "_")
        title = f'GRU of batch 1 on {device}: what "auto" takes, predicted'
        found[topic] = speedup_maps(title, panels, *axes, said)
    if judged := [row for row in rows if row["part"] == "regret" and "regret %" in row]:
        found["regret"] = _regret(judged)
    return found


def _regret(rows: Sequence[Row]) -> Any:
    """A point for every chain: how much longer "auto" took than the fastest candidate."""
    title = "Regret of auto: time lost to the fastest candidate (line: 15 %)"
    drawing, panels = sheet(title, len(DIRECTIONS), height=3.8, sharey=True)
    for axes, direction in zip(panels, DIRECTIONS, strict=True):
        for kind, look in looks(rows, "kind").items():
            mine = [row for row in rows if (row["kind"], row["direction"]) == (kind, direction)]
            x, y = ([row[key] for row in mine] for key in ("lax.scan us", "regret %"))
            axes.plot([each / 1e3 for each in x], y, **look, ls="", label=kind, alpha=0.8, mew=0)
        axes.axhline(15, color="black", linewidth=1)
        axes.set(xscale="log", title=direction, xlabel="time of jax.lax.scan [ms]")
        axes.set_yscale("symlog", linthresh=10)
        axes.set_yticks([0, 5, 10, 20, 50, 100, 200], ["0", "5", "10", "20", "50", "100", "200"])
        axes.set_yticks([], minor=True)
        axes.set_ylim(bottom=-0.7)
        axes.xaxis.set_major_formatter("{x:g}")
    panels[0].set_ylabel("regret [% of the fastest]")
    legend(drawing, 6)
    return drawing


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    specimens = zoo.Specimen("gru", 4, 64, 1), zoo.Specimen("tanh", 8, 64, 8)
    return [chain.case() for specimen in specimens for chain in Chain.both(specimen)]


def main(argv: list[str]) -> None:
    """Measure what the command line asks for: some chains, the other parts, more chains."""
    options = command.parser("decide", __doc__, PARTS).parse_args(argv)
    device, quick, rounds = depth.at_hand(), options.quick, options.repeats
    effort = Effort(rounds, (0.03 if quick else 0.3) / rounds, **LEAST)

    def both(of: Callable[..., Row], specimen: zoo.Specimen) -> Iterator[Row]:
        return (of(chain, device, effort) for chain in Chain.both(specimen))

    drawn = [SMALL] if quick else zoo.specimens(CHAINS)
    drawn_chains: list[command.Job] = [partial(both, regret, specimen) for specimen in drawn]
    hard = [*HARD][:1] if quick else HARD
    sizes = product(*([[4], [64]] if quick else [WIDTHS, LENGTHS]), [1])
    jobs: dict[str, list[command.Job]] = {
        "regret": drawn_chains[:FIRST],
        "giving-up": [partial(giving_up, name, device, Effort(rounds)) for name in hard],
        "map": [partial(both, cell, zoo.Specimen("gru", *size)) for size in sizes],
    }
    todo = [job for part, some in jobs.items() if part in options.parts for job in some]
    todo += drawn_chains[FIRST:] if "regret" in options.parts else []
    command.run(options, todo, TABLES, summary=summary, pictures=pictures, together=PARTS)
