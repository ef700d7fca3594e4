"""Diffusion sampling in parallel: handwritten digits by Newton's method, Picard's and lax.scan.

speed       every method at several numbers of steps, sizes of latents and batches, with and without
            a coarse guess: iterations, time, predicted and realised speedup, and how good the
            samples are
stopped     the samples after k iterations, converged or not, and with a loose tolerance: how many
            until nobody could tell, and the time until then

Sizes, steps and batches are varied one at a time; --all takes every combination. W1 is the
Wasserstein-1 distance of a pixel, averaged over pixels: to the sequential samples of the same
noise, and to the data. A classifier tells whether samples have the class of the sequential ones
("same class") and that of the digit that was wanted ("accuracy"), and how sure it is. An error is
relative to the largest entry. "Nobody could tell": W1 to the sequential samples is a tenth of what
it is to those of other noise.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import partial

import jax
import numpy as np
from jax import Array

import depth
from deeppcr import Diagonal, Newton
from deeppcr.diffusion import Schedule
from experiments.bench import command
from experiments.bench.engine import TOLERANCE, Case, bench
from experiments.bench.programs import baselines
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.diffusion.figure import draw
from experiments.diffusion.latent import Training, generator, judge
from experiments.diffusion.sampling import SCHEDULERS, Reference, Sampler, Setup, schedule_of
from experiments.models import data

PARTS = ("speed", "stopped")
COARSE = 10  # steps for which the coarse sampler holds the model's output
WINDOW = 64  # steps that Picard iteration works on at once
DRAWN = 10  # samples of a case
# log L deep on every device; next to the Jacobians the linear solve costs little
SOLVED = partial(Newton, linear="pcr")
ITERATIONS = {
    "dense": SOLVED(linearize="dense"),
    "diagonal": SOLVED(linearize=Diagonal(probes=0)),
    "picard": SOLVED(linearize="identity"),
}
METHODS = {name: Sampler(newton) for name, newton in ITERATIONS.items()}
METHODS["picard"] = Sampler(ITERATIONS["picard"], window=WINDOW)
TIMES = ("iterations", "ended", "ms", "speedup", "predicted speedup", "depth speedup", "error")
DISTANCE, SCATTER = "W1 to sequential", "W1, other noise"
LOOSE = 0.01  # a residual that users of a sampler may be content with
# Of the distance between two sets of sequential samples: what is closer is lost in the scatter of
# sampling.
CLOSE = 0.1
QUALITY = (DISTANCE, "W1 to data", "same class", "accuracy", "confidence")


@dataclasses.dataclass(frozen=True)
class Scale:
    """What is run.

    Attributes:
        sizes: of the latents; 64 are the pixels themselves.
        steps: numbers of denoising steps.
        batches: samples at once.
        middle: size, steps and batch of the case around which they are varied.
        stopped: sizes at which iterations are stopped early.
        stopped_batch: samples at once, there.
        methods: names of those that are compared.
        counts: after how many iterations they are stopped, by method.
        training: of the models.
        longest: seconds; what is predicted to take longer is not run.
        longest_loop: steps that are unrolled altogether: each is compiled.
    """

    sizes: tuple[int, ...] = (4, 8, 16, 64)
    steps: tuple[int, ...] = (50, 200, 1000)
    batches: tuple[int, ...] = (1, 16, 64)
    middle: tuple[int, int, int] = (16, 1000, 1)
    stopped: tuple[int, ...] = (4, 64, 16)
    stopped_batch: int = 64
    methods: tuple[str, ...] = tuple(METHODS)
    counts: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("dense", (1, 2, 3, 4)),
        ("diagonal", (1, 2, 4, 8)),
        ("picard", (1, 4, 16, 64)),
    )
    training: Training = Training()
    longest: float = 30.0
    longest_loop: int = 100

    def cases(self, everything: bool) -> list[tuple[int, int, int]]:
        """Sizes, steps and batches of all cases, the most telling first."""
        if everything:
            return list(itertools.product(self.sizes, self.steps, self.batches))
        size, steps, batch = self.middle
        varied = [(size, each, batch) for each in self.steps]
        varied += [(each, steps, batch) for each in self.sizes]
        varied += [(size, steps, each) for each in self.batches]
        return list(dict.fromkeys([self.middle, *varied]))


ACCELERATOR = Scale()
CPU = Scale(
    middle=(16, 200, 1),
    stopped=(16,),
    stopped_batch=10,
    counts=(("dense", (1, 2, 3)), ("diagonal", (1, 2, 4)), ("picard", (1, 4, 16))),
    longest=2.0,
)
QUICK = Scale(
    sizes=(16,),
    steps=(50,),
    batches=(10,),
    middle=(16, 50, 10),
    stopped=(16,),
    stopped_batch=10,
    methods=("dense", "picard"),
    counts=(("dense", (1, 2)),),
    training=Training(width=256, steps=800, coder_width=128, coder_steps=500, judge_steps=150),
    longest=2.0,
    longest_loop=0,
)


class Bench:
    """What all cases share, and the pictures that come of them.

    Attributes:
        gallery: images of the first ten samples, ``[10, 64]``, by program; of the last case that
            was stopped early.
    """

    def __init__(self, scale: Scale, schedule: Schedule, device: depth.Device, effort: Effort):
        self.scale, self.schedule, self.device, self.effort = scale, schedule, device, effort
        self.judge, self.data = judge(scale.training), data.pixels()[0]
        self.gallery: dict[str, np.ndarray] = {}

    def speed(self, size: int, steps: int, batch: int) -> Iterator[Row]:
        """All methods, with and without a coarse guess; Picard's iteration in a window."""
        samplers = {"auto": Sampler("auto")}
        for name in self.scale.methods:
            samplers[name] = METHODS[name]
            guessed = dataclasses.replace(METHODS[name], coarse=COARSE)
            samplers[f"{name}, coarse guess"] = guessed
        setup = self._setup(size, steps, batch)
        return (row for row, _ in self._rows("speed", setup, samplers, TOLERANCE))

    def stopped(self, size: int) -> Iterator[Row]:
        """Iterations stopped early, by number and by a loose tolerance, and those that were not."""
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
        samplers = {name: Sampler(newton) for name, newton in newtons.items()}
        for row, images in self._rows("stopped", setup, samplers, math.inf):
            self.gallery[row["program"]] = images[:DRAWN]
            yield row

    def _setup(self, size: int, steps: int, batch: int) -> Setup:
        return Setup(generator(size, self.scale.training), self.schedule, steps, batch)

    def _rows(
        self, part: str, setup: Setup, samplers: dict[str, Sampler], tolerance: float
    ) -> Iterator[tuple[Row, np.ndarray]]:
        """The row of each program with its images, ``[n, 64]``; n = 0 where it was not run."""
        arguments, run = setup.arguments(), jax.jit(setup.sequential())
        sequential, other = (
            setup.images([run(*each) for each in draws])
            for draws in (arguments, setup.arguments(100))
        )
        reference = Reference(sequential, other, self.data, setup.labels, self.judge)
        loops = baselines(setup.sequential, setup.steps, self.scale.longest_loop)
        samples: dict[str, list[Array]] = {name: [] for name in samplers}
        variants = {name: setup.variant(one, samples[name]) for name, one in samplers.items()}
        case = Case({"part": part} | setup.named, arguments, loops, variants, tolerance)
        for row in bench(case, self.device, self.effort, self.scale.longest):
            images = sequential if row["baseline"] else setup.images(samples[row["program"]])
            yield row | reference.quality(images), images


