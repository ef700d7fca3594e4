"""Is training with deeppcr the same training, on a deep narrow network and handwritten digits?

A residual network of many narrow layers, h <- h + tanh(h W_l + b_l) / sqrt(L), is trained from the
same weights on the same batches by `jax.lax.scan` over the layers, by `deeppcr` with its defaults,
and by Newton's method with a parallel adjoint. The losses have to agree.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.command import positive
from experiments.bench.engine import Case, Variant, bench, distance
from experiments.bench.plots import Figures, bars, curves, styled
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import data
from experiments.models.training import affine

TAKES = "1 min"
CLASSES = 10
REPEATS = 25
TRAINING = {
    "program": "what runs the layers",
    "steps": "training steps",
    "last loss": "loss of the last step",
    "losses differ": "largest difference from the losses layer by layer",
    "gradients differ": "largest difference from its first gradient, relative to the largest entry",
    "accuracy": "accuracy on held-out digits",
    "iterations": "mean number of Newton iterations",
}
STEP = {
    "program": "what runs the layers",
    **{key: BENCH[key] for key in ("ms", "speedup", "error", "compile s", "temp MB")},
}
TABLES = {"training": TRAINING, "step": STEP}


@dataclass(frozen=True)
class Settings:
    """The network and its training."""

    depth: int = 128
    width: int = 8
    batch: int = 8
    steps: int = 3000
    learning_rate: float = 5e-3
    seed: int = 0


Affine = tuple[jax.Array, jax.Array]  # weight (in, out) and bias (out,); of layers: stacked


class Network(NamedTuple):
    """An affine layer in, a stack of residual layers, an affine layer out."""

    first: Affine
    hidden: Affine
    last: Affine


# Runs the residual layers: (their weights, state) -> (state, Newton iterations).
Stack = Callable[[Affine, jax.Array], tuple[jax.Array, jax.Array]]


def layer_by_layer(hidden: Affine, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One layer after another, by `jax.lax.scan`."""
    step = residual_layer(len(hidden[1]))
    state, _ = jax.lax.scan(lambda h, layer: (step(h, layer), None), state, hidden)
    return state, jnp.int32(0)


