"""A GRU with an affine map of its state, trained on a task by every variant of the recurrence.

All start from the same weights and see the same batches, so the losses have to agree for as long as
training does not amplify rounding errors: a GRU that has learnt to remember does. A last training
shows for how long: by `jax.lax.scan` from weights that differ in the last digits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.bench.programs import SCAN, Scan
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.gradients.network import PARTS, Network
from experiments.gradients.tasks import Task
from experiments.models import cells
from experiments.models.data import batches
from experiments.models.training import adam

TRAINED = PARTS["grid"]["forward"]  # beside jax.lax.scan
NUDGED = "lax.scan, nudged"
NUDGE = 2.0**-22  # relative change of the first weights: two units in the last place
ALIKE = 1e-3  # losses that differ by less agree
RATE = 1e-2  # decays to zero, as half a cosine
LARGEST = 1.0  # norm of a gradient; larger ones are clipped

Training = tuple[Any, Any, Any, Array]
"""Weights, the two moments of their gradients, and the number of steps so far."""


def by_time(x: np.ndarray) -> Array:
    """Inputs ``[T, batch, features]`` from series ``[batch, T, features]``."""
    return jnp.asarray(np.swapaxes(x, 0, 1))


@dataclass(frozen=True)
class Learner:
    """A GRU that learns a task.

    Attributes:
        task: the data.
        steps: of the training.
        batch: series in a step.
    """

    task: Task
    steps: int
    batch: int = 50

    @property
    def network(self) -> Network:
        """The recurrent part."""
        return Network("gru", self.task.units)

    def first(self, nudge: float = 0.0) -> Training:
        """Random weights of the cell, and zeros for the map: all classes are equally likely."""
        zero = np.zeros((self.task.units + 1, self.task.classes), np.float32)
        cell = cells.gru_weights(self.task.units, self.task.train_x.shape[-1])
        weights: Any = {"cell": cell, "out": {"W": zero[1:], "b": zero[0]}}
        weights = jax.tree.map(lambda w: np.asarray(w) * np.float32(1 + nudge), weights)
        zeros = jax.tree.map(np.zeros_like, weights)
        return weights, zeros, zeros, jnp.int32(0)

    def batches(self) -> Iterator[tuple[Array, Array, Array]]:
        """Inputs, classes and weights of times of each step, the same for all variants."""
        task = self.task
        x, y = task.train_x, task.train_y
        for k, chosen in enumerate(batches(len(x), self.steps, min(self.batch, len(x)), seed=0)):
            weights = task.weights(k / self.steps)
            yield by_time(x[chosen]), jnp.asarray(y[chosen]), jnp.asarray(weights)

    def scores(self, scan: Scan, weights: Any, inputs: Array) -> Array:
        """``[batch, T, classes]`` of all series."""
        start = self.network.start(inputs.shape[1])
        states = self.network.states(scan)(weights["cell"], start, inputs)
        return jnp.swapaxes(cells.read(weights["out"], states), 0, 1)

    def update(self, scan: Scan) -> Callable[..., tuple[Training, Array]]:
        """One step: ``(training, inputs, y, weights of times) -> (training, loss)``."""

        def loss(weights: Any, inputs: Array, y: Array, counted: Array) -> Array:
            chances = jax.nn.log_softmax(self.scores(scan, weights, inputs))
            right = jnp.take_along_axis(chances, y[..., None], axis=-1)[..., 0]
            return -(right.mean(axis=0) * counted).sum()

        def step(
            training: Training, inputs: Array, y: Array, counted: Array
        ) -> tuple[Training, Array]:
            weights, mean, square, index = training
            value, gradient = jax.value_and_grad(loss)(weights, inputs, y, counted)
            norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
            gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, LARGEST / norm), gradient)
            moved = adam(weights, mean, square, gradient, index, RATE, self.steps)
            return (*moved, index + 1), value

        return step

    def accuracy(self, weights: Any) -> float:
        """The share of the test set whose class at the end is found."""
        inputs = by_time(self.task.test_x)
        scores = jax.jit(lambda *given: self.scores(jax.lax.scan, *given)[:, -1])(weights, inputs)
        return float(np.mean(np.asarray(scores).argmax(axis=1) == self.task.test_y[:, -1]))

    def train(self) -> Iterator[Row]:
        """A row for each variant: all losses, how far they are from lax.scan's, the accuracy."""
        plain, steps = jax.jit(self.update(jax.lax.scan)), self.steps
        expected: np.ndarray | None = None
        for name in (SCAN, *TRAINED, NUDGED):
            update = jax.jit(self.update(TRAINED[name].scan)) if name in TRAINED else plain
            training, losses = self.first(NUDGE if name == NUDGED else 0.0), []
            says = f"training on {self.task.name} by {name}"
            for batch in PROGRESS.steps(says, self.batches(), steps):
                training, loss = update(training, *batch)
                losses.append(loss)
            found = np.array(losses)
            expected = found if expected is None else expected
            apart = np.abs(found - expected)
            yield {
                "part": "training",
                "kind": self.task.name,
                "L": self.task.length,
                "w": self.task.units,
                "program": name,
                "steps": steps,
                "last loss": float(found[-10:].mean()),
                "losses differ": float(apart.max()),
                "alike for": int(np.argmax(apart >= ALIKE)) if (apart >= ALIKE).any() else steps,
                "accuracy": self.accuracy(training[0]),
                "losses": [round(float(loss), 5) for loss in found],
            }
