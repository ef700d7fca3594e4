"""Trainings of the residual network, compared with the one by `jax.lax.scan`."""

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

from deeppcr import Result
from experiments.bench.command import Job
from experiments.bench.engine import distance
from experiments.bench.programs import SCAN
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Build, build
from experiments.models import data
from experiments.resnet import network
from experiments.resnet.network import Params, Run, Shape, State
from experiments.resnet.variants import STOPPED, VARIANTS, Statistics, by_scan

# Over sqrt(L): otherwise the steps of many blocks add up and amplify differences.
RATE = 0.08


@dataclass(frozen=True)
class Task:
    """Digits to learn with a network of some shape."""

    name: str
    shape: Shape
    batch: int
    steps: int

    @cached_property
    def split(self) -> data.Split:
        """The digits."""
        return data.mnist() if self.name == "mnist" else data.digits()

    @property
    def labels(self) -> Row:
        """The cells that all rows of the task share."""
        shape = self.shape
        return {
            "data": self.name,
            "activation": shape.activation,
            "L": shape.blocks,
            "w": shape.width,
            "batch": self.batch,
        }

    def initial(self) -> State:
        """The weights that every training starts from."""
        return network.initial(self.shape, self.split.train_x.shape[1])

    def batches(self) -> list[tuple[np.int32, np.ndarray, np.ndarray]]:
        """Index, images and classes of each step, the same for all trainings."""
        chosen = data.batches(len(self.split.train_y), self.steps, self.batch, seed=1)
        return [
            (np.int32(k), self.split.train_x[rows], self.split.train_y[rows])
            for k, rows in enumerate(chosen)
        ]

    def step(
        self, run: Run, convolve: network.Convolve = network.products
    ) -> Callable[..., tuple[State, Array, Statistics]]:
        """A step of the training."""
        return network.train_step(
            run, self.shape, RATE / math.sqrt(self.shape.blocks), self.steps, convolve
        )

    def accuracy(self, params: Params) -> float:
        """Accuracy on held-out digits, by the sequential program."""
        return float(self._right(params, self.split.test_x, self.split.test_y))

    @cached_property
    def _right(self) -> Callable[..., Array]:
        return jax.jit(partial(network.accuracy, by_scan(lax.scan), self.shape))


@dataclass(frozen=True)
class Training:
    """One training.

    Attributes:
        losses: before each step.
        statistics: of each step, as arrays over the steps.
        params: in the end.
        seconds: of each step.
        build: the compiled step, and what that took.
    """

    losses: np.ndarray
    statistics: Statistics
    params: Params
    seconds: np.ndarray
    build: Build


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
    each: list[Any] = [np.array(values) for values in zip(*statistics, strict=True)]
    return Training(np.array(losses), Statistics(*each), state.params, np.diff(clocks), built)


class Trainings:
    """Trainings from the same weights on the same batches, compared with the first."""

    def __init__(self, task: Task, limit: float):
        self.task, self.limit = task, limit
        self.reference: Training | None = None

    def exact(self, names: Sequence[str]) -> list[Job]:
        """A case for `jax.lax.scan` and for every variant, of a row each."""
        runs = {SCAN: by_scan(lax.scan)} | {name: VARIANTS[name].run for name in names}
        labels = {"part": "training", **self.task.labels}
        return [partial(self._rows, labels, name, run) for name, run in runs.items()]

    def approximate(self, names: Sequence[str], stops: Sequence[int]) -> list[Job]:
        """A case for every variant that is stopped after k iterations, of a row each."""
        found: list[Job] = []
        for variant, k in product([name for name in names if name in STOPPED], stops):
            name = f"{variant}, approximate: {k} iteration{'s' * (k > 1)}"
            labels = {"part": "approximate", **self.task.labels, "variant": variant, "k": k}
            found.append(partial(self._rows, labels, name, VARIANTS[variant].stopped(k).run))
        return found

    def _rows(self, labels: Row, name: str, run: Run) -> Iterator[Row]:
        if self.reference is None and name != SCAN:
            self._row(SCAN, by_scan(lax.scan))
        yield {**labels, "program": name, **self._row(name, run)}

    def _row(self, name: str, run: Run) -> Row:
        found = train(name, run, self.task, self.limit)
        first = self.reference = self.reference or found
        steps = len(found.losses)
        both = min(steps, len(first.losses))
        row = {
            "steps": steps,
            "last loss": float(found.losses[-min(20, steps) :].mean()),
            "losses differ": float(np.abs(found.losses[:both] - first.losses[:both]).max()),
            "iterations": float(found.statistics.iterations.mean()),
            "most iterations": int(found.statistics.iterations.max()),
            "residual": float(found.statistics.residual.max()),
            "ended": Result(int(found.statistics.result.max())).name.lower().replace("_", " "),
            "ms": 1e3 * float(np.median(found.seconds)),
            "compile s": found.build.lower + found.build.compile,
            **self._errors(found, first),
            "losses": found.losses.tolist(),
        }
        if steps == self.task.steps:
            row["accuracy"] = self.task.accuracy(found.params)
        if found.build.temporary_bytes is not None:
            row["temp MB"] = found.build.temporary_bytes / 1e6
        return row

    def _errors(self, found: Training, first: Training) -> Row:
        """Errors of loss and gradient on the first batch, at the final weights of lax.scan."""
        state = self.task.initial()._replace(params=first.params)
        batch = self.task.batches()[0]
        (after, value, _), (expected, right, _) = jax.device_get(
            [one.build.call(state, *batch) for one in (found, first)]
        )
        # Adam's mean starts at zero, so after a step it is a tenth of the gradient.
        return {
            "loss error": abs(float(value) - float(right)),
            "gradient error": distance(after.mean, expected.mean),
        }
