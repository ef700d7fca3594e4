"""What holds on this device, and what should change in the rule?

The first command to run on a device.

constants  what `depth`'s model of the device and the rule say of a call, a kernel, a trip of a loop
           and memory, beside what is measured
programs   `experiments headline`, in a process of its own: what the default runs, what is fastest,
           and how much longer the default takes
kernels    on an NVIDIA GPU, Newton's method as one kernel beside XLA's programs of it
tests      those of kernels, and of programs that are other ones on an accelerator
rules      a verdict on each rule: keep, or what was faster, how much and how often

On an accelerator rows go to device.jsonl in experiments/results/<device>/jax-<version>, those of
programs also to headline.jsonl; on a CPU, which has other rules, and with --quick, to
build/pictures/<device>.
"""

import dataclasses
import os
import time
from collections.abc import Iterator
from functools import partial
from itertools import product

import jax
from jax import lax

import depth
from deeppcr import Newton
from deeppcr.lower import obstacle
from deeppcr.lower.variants import platform
from experiments import headline
from experiments.bench import command, results
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.programs import SCAN, Setting
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row, wrapped
from experiments.bench.timing import Effort
from experiments.device import constants, tests, verdict
from experiments.gradients.network import Network, Size
from experiments.suite import attempt
from experiments.suite import command as line

TAKES = "9 min"
SECONDS, QUICK_SECONDS = 500.0, 60.0  # for all of it; what starts later does not take long
WEIGHTS = {
    "constants": 2,
    "programs": 9,
    "kernels": 2,
    "tests": 4,
}  # shares of the time that is left, in order
HEADLINE = "headline"
GRUS, STEPS = (4, 1), 10_000  # units and steps of those that are solved in one kernel
TABLES: dict[str, dict[str, str]] = {
    "constants": {
        "constant": "what is measured, and which constant of the model it is for",
        "modelled ns": "nanoseconds by depth's model of the device, or by the rule",
        "measured ns": "nanoseconds measured",
        "measured / modelled": "the second over the first",
        "note": BENCH["note"],
    },
    "programs": {
        "title": "which program, in which direction",
        "L": BENCH["L"],
        "runs": "what the default runs",
        "default ms": "its time, in milliseconds (median)",
        "fastest": "the fastest program with the same result",
        "fastest ms": "its time",
        "regret": "times as long as the fastest",
        "wrong": "programs with another result",
        "note": BENCH["note"],
    },
    "kernels": {
        key: BENCH[key] for key in (*LABELS, "program", "ms", "iterations", "error", "note")
    },
    "tests": {
        "test": "a test that fails; all: how many there are",
        **{key: f"how many have {key}" for key in ("passed", "failed")},
        "skipped": "how many are skipped",
        "outcome": "how it ended",
        "reason": "why",
    },
    "rules": {
        "rule": "a rule of deeppcr.choose, or a constant",
        "verdict": "whether the measured rows support it, or what to change",
    },
}


samples = headline.samples  # see `experiments.bench.fresh`


class Device:
    """The parts, one after another, each with its share of the time that is left."""

    def __init__(self, options: command.argparse.Namespace):
        self.options, self.rows = options, list[Row]()
        self.end = time.monotonic() + options.seconds
        self.headline = list[Row]()  # all of its rows, which its own file has

    def share(self, part: str) -> float:
        """Seconds for a part."""
        names = [*WEIGHTS]
        share = WEIGHTS[part] / sum(WEIGHTS[name] for name in names[names.index(part) :])
        return max(share * (self.end - time.monotonic()), 1.0)

    def part(self, name: str) -> Iterator[Row]:
        """The rows of a part."""
        for row in getattr(self, f"of_{name}")():
            self.rows.append({"part": name, **row})
            yield self.rows[-1]

    def of_constants(self) -> Iterator[Row]:
        """See `constants.rows`."""
        effort = Effort(self.options.repeats)
        given = depth.at_hand(), platform(), self.options.quick, self.share("constants"), effort
        return constants.rows(*given)

    def of_programs(self) -> Iterator[Row]:
        """What follows from the rows that a process of its own measures."""
        begin = results.environment()["time"]
        seconds, out = self.share("programs"), self.options.out
        given = line(HEADLINE, seconds, self.options.quick, out and out.absolute())
        ended = attempt(given, seconds)
        path = results.path_of(HEADLINE, out)
        anew = (
            [rows for head, rows in results.groups(path) if head["time"] >= begin]
            if path.exists()
            else []
        )
        self.headline = [row for rows in anew for row in rows]
        yield from verdict.programs(self.headline)
        if ended != "done":
            yield {"title": f"{HEADLINE}: {ended}"}

    def of_kernels(self) -> Iterator[Row]:
        """Rows of `bench` for solves that have a kernel."""
        end, effort = time.monotonic() + self.share("kernels"), Effort(self.options.repeats)
        if platform() != "cuda" or obstacle():
            return
        for units, direction in product(GRUS, ("forward", "gradient")):
            if time.monotonic() < end:
                yield from bench(solves(units, direction), depth.at_hand(), effort)

    def of_tests(self) -> Iterator[Row]:
        """See `tests.rows`."""
        paths = tests.QUICK if self.options.quick else tests.TESTS
        return tests.rows(paths, self.share("tests"))

    def of_rules(self) -> Iterator[Row]:
        """The verdicts, whatever the other parts have come to."""
        found = {name: [row for row in self.rows if row["part"] == name] for name in WEIGHTS}
        yield from verdict.rules(self.headline, found["programs"], found["constants"], platform())


def solves(units: int, direction: str) -> Case:
    """A GRU by Newton's method, by XLA's programs and in one kernel."""
    network = Network("gru", units)
    make = network.states if direction == "forward" else network.gradient
    settings = {"newton": Setting(Newton()), "newton, fused": Setting(Newton(fused=True))}
    return dataclasses.replace(
        Size(network, STEPS).case(direction),
        baselines={SCAN: make(lax.scan)},
        variants={
            name: Variant(make(setting.scan), solve=network.solve(setting.method))
            for name, setting in settings.items()
        },
    )


def main(argv: list[str]) -> None:
    """Run all parts."""
    arguments = command.parser("device", __doc__)
    options = arguments.parse_args(argv)
    # Read when jax starts: processes that run beside this one, on the same device, need memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.seconds is None:
        options.seconds = QUICK_SECONDS if options.quick else SECONDS
    options.keep = options.keep or "device"
    if not options.out and (options.quick or jax.default_backend() == "cpu"):
        options.out = command.SCRATCH
    kind = jax.devices()[0].device_kind
    said = f"On {kind}, for which programs are those of {platform()}. {kernels()}"
    PROGRESS.print(wrapped(said) + "\n")
    device = Device(options)
    jobs = [partial(device.part, name) for name in (*WEIGHTS, "rules")]
    seconds, options.seconds = (
        options.seconds,
        None,
    )  # each part has its share, the verdict its turn
    PROGRESS.reset("measuring", seconds=seconds)
    command.run(options, jobs, TABLES)


def kernels() -> str:
    """Whether loops run as kernels here."""
    if platform() != "cuda":
        return "Loops run as kernels on an NVIDIA GPU alone: rules for those are not measured here."
    return (
        f"Loops run as no kernels: {found}." if (found := obstacle()) else "Loops run as kernels."
    )
