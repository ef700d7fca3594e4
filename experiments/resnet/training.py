"""Trainings of the residual network, compared with that by `jax.lax.scan`."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from deeppcr import Result
from experiments.bench.command import in_time, progress
from experiments.bench.engine import distance
from experiments.bench.programs import SCAN
from experiments.bench.table import Row
from experiments.bench.timing import Build, build
from experiments.models import data
from experiments.resnet import network
from experiments.resnet.network import Params, Run, Shape, State
from experiments.resnet.variants import STOPPED, VARIANTS, Statistics, by_scan

# Over sqrt(L): else the steps of many blocks add up, and the network amplifies differences.
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
        """What the rows of this task have in common."""
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
        """Index, images and classes of each step, the same for all trainings.

        Each epoch in a new order.
        """
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
        """The share of digits held back that the weights get right, by the sequential program."""
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
    for batch in progress(batches, name):
        state, value, how = built.call(state, *batch)
        losses.append(float(value))
        statistics.append(jax.device_get(how))
        clocks.append(time.perf_counter())
        if clocks[-1] - clocks[0] > limit:
            break
    each: list[Any] = [np.array(values) for values in zip(*statistics, strict=True)]
    return Training(np.array(losses), Statistics(*each), state.params, np.diff(clocks), built)


class Trainings:
    """Trainings from the same weights on the same batches, compared with the first one."""

    def __init__(self, task: Task, limit: float):
        self.task, self.limit = task, limit
        self.reference: Training | None = None

    def exact(self, names: tuple[str, ...], seconds: float | None) -> Iterator[Row]:
        """A row for `jax.lax.scan` and for every variant."""
        runs = {SCAN: by_scan(lax.scan)} | {name: VARIANTS[name].run for name in names}
        for name, run in in_time(runs.items(), seconds):
            yield {"part": "training", **self.task.labels, "program": name, **self._row(name, run)}

    def approximate(
        self, names: tuple[str, ...], stops: tuple[int, ...], seconds: float | None
    ) -> Iterator[Row]:
        """A row for every variant that is stopped after k iterations."""
        runs = [(name, k) for name in names if name in STOPPED for k in stops]
        if self.reference is None:
            self._row(SCAN, by_scan(lax.scan))
        for variant, k in in_time(runs, seconds):
            name = f"{variant}, approximate: {k} iteration{'s' * (k > 1)}"
            row = {
                "part": "approximate",
                **self.task.labels,
                "program": name,
                "variant": variant,
                "k": k,
            }
            yield {**row, **self._row(name, VARIANTS[variant].stopped(k).run)}

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
        """Of loss and gradient, where `jax.lax.scan` has ended up, on the first batch."""
        state = self.task.initial()._replace(params=first.params)
        batch = self.task.batches()[0]
        (after, value, _), (expected, right, _) = jax.device_get(
            [one.build.call(state, *batch) for one in (found, first)]
        )
        # Adam's mean starts at nothing, so after a step it is a tenth of the gradient.
        return {
            "loss error": abs(float(value) - float(right)),
            "gradient error": distance(after.mean, expected.mean),
        }
