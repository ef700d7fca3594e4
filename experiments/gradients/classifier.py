"""A GRU that classifies long series by the mean of its states.

Adam (Kingma and Ba 2015) trains it by every variant of the recurrence, from the same weights on the
same batches, so the losses have to agree for as long as training does not amplify rounding errors:
a GRU over a thousand steps does so once it has learnt to remember. A last training shows for how
long: by `jax.lax.scan` from weights that differ in the last digits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.bench.engine import Case, Variant
from experiments.bench.programs import SCAN, Scan, baselines
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.gradients.network import NEWTON, Network
from experiments.gradients.series import Series
from experiments.models import cells

TRAINED = (SCAN, "auto", "newton")
NUDGED = "lax.scan, nudged"
NUDGE = 2.0**-22  # relative change of the first weights: two units in the last place
ALIKE = 1e-3  # losses that differ by less agree
RATE = 1e-2
LARGEST = 1.0  # norm of a gradient; larger ones are clipped

Training = tuple[Any, Any, Any, Array]
"""Weights, the two moments of their gradients, and how many steps there have been."""


@dataclass(frozen=True)
class Classifier:
    """A GRU and an affine map of the mean of its states.

    Attributes:
        series: the data.
        n: number of units.
        batch: series in a step.
    """

    series: Series
    n: int = 8
    batch: int = 20

    @property
    def network(self) -> Network:
        """The recurrent part."""
        return Network("gru", self.n)

    def first(self, nudge: float = 0.0) -> Training:
        """Random weights of the cell, and zeros for the map: all classes are equally likely."""
        classes = self.series.classes
        zero = jnp.zeros((self.n + 1, classes), jnp.float32)
        cell = cells.gru_weights(self.n, self.series.train_x.shape[-1])
        weights: Any = {"cell": cell, "out": {"W": zero[1:], "b": zero[0]}}
        weights = jax.tree.map(lambda w: w * (1 + nudge), weights)
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return weights, zeros, zeros, jnp.float32(0)

    def batches(self, steps: int, seed: int = 0) -> Iterator[tuple[Array, Array]]:
        """Series and labels of each step, the same for all variants."""
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            chosen = rng.choice(
                len(self.series.train_y), min(self.batch, len(self.series.train_y)), replace=False
            )
            yield jnp.asarray(self.series.train_x[chosen]), jnp.asarray(self.series.train_y[chosen])

    def scores(self, scan: Scan, weights: Any, x: Array) -> Array:
        """``[batch, classes]`` of series ``x: [batch, T, 2]``."""
        states = self.network.states(scan)(
            weights["cell"], self.network.start(len(x)), jnp.swapaxes(x, 0, 1)
        )
        return cells.read(weights["out"], states.mean(axis=0))

    def update(self, scan: Scan) -> Callable[..., tuple[Training, Array]]:
        """One step of Adam: ``(training, x, y) -> (training, loss)``."""

        def loss(weights: Any, x: Array, y: Array) -> Array:
            chances = jax.nn.log_softmax(self.scores(scan, weights, x))
            return -jnp.take_along_axis(chances, y[:, None], axis=1).mean()

        def step(training: Training, x: Array, y: Array) -> tuple[Training, Array]:
            weights, mean, square, count = training
            value, gradient = jax.value_and_grad(loss)(weights, x, y)
            norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
            gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, LARGEST / norm), gradient)
            mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
            square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, gradient)
            count = count + 1
            rate = RATE * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
            weights = jax.tree.map(
                lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, mean, square
            )
            return (weights, mean, square, count), value

        return step

    def accuracy(self, weights: Any) -> float:
        """The share of the test set that is classified correctly."""
        scores = jax.jit(lambda weights, x: self.scores(jax.lax.scan, weights, x))(
            weights, jnp.asarray(self.series.test_x)
        )
        return float(np.mean(np.asarray(scores).argmax(axis=1) == self.series.test_y))

    def labels(self, part: str) -> Row:
        """The first cells of its rows."""
        length = self.series.train_x.shape[1]
        return {"part": part, "kind": self.series.name, "L": length, "w": self.n}

    def case(self) -> Case:
        """One training step."""

        def solve(method: Any) -> Callable[..., Any]:
            inner = self.network.solve(method)
            assert inner is not None
            return lambda training, x, y: inner(
                training[0]["cell"], self.network.start(len(x)), jnp.swapaxes(x, 0, 1)
            )

        return Case(
            self.labels("series") | {"batch": self.batch, "direction": "step"},
            arguments=[(self.first(), *batch) for batch in self.batches(2)],
            baselines=baselines(self.update, self.series.train_x.shape[1]),
            variants={
                name: Variant(self.update(NEWTON[name].scan), solve=solve(NEWTON[name].method))
                for name in TRAINED
                if name in NEWTON
            },
        )

    def train(self, steps: int) -> Iterator[Row]:
        """A row for each variant: all losses, how far they are from lax.scan's, the accuracy."""
        plain = jax.jit(self.update(jax.lax.scan))
        expected: np.ndarray | None = None
        for name in (*TRAINED, NUDGED):
            update = jax.jit(self.update(NEWTON[name].scan)) if name in NEWTON else plain
            training, losses = self.first(NUDGE if name == NUDGED else 0.0), []
            for x, y in PROGRESS.steps(f"training by {name}", self.batches(steps), steps):
                training, loss = update(training, x, y)
                losses.append(loss)
            found = np.array(losses)
            expected = found if expected is None else expected
            apart = np.abs(found - expected)
            yield self.labels("training") | {
                "program": name,
                "steps": steps,
                "first loss": float(found[0]),
                "last loss": float(found[-10:].mean()),
                "losses differ": float(apart.max()),
                "alike for": int(np.argmax(apart >= ALIKE)) if (apart >= ALIKE).any() else steps,
                "accuracy": self.accuracy(training[0]),
                "losses": [round(float(loss), 5) for loss in found],
            }