def with_deeppcr(method: str, adjoint: str) -> Stack:
    """All layers as one root problem."""

    def run(hidden: Affine, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        chain = deeppcr.Chain(residual_layer(len(hidden[1])), hidden)
        solution = deeppcr.solve(chain, state, method=method, adjoint=adjoint, batch_ndim=1)
        return solution.value, solution.stats.iterations

    return run


BASELINE, AUTO, PARALLEL = "layer by layer", "deeppcr, auto", "deeppcr, newton + pcr"
RUNS: dict[str, Stack] = {
    BASELINE: layer_by_layer,
    AUTO: with_deeppcr("auto", "auto"),
    PARALLEL: with_deeppcr("newton", "pcr"),
}


def residual_layer(depth: int) -> Callable[[jax.Array, Affine], jax.Array]:
    """A layer, scaled so that ``depth`` layers change the state by order one."""
    return lambda state, layer: state + jnp.tanh(affine(state, *layer)) / math.sqrt(depth)


def initial(settings: Settings, features: int) -> Network:
    """The weights that every run starts from."""
    random, width = np.random.default_rng(settings.seed), settings.width

    def layer(inputs: int, outputs: int, *layers: int) -> Affine:
        weight = random.standard_normal((*layers, inputs, outputs)) / math.sqrt(inputs)
        return jnp.asarray(weight, jnp.float32), jnp.zeros((*layers, outputs), jnp.float32)

    return Network(
        layer(features, width), layer(width, width, settings.depth), layer(width, CLASSES)
    )


def logits(stack: Stack, network: Network, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(batch, classes) scores for (batch, features) images, and the Newton iterations they took."""
    state, iterations = stack(network.hidden, affine(x, *network.first))
    return affine(state, *network.last), iterations


def training_step(stack: Stack, optimizer: Any) -> Callable[..., tuple[Any, ...]]:
    """``(network, moments, x, y) -> (network, moments, loss, iterations, gradient)``."""

    def loss(network: Network, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores, iterations = logits(stack, network, x)
        return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), iterations

    def step(network: Network, moments: Any, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        (value, count), gradient = jax.value_and_grad(loss, has_aux=True)(network, x, y)
        updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(network, updates), moments, value, count, gradient

    return step


class Demo:
    """Trainings from the same weights on the same batches, and the time of a step."""

    def __init__(self, settings: Settings, split: data.Split):
        self.settings, self.split = settings, split
        rate = optax.cosine_decay_schedule(settings.learning_rate, settings.steps)
        self.optimizer = optax.adam(rate)
        self.network = initial(settings, split.train_x.shape[1])
        given = len(split.train_y), settings.steps, settings.batch, settings.seed + 1
        self.batches = data.batches(*given)
        self.first: Row = {}

    def train(self, name: str) -> Iterator[Row]:
        """Train by one of `RUNS`, and compare with the first of them."""
        network, moments = self.network, self.optimizer.init(self.network)
        step = jax.jit(training_step(RUNS[name], self.optimizer))
        losses, iterations, gradients = list[float](), list[int](), list[Network]()
        for batch in PROGRESS.steps(f"training by {name}", self.batches, len(self.batches)):
            x, y = self.split.train_x[batch], self.split.train_y[batch]
            network, moments, value, count, gradient = step(network, moments, x, y)
            losses.append(float(value))
            iterations.append(int(count))
            gradients = gradients or [jax.device_get(gradient)]
        scores, _ = jax.jit(partial(logits, RUNS[name]))(network, self.split.test_x)
        self.first = self.first or {"losses": losses, "gradient": gradients[0]}
        apart = np.abs(np.subtract(losses, self.first["losses"]))
        yield {
            "part": "training",
            "program": name,
            "steps": len(losses),
            "last loss": losses[-1],
            "losses differ": float(apart.max()),
            "gradients differ": distance(gradients[0], self.first["gradient"]),
            "accuracy": float(np.mean(np.argmax(scores, axis=1) == self.split.test_y)),
            "iterations": float(np.mean(iterations)),
            "losses": losses,
        }

    def case(self) -> Case:
        """A training step."""
        moments, split = self.optimizer.init(self.network), self.split
        given = [(self.network, moments, split.train_x[k], split.train_y[k]) for k in self.batches]
        programs = {
            name: Variant(
                training_step(stack, self.optimizer),
                comparable=lambda result: (result[2], result[4]),
            )
            for name, stack in RUNS.items()
        }
        return Case({"part": "step"}, given[:2], {BASELINE: programs.pop(BASELINE)}, programs)


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Losses on each other, and the time of a training step."""
    found: Figures = {}
    if trained := [row for row in rows if "losses" in row]:
        found["losses"] = curves("Digits: the same training by every program", {"": trained})
    if timed := [row for row in rows if "ms" in row]:
        named = [row | {"baseline": row["program"] == BASELINE} for row in timed]
        title = "Digits: a training step (less is better)"
        found["step"] = bars(title, named, {"ms": "time [ms]"}, lambda row: str(row["program"]))
    return found


def summary(settings: Settings, rows: list[Row]) -> Iterator[str]:
    """The rows in sentences, once all have been measured."""
    trained = {row["program"]: row for row in rows if row["part"] == "training"}
    times = {row["program"]: row["ms"] for row in rows if row["part"] == "step" and "ms" in row}
    if len(trained) == len(RUNS):
        apart = max(row["losses differ"] for row in trained.values())
        verdict = "Same training" if apart < 1e-3 else "NOT the same training"
        yield f"{verdict}: over {settings.steps} steps the losses differ by at most {apart:.1e}."
    if len(times) < len(RUNS) or len(trained) < len(RUNS):
        return
    ours = f"A step of deeppcr with its defaults is {compared(times[AUTO], times[BASELINE])}"
    forward = "Newton iterations" if trained[AUTO]["iterations"] else "a sequential forward pass"
    yield f"{ours} layer by layer; it chose {forward}."
    parallel = compared(times[PARALLEL], times[BASELINE])
    count = trained[PARALLEL]["iterations"]
    yield f"By Newton's method, in {count:.1f} iterations, a step is {parallel} layer by layer."


def compared(ms: float, baseline: float) -> str:
    """How much faster or slower than the baseline."""
    ratio = ms / baseline
    if 0.95 < ratio < 1.05:
        return "as fast as"
    return f"{1 / ratio:.1f}x faster than" if ratio < 1 else f"{ratio:.1f}x slower than"


def main(argv: list[str]) -> None:
    """Train, compare, draw."""
    arguments = command.parser("digits", __doc__)
    arguments.set_defaults(repeats=REPEATS)
    usual = Settings()
    for name in ("depth", "width", "batch", "steps"):
        said = f"{name} ({getattr(usual, name)})"
        arguments.add_argument(f"--{name}", type=positive, metavar="N", help=said)
    options = arguments.parse_args(argv)
    given = {name: getattr(options, name) for name in ("depth", "width", "batch", "steps")}
    given = ({"steps": 300} if options.quick else {}) | {k: n for k, n in given.items() if n}
    settings = replace(usual, **given)
    demo, effort = Demo(settings, data.digits()), Effort(options.repeats, most=1)
    command.run(
        options,
        [
            *(partial(demo.train, name) for name in RUNS),
            lambda: bench(demo.case(), depth.at_hand(), effort),
        ],
        TABLES,
        summary=partial(summary, settings),
        pictures=pictures,
        together=["training"],
    )
