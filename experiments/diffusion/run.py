"""How many iterations does a diffusion sampler need in parallel, and how good are its samples?

speed       every method at several numbers of steps, sizes of latents and batches, with and without
            a coarse guess: iterations, time, predicted and measured speedup
stopped     samples after k iterations, converged or not, and with a loose tolerance, and how good
            they are
iterations  by scheduler, method and number of steps: until all states agree to rounding, to 1e-3,
            or to a tenth of the noise of their steps; nothing is timed

Sizes, steps and batches vary one at a time. Samples are handwritten digits. W1 is the Wasserstein-1
distance of a pixel, in the mean over pixels. A classifier judges the class of the samples.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

import depth
from deeppcr import Diagonal, Newton, Solution
from deeppcr.diffusion import Gaussian
from experiments.bench import command
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.engine import Case, bench, distance, solve_statistics
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.diffusion.figure import pictures
from experiments.diffusion.latent import CLASSES, Generator, Training, generator, judge
from experiments.diffusion.sampling import SCHEDULERS, Reference, Setup, schedule_of
from experiments.models import denoiser

TAKES = "6 min"
QUALITIES = {
    "W1 to sequential": "W1 to the sequential samples from the same noise",
    "same class": "share of samples with the class of the sequential sample",
    "accuracy": "share of samples with the class that was asked for",
}
FIRST = ("iterations", "ended", "ms", "speedup", "predicted speedup", "depth speedup", "error")
COLUMNS = {
    **LABELS,
    "program": BENCH["program"],
    **{key: BENCH[key] for key in FIRST},
    **QUALITIES,
    "note": BENCH["note"],
}
COUNTED = {
    "scheduler": "the scheduler, by the name of its method",
    "L": LABELS["L"],
    "program": BENCH["program"],
    "tolerance": "on what: 16 units in the last place, 1e-3 of an entry, a tenth of a step's noise",
    "iterations": BENCH["iterations"],
    "ended": BENCH["ended"],
    "error": BENCH["error"],
    "note": BENCH["note"],
}
TABLES = {"speed": COLUMNS, "stopped": COLUMNS, "iterations": COUNTED}
PARTS = tuple(TABLES)
COARSE = 10  # steps in one step of the coarse guess
WINDOW = 64  # steps of a window
DRAWN = 10  # samples of a case in the picture
# Logarithmic depth on every device; beside the Jacobians the linear solve costs little.
SOLVED = partial(Newton, linear="pcr")
ITERATIONS = {
    "dense": SOLVED(linearize="dense"),
    "diagonal": SOLVED(linearize=Diagonal(probes=0)),
    "gaussian": SOLVED(linearize=Gaussian()),
    "picard": SOLVED(linearize="identity"),
}
WINDOWED = ("gaussian", "picard")  # no derivatives, so that an iteration costs its model calls
METHODS: dict[str, Mapping[str, Any]] = {  # options of `deeppcr.diffusion.sample`
    name: {"method": dataclasses.replace(newton, window=WINDOW if name in WINDOWED else None)}
    for name, newton in ITERATIONS.items()
}
COUNTED_DRAWS = 2  # samples whose iterations are counted
MOST_COLUMNS = 6_000_000  # of Jacobians, where a count stops: after about a minute on two cores
CONVERGED = "converged"
ROUNDING, RELATIVE, NOISE = "rounding", "1e-3", "noise"
LOOSE = 0.01  # a tolerance that may suffice for samples


@dataclasses.dataclass(frozen=True)
class Scale:
    """The sizes of all cases.

    Attributes:
        sizes: of the latents; 64 are the pixels themselves.
        steps: numbers of denoising steps.
        batches: batch sizes.
        middle: size, steps and batch of the case around which they vary.
        stopped: sizes of the latents of solves that stop early.
        stopped_batch: their batch size.
        methods: names of the methods.
        counts: the numbers of iterations after which they stop, by method.
        schedulers: names of those whose iterations are counted.
        training: of the models.
        longest: seconds; a program that is predicted to take longer is not run.
        longest_loop: steps of the longest Python loop among the baselines.
    """

    sizes: tuple[int, ...] = (4, 8, 16, 64)
    steps: tuple[int, ...] = (50, 200, 1000)
    batches: tuple[int, ...] = (1, 16, 64)
    middle: tuple[int, int, int] = (16, 1000, 1)
    stopped: tuple[int, ...] = (16,)
    stopped_batch: int = 10
    methods: tuple[str, ...] = tuple(METHODS)
    counts: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("dense", (1, 2, 3)),
        ("diagonal", (1, 2, 4)),
        ("gaussian", (1, 2, 4)),
        ("picard", (1, 4, 16)),
    )
    schedulers: tuple[str, ...] = tuple(SCHEDULERS)
    training: Training = Training()
    longest: float = 30.0
    longest_loop: int = 100

    def cases(self) -> list[tuple[int, int, int]]:
        """Sizes, steps and batches of all cases, the most telling first."""
        size, steps, batch = self.middle
        varied = [(size, each, batch) for each in self.steps]
        varied += [(each, steps, batch) for each in self.sizes]
        varied += [(size, steps, each) for each in self.batches]
        return list(dict.fromkeys([self.middle, *varied]))


ACCELERATOR = Scale()
CPU = Scale(
    sizes=(16, 64),
    steps=(50, 200),
    batches=(1, 16),
    middle=(16, 200, 1),
    counts=(("dense", (1, 3)), ("diagonal", (1, 4)), ("gaussian", (1, 4)), ("picard", (4, 16))),
    schedulers=("DDIM", "DDPM", "DPM-Solver++"),
    longest=2.0,
)
QUICK = Scale(
    sizes=(16,),
    steps=(50,),
    batches=(10,),
    middle=(16, 50, 10),
    methods=("picard",),
    counts=(("dense", (1,)),),
    schedulers=("DDIM",),
    training=Training(width=256, steps=600, coder_width=128, coder_steps=300, judge_steps=150),
    longest=2.0,
    longest_loop=0,
)


class Bench:
    """The cases of all parts.

    Attributes:
        gallery: images of the first ten samples, ``[10, 64]``, by program; of the last case of
            "stopped".
    """

    def __init__(self, scale: Scale, device: depth.Device, effort: Effort):
        self.scale, self.device, self.effort = scale, device, effort
        self.gallery: dict[str, np.ndarray] = {}

    def speed(self, size: int, steps: int, batch: int) -> Iterator[Row]:
        """All methods, with and without a coarse guess."""
        samplers: dict[str, Mapping[str, Any]] = {"auto": {"method": "auto"}}
        for name in self.scale.methods:
            samplers[name] = METHODS[name]
            samplers[f"{name}, coarse guess"] = {**METHODS[name], "coarse": COARSE}
        setup = self._setup(size, steps, batch)
        case = setup.case(samplers, self.scale.longest_loop, part="speed")
        return bench(case, self.device, self.effort, self.scale.longest)

    def stopped(self, size: int) -> Iterator[Row]:
        """Solves that stop after k iterations, or at a loose tolerance, or converge."""
        newtons: dict[str, Newton] = {}
        for name, counts in self.scale.counts:
            newton = ITERATIONS[name]
            for k in counts:
                stopped = dataclasses.replace(newton, max_iterations=k, on_failure="return")
                newtons[f"{name}, {k}"] = stopped
            newtons[f"{name}, rtol {LOOSE}"] = dataclasses.replace(newton, rtol=LOOSE)
            newtons[f"{name}, converged"] = newton
        setup = self._setup(size, self.scale.middle[1], self.scale.stopped_batch)
        self.gallery = {"noise": setup.noise()[:DRAWN]}
        samplers = {name: {"method": newton} for name, newton in newtons.items()}
        samples: dict[str, list[Array]] = {name: [] for name in samplers}
        case = setup.case(samplers, self.scale.longest_loop, samples, part="stopped")
        case = dataclasses.replace(case, tolerance=math.inf)
        PROGRESS.say("training the classifier, unless it is cached")
        classify, run = judge(self.scale.training), jax.jit(setup.sequential())
        sequential, other = (
            setup.images([run(*each) for each in draws])
            for draws in (setup.arguments(), setup.arguments(100))
        )
        reference = Reference(sequential, other, setup.labels, classify)
        for row in bench(case, self.device, self.effort, self.scale.longest):
            images = sequential if row["baseline"] else setup.images(samples[row["program"]])
            self.gallery[row["program"]] = images[:DRAWN]
            yield row | reference.quality(images)

    def iterations(self, scheduler: str, steps: int) -> Iterator[Row]:
        """Every method at every tolerance, for one sample at a time: the mean of some."""
        schedule = schedule_of(scheduler)
        setup = Setup(generator(self.scale.middle[0], self.scale.training), schedule, steps, 1)
        arguments = setup.arguments()[:COUNTED_DRAWS]
        run = jax.jit(setup.sequential())
        expected = [run(*each) for each in arguments]
        tolerances: dict[str, dict[str, Any]] = {
            RELATIVE: {"rtol": 1e-3},
            NOISE: {"atol": schedule.noise_tolerance(steps, 0.1)},
            ROUNDING: {},
        }
        for name in self.scale.methods:
            loose: Row = {}
            for tolerance, given in tolerances.items():
                PROGRESS.say(f"{scheduler}, {steps} steps: {name}, {tolerance}")
                if loose.get("ended", CONVERGED) == CONVERGED:
                    found = _count(setup, name, given, arguments, expected)
                else:
                    found = {"note": f"not run: {RELATIVE} takes too long"}
                    if tolerance == ROUNDING:  # which takes no fewer
                        found |= {key: loose[key] for key in ("iterations", "ended")}
                if tolerance == RELATIVE:
                    loose = found
                yield {
                    "part": "iterations",
                    "scheduler": scheduler,
                    "L": steps,
                    "program": name,
                    "tolerance": tolerance,
                    **found,
                }

    def _setup(self, size: int, steps: int, batch: int) -> Setup:
        PROGRESS.say(f"training the model of {size} latents, unless it is cached")
        return Setup(generator(size, self.scale.training), schedule_of("DDIM"), steps, batch)


def _count(
    setup: Setup,
    name: str,
    tolerance: Mapping[str, Any],
    arguments: Sequence[tuple[Any, ...]],
    expected: Sequence[Array],
) -> Row:
    """Iterations of a method: the mean, or those of the first solve that does not converge."""
    newton = Newton(
        ITERATIONS[name].linearize,
        max_iterations=_most_iterations(setup, name),
        on_failure="return",
        **tolerance,
    )
    solve = setup.variant({**METHODS[name], "method": newton}).solve
    assert solve is not None
    found: list[Solution] = []
    for each in arguments:
        found.append(solve(*each))
        if not found[-1].converged:
            expected, found = expected[len(found) - 1 :], found[-1:]
            break
    error = max(distance(one.value, right) for one, right in zip(found, expected, strict=False))
    row = solve_statistics(found) | {"error": error}
    return row if row["ended"] == CONVERGED else row | {"note": "stopped: more would take too long"}


def _most_iterations(setup: Setup, name: str) -> int:
    """As many as the chain can take, or fewer where they would take too many derivatives."""
    table = setup.schedule.table(setup.steps)
    enough = 2 * table.steps  # in a window; without one, Newton's method knows a lower limit
    if name in WINDOWED:
        return enough
    columns = table.steps * len(table.update) * setup.generator.size
    return min(enough, max(MOST_COLUMNS // columns, 1))


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    params = denoiser.first_weights(4, 32, jax.random.key(0), CLASSES)
    setup = Setup(Generator(4, params, None), schedule_of("DDIM"), 20, 1)
    return [setup.case({"auto": {"method": "auto"}, **METHODS})]


def main(argv: list[str]) -> None:
    """Train or read the models, and measure."""
    options = command.parser("diffusion", __doc__, PARTS).parse_args(argv)
    scale = QUICK if options.quick else CPU if jax.default_backend() == "cpu" else ACCELERATOR
    device, effort = depth.at_hand(), Effort(options.repeats)
    bench = Bench(scale, device, effort)
    jobs: list[command.Job] = []
    if "speed" in options.parts:
        jobs += [partial(bench.speed, *case) for case in scale.cases()]
    if "stopped" in options.parts:  # second, for there may be no time for all
        jobs[1:1] = [partial(bench.stopped, size) for size in scale.stopped]
    if "iterations" in options.parts:
        counted = itertools.product(scale.steps, scale.schedulers)
        jobs += [partial(bench.iterations, name, steps) for steps, name in counted]
    command.run(options, jobs, TABLES, pictures=lambda rows: pictures(rows, bench.gallery))
