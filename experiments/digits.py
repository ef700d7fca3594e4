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
    random = np.random.default_rng(settings.seed)

    def affine(inputs: int, outputs: int, *layers: int) -> Affine:
        weight = random.standard_normal((*layers, inputs, outputs)) / math.sqrt(inputs)
        bias = np.zeros((*layers, outputs))
        return jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)

    width = settings.width
    return Network(
        affine(features, width), affine(width, width, settings.depth), affine(width, CLASSES)
    )


def batches(settings: Settings, count: int) -> np.ndarray:
    """Indices of the digits that each step sees, (steps, batch), the same for every run."""
    return data.batches(count, settings.steps, settings.batch, settings.seed + 1)


def logits(stack: Stack, network: Network, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(batch, classes) scores for (batch, features) images, and the Newton iterations they took."""
    state, iterations = stack(network.hidden, affine(x, *network.first))
    return affine(state, *network.last), iterations


def loss(stack: Stack, network: Network, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean cross-entropy, and the Newton iterations it took."""
    scores, iterations = logits(stack, network, x)
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), iterations


@dataclass(frozen=True)
class Training:
    """A training.

    Attributes:
        losses: of each step.
        iterations: of each step.
        gradient: of the first step.
        accuracy: on held-out digits.
    """

    losses: np.ndarray
    iterations: np.ndarray
    gradient: Network
    accuracy: float


def training_step(stack: Stack, optimizer: Any) -> Callable[..., tuple[Any, ...]]:
    """``(network, moments, x, y) -> (network, moments, loss, iterations, gradient)``."""

    def step(network: Network, moments: Any, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        value_and_grad = jax.value_and_grad(lambda n: loss(stack, n, x, y), has_aux=True)
        (value, iterations), gradient = value_and_grad(network)
        updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(network, updates), moments, value, iterations, gradient

    return step


def adam(settings: Settings) -> Any:
    """The optimizer."""
    return optax.adam(optax.cosine_decay_schedule(settings.learning_rate, settings.steps))


def train(name: str, stack: Stack, settings: Settings, split: data.Split) -> Training:
    """Train the network."""
    optimizer = adam(settings)
    network = initial(settings, split.train_x.shape[1])
    moments = optimizer.init(network)
    step = jax.jit(training_step(stack, optimizer))
    losses, iterations, first = [], [], None
    chosen = batches(settings, len(split.train_y))
    for batch in PROGRESS.steps(f"training by {name}", chosen, len(chosen)):
        x, y = split.train_x[batch], split.train_y[batch]
        network, moments, value, count, gradient = step(network, moments, x, y)
        first = first or gradient
        losses.append(float(value))
        iterations.append(int(count))
    scores, _ = jax.jit(lambda network, x: logits(stack, network, x))(network, split.test_x)
    right = np.argmax(scores, axis=1) == split.test_y
    gradient = jax.device_get(first)
    return Training(np.array(losses), np.array(iterations), gradient, float(np.mean(right)))


class Trainings:
    """Trainings from the same weights on the same batches, compared with the first."""

    def __init__(self, settings: Settings, split: data.Split):
        self.settings, self.split = settings, split
        self.first: Training | None = None

    def row(self, name: str) -> Row:
        """Train by one of `RUNS`."""
        found = train(name, RUNS[name], self.settings, self.split)
        first = self.first = self.first or found
        return {
            "part": "training",
            "program": name,
            "steps": len(found.losses),
            "last loss": float(found.losses[-1]),
            "losses differ": float(np.max(np.abs(found.losses - first.losses))),
            "gradients differ": distance(found.gradient, first.gradient),
            "accuracy": found.accuracy,
            "iterations": float(np.mean(found.iterations)),
            "losses": found.losses.tolist(),
        }


def case(settings: Settings, split: data.Split) -> Case:
    """A training step."""
    optimizer = adam(settings)
    network = initial(settings, split.train_x.shape[1])
    chosen = batches(settings, len(split.train_y))[:2]
    given = [(network, optimizer.init(network), split.train_x[k], split.train_y[k]) for k in chosen]
    steps = {name: training_step(stack, optimizer) for name, stack in RUNS.items()}
    programs = {
        name: Variant(step, comparable=lambda result: (result[2], result[4]))
        for name, step in steps.items()
    }
    return Case({"part": "step"}, given, {BASELINE: programs.pop(BASELINE)}, programs)


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
    settings, split = replace(usual, **given), data.digits()
    trainings = Trainings(settings, split)

    def trained(name: str) -> Iterator[Row]:
        yield trainings.row(name)

    def timed() -> Iterator[Row]:
        effort = Effort(options.repeats, most=1)
        return bench(case(settings, split), depth.at_hand(), effort)

    command.run(
        options,
        [*(partial(trained, name) for name in RUNS), timed],
        TABLES,
        summary=partial(summary, settings),
        pictures=pictures,
        together=["training"],
    )