def report(rows: list[Row]) -> str:
    """A table of one case, below a line that says which.

    Where iterations were stopped, how many would have done.
    """
    first = rows[0]
    size = f"{first['w']} numbers a sample, {first['L']} steps, batch {first['batch']}"
    columns = ("program", *TIMES, *QUALITY, "note")
    cells = [{name: row[name] for name in columns if name in row} for row in rows]
    lines = [f"{first['part']}: {first['kind']}, {size}", show(cells)]
    if first["part"] == "stopped":
        enough = ", ".join(f"{name} {number}" for name, number in sufficient(rows).items())
        limit = f"W1 below {CLOSE * first[SCATTER]:.2g}"
        lines.append(f"iterations until nobody could tell ({limit}): {enough or 'more'}")
    return "\n".join(lines)


def sufficient(rows: list[Row]) -> dict[str, int]:
    """By method, after how many iterations samples are as good as the sequential ones.

    See `CLOSE`.
    """
    found: dict[str, int] = {}
    ours = [row for row in rows if not row["baseline"]]
    for row in sorted(ours, key=lambda row: row.get("iterations", 0)):
        if DISTANCE in row and row[DISTANCE] <= CLOSE * row[SCATTER]:
            found.setdefault(row["program"].partition(",")[0], row["iterations"])
    return found


def main(argv: list[str]) -> None:
    """Train or read the models, measure, print a table for each case, keep and draw."""
    arguments = command.parser("diffusion", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    names = list(SCHEDULERS)
    add("--scheduler", choices=names, default="DDIM", help="whose steps are taken (%(default)s)")
    add("--all", action="store_true", help="every combination of sizes, steps and batches")
    options = arguments.parse_args(argv)
    scale = QUICK if options.quick else CPU if jax.default_backend() == "cpu" else ACCELERATOR
    device, effort = command.model(options), Effort(options.repeats)
    bench = Bench(scale, schedule_of(options.scheduler), device, effort)
    jobs: list[command.Job] = []
    if "speed" in options.parts:
        jobs += [partial(bench.speed, *case) for case in scale.cases(options.all)]
    if "stopped" in options.parts:  # after the first of them, for there may be no time for all
        jobs[1:1] = [partial(bench.stopped, size) for size in scale.stopped]
    kept = command.run(options, "diffusion", jobs, report)
    command.conclude(options, kept, partial(draw, kept.rows, bench.gallery))
