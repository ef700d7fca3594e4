"""Does a deep residual network train faster, and do the losses agree?

times        a training step (forward, backward, Adam) at several depths, in every variant, on
             weights that have learnt a little
training     trainings by every variant, from the same weights on the same batches: losses, which
             have to agree, and accuracy on held-out digits; each for as many steps as its time
             allows
approximate  trainings with at most k Newton iterations, converged or not, as DeepPCR (Danieli et
             al., NeurIPS 2023) trains: another network, so its loss, gradient and accuracy are
             compared with those of the sequential program; not with --quick

A variant is named "forward / backward" by its linearisation: "dense", "diagonal", "identity";
"sequential" runs block after block. Gradients are exact in each of them, but for approximate
states. Accuracy is evaluated by the sequential program.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import jax
import numpy as np
from jax import Array, lax

import deeppcr
import depth
from deeppcr import Result
from experiments.bench import command
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.engine import Case, Variant, bench, distance
from experiments.bench.plots import Figures, curves, lines, styled
from experiments.bench.programs import SCAN, baselines
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort, build
from experiments.models import data
from experiments.resnet import network
from experiments.resnet.network import STOPPED, VARIANTS, Run, Setting, Shape, State, by_scan

RATE = 0.08  # over sqrt(L): else the steps of many blocks add up and amplify differences
PARTS = ("times", "training", "approximate")
BATCH = 16  # digits in a step
WARM = 50  # training steps before a step is timed
LONGEST_LOOP = 64  # blocks of a Python loop
TAKES = "2 min"
CASE = {"data": "digits to learn", "activation": "activation of a block", **LABELS}
TRAINING = {
    **CASE,
    "program": BENCH["program"],
    "steps": "training steps",
    "last loss": "mean loss of the last 20 steps",
    "losses differ": "largest difference from the losses of lax.scan",
    "gradient error": "of one step at the weights of lax.scan, relative to the largest entry",
    "accuracy": "accuracy on held-out digits",
    "iterations": BENCH["iterations"],
    "ended": BENCH["ended"],
    "ms": BENCH["ms"],
    "compile s": BENCH["compile s"],
    "note": BENCH["note"],
}
TABLES = {"times": CASE | BENCH, "training": TRAINING, "approximate": TRAINING}


@dataclass(frozen=True)
class Scale:
    """The sizes of all parts.

    Attributes:
        lengths: numbers of blocks of networks that are timed, the most important first.
        length: number of blocks of the network that is trained.
        steps: training steps.
        limit: seconds after which a training stops.
        longest: seconds; a step that is predicted to take longer is not run.
        stops: k, the most iterations of the approximate trainings.
        variants: names of the variants.
        trained: names of those that train.
    """

    lengths: tuple[int, ...]
    length: int
    steps: int
    limit: float
    longest: float
    stops: tuple[int, ...]
    variants: tuple[str, ...] = tuple(VARIANTS)
    trained: tuple[str, ...] = tuple(VARIANTS)


QUICK = Scale((80,), 80, 30, 5.0, 0.2, (), FEW := ("auto", "identity / identity"), FEW)
ON_CPU = Scale((64, 1024), 64, 100, 5.0, 0.3, (1, 3))
ON_ACCELERATOR = Scale((1024, 256), 1024, 300, 20.0, 5.0, (), trained=("auto",))


@dataclass(frozen=True)
class Task:
    """Digits to learn with a network of some shape."""

    shape: Shape
    batch: int
    steps: int

    @cached_property
    def split(self) -> data.Split:
        """The digits."""
        return data.digits()

    @property
    def labels(self) -> Row:
        """The cells that all rows of the task share."""
        row: Row = {"data": "digits", "activation": "tanh", "L": self.shape.blocks}
        return row | {"w": self.shape.width, "batch": self.batch}

    def initial(self) -> State:
        """The weights that every training starts from."""
        return network.initial(self.shape, self.split.train_x.shape[1])

    def batches(self) -> list[tuple[np.int32, np.ndarray, np.ndarray]]:
        """Index, images and classes of each step, the same for all trainings."""
        chosen = data.batches(len(self.split.train_y), self.steps, self.batch, seed=1)
        x, y = self.split.train_x, self.split.train_y
        return [(np.int32(k), x[rows], y[rows]) for k, rows in enumerate(chosen)]

    def step(self, run: Run) -> Callable[..., tuple[State, Array, network.Statistics]]:
        """A step of the training."""
        rate = RATE / math.sqrt(self.shape.blocks)
        return network.train_step(run, self.shape, rate, self.steps)

    def accuracy(self, params: Any) -> float:
        """Accuracy on held-out digits, by the sequential program."""
        run = jax.jit(partial(network.scores, by_scan(lax.scan), self.shape))
        scores, _ = run(params, self.split.test_x)
        return float(np.mean(np.asarray(scores).argmax(axis=1) == self.split.test_y))


def case(task: Task, names: Sequence[str]) -> Case:
    """A training step, sequential and in the variants ``names``."""

    def program(run: Run, setting: Setting | None = None) -> Variant:
        step = task.step(run)
        solve: Any = None
        if setting and setting.method != "sequential":
            solve = jax.jit(partial(_solution, task.shape, setting))
        return Variant(lambda *arguments: step(*arguments)[:2], solve=solve)

    length = task.shape.blocks
    sequential = baselines(lambda scan: program(by_scan(scan)), length, LONGEST_LOOP)
    ours = {name: program(VARIANTS[name].run, VARIANTS[name]) for name in names}
    labels = {"part": "times", **task.labels, "direction": "training step"}
    return Case(labels, _learnt(task), sequential, ours)


def _solution(
    shape: Shape, setting: Setting, state: State, index: Array, x: Array, y: Array
) -> deeppcr.Solution:
    z = network.begin(shape, state.params, x)
    return setting.solve(network.block(shape), state.params["blocks"], z)


def _learnt(task: Task) -> list[tuple[Any, ...]]:
    """Arguments of a step: after half of `WARM` training steps, and after all of them."""
    step, state = jax.jit(task.step(by_scan(lax.scan))), task.initial()
    found, batches = [], task.batches()[: WARM + 1]
    for k, batch in enumerate(batches):
        PROGRESS.say(f"training, step {k + 1} of {len(batches)}")
        if k in (len(batches) // 2, len(batches) - 1):
            found.append((state, *batch))
        state, _, _ = step(state, *batch)
    return found


Training = tuple[Row, Any, Callable[..., Any]]  # its row, the weights in the end, and its step


def train(name: str, run: Run, task: Task, limit: float) -> Training:
    """Train for as many steps as fit into ``limit`` seconds."""
    state, batches = task.initial(), task.batches()
    built = build(task.step(run), state, *batches[0])
    jax.block_until_ready(built.call(state, *batches[0]))  # the first call is not timed
    losses, statistics, clocks = [], [], [time.perf_counter()]
    for batch in PROGRESS.steps(f"training by {name}", batches, len(batches)):
        state, value, how = built.call(state, *batch)
        losses.append(float(value))
        statistics.append(jax.device_get(how))
        clocks.append(time.perf_counter())
        if clocks[-1] - clocks[0] > limit:
            break
    iterations, results = (np.array(each) for each in zip(*statistics, strict=True))
    row = {
        "steps": len(losses),
        "last loss": float(np.mean(losses[-20:])),
        "iterations": float(iterations.mean()),
        "ended": Result(int(results.max())).name.lower().replace("_", " "),
        "ms": 1e3 * float(np.median(np.diff(clocks))),
        "compile s": built.lower + built.compile,
        "losses": losses,
    }
    if len(losses) == task.steps:
        row["accuracy"] = task.accuracy(state.params)
    else:
        row["note"] = f"stopped after {limit:g} s, before step {len(losses) + 1} of {task.steps}"
    return row, state.params, built.call


@dataclass(frozen=True)
class Trainings:
    """Trainings from the same weights on the same batches, compared with that of `jax.lax.scan`."""

    task: Task
    limit: float

    @cached_property
    def reference(self) -> Training:
        """By `jax.lax.scan`."""
        return train(SCAN, by_scan(lax.scan), self.task, self.limit)

    def rows(self, part: str, name: str, run: Run, **labels: Any) -> Iterator[Row]:
        """One row: a training, and its errors on the first batch at the reference's weights."""
        first, weights, reference = self.reference
        found, call = first, reference
        if name != SCAN:
            found, _, call = train(name, run, self.task, self.limit)
        losses = zip(found["losses"], first["losses"], strict=False)
        row = {"part": part, **self.task.labels, **labels, "program": name, **found}
        row["losses differ"] = max(abs(loss - right) for loss, right in losses)
        state, batch = self.task.initial()._replace(params=weights), self.task.batches()[0]
        # Adam's mean starts at zero, so after a step it is a tenth of the gradient.
        after, expected = (jax.device_get(f(state, *batch)[0].mean) for f in (call, reference))
        yield row | {"gradient error": distance(after, expected)}

    def jobs(self, names: Sequence[str], stops: Sequence[int]) -> list[tuple[str, command.Job]]:
        """A case for every training: by all variants, and of some stopped after k iterations."""
        runs = {SCAN: by_scan(lax.scan)} | {name: VARIANTS[name].run for name in names}
        found: list[tuple[str, command.Job]] = [
            ("training", partial(self.rows, "training", *each)) for each in runs.items()
        ]
        for variant, k in product([name for name in names if name in STOPPED], stops):
            name = f"{variant}, approximate: {k} iteration{'s' * (k > 1)}"
            run = VARIANTS[variant].stopped(k).run
            labels: Any = {"variant": variant, "k": k}
            found.append(("approximate", partial(self.rows, "approximate", name, run, **labels)))
        return found


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Times of a training step by L; losses."""
    times, training = ([row for row in rows if row["part"] == part] for part in PARTS[:2])
    found: Figures = {}
    blocks = "residual blocks L"
    keys = {"measured": "ms", "predicted": "predicted ms"}
    panels = {
        said: (times, key, "time of a training step [ms]")
        for said, key in keys.items()
        if any(key in row for row in times)
    }
    if panels:
        title = f"Training step of a residual network of {times[0]['w']} units (down is better)"
        found["times"] = lines(title, panels, "L", blocks, share=True, height=4.6)
    if training:
        title = f"Training through {training[0]['L']} residual blocks: the same by every program"
        found["losses"] = curves(title, {"losses lie on each other": training})
    return found


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    return [case(Task(Shape(16), BATCH, 1), ("auto", "identity / identity"))]


def main(argv: list[str]) -> None:
    """Measure and train."""
    options = command.parser("resnet", __doc__, PARTS).parse_args(argv)
    scale = QUICK if options.quick else ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR

    def task(length: int) -> Task:
        return Task(Shape(length), BATCH, scale.steps)

    device, effort = depth.at_hand(), Effort(options.repeats)

    def times(task: Task) -> Iterator[Row]:
        return bench(case(task, scale.variants), device, effort, scale.longest)

    jobs: list[tuple[str, command.Job]] = [
        ("times", partial(times, task(length))) for length in scale.lengths
    ]
    jobs[1:1] = Trainings(task(scale.length), scale.limit).jobs(scale.trained, scale.stops)
    chosen = [job for part, job in jobs if part in options.parts]
    together = PARTS[1:]
    command.run(options, chosen, TABLES, pictures=pictures, together=together)
