"""The demo: a deep narrow network on handwritten digits, trained layer by layer and with deeppcr.

A residual network of many narrow layers, h <- h + tanh(h W_l + b_l) / sqrt(L), each with weights of
its own, is trained from the same weights on the same batches: by `jax.lax.scan` over the layers,
and by `deeppcr` with what it picks itself and with everything parallel. The losses have to lie on
top of each other.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import deeppcr
from experiments.bench import command, plots, timing
from experiments.bench.command import in_time, picture, positive
from experiments.bench.engine import distance
from experiments.bench.table import Row, show
from experiments.models import data

CLASSES = 10
FIGURE = Path("digits.png")  # unless `--plot` or `--keep` says where
REPEATS = 25
HIDDEN = ("min ms", "trace s", "temp MB")  # of a printed row


@dataclass(frozen=True)
class Settings:
    """What is trained, and for how long."""

    depth: int = 128
    width: int = 8
    batch: int = 8
    steps: int = 3000
    learning_rate: float = 5e-3
    seed: int = 0


QUICK = {"steps": 300}


class Affine(NamedTuple):
    """x W + b.

    Attributes:
        weight: (in, out), or (layers, in, out).
        bias: (out,), or (layers, out).
    """

    weight: Any
    bias: Any

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x @ self.weight
        return y + jnp.broadcast_to(self.bias, y.shape)


class Network(NamedTuple):
    """An affine layer in, a stack of residual layers, an affine layer out."""

    first: Affine
    hidden: Affine
    last: Affine


# How the residual layers are run: (their weights, state) -> (state, Newton iterations).
Stack = Callable[[Affine, jax.Array], tuple[jax.Array, jax.Array]]


def layer_by_layer(hidden: Affine, state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One layer after another, compiled once for all of them.

    The fastest that JAX itself offers.
    """
    step = residual_layer(len(hidden.bias))
    state, _ = jax.lax.scan(lambda h, layer: (step(h, layer), None), state, hidden)
    return state, jnp.int32(0)


def with_deeppcr(method: str, adjoint: str) -> Stack:
    """All layers as one root problem."""

    def run(hidden: Affine, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        chain = deeppcr.Chain(residual_layer(len(hidden.bias)), hidden)
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
    """One layer of `depth`, scaled so that the whole stack changes the state by order one."""
    return lambda state, layer: state + jnp.tanh(layer(state)) / math.sqrt(depth)


def initial(settings: Settings, features: int) -> Network:
    """The weights that every run starts from."""
    random = np.random.default_rng(settings.seed)

    def affine(inputs: int, outputs: int, *layers: int) -> Affine:
        weight = random.standard_normal((*layers, inputs, outputs)) / math.sqrt(inputs)
        bias = np.zeros((*layers, outputs))
        return Affine(jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32))

    width = settings.width
    return Network(
        affine(features, width), affine(width, width, settings.depth), affine(width, CLASSES)
    )


def batches(settings: Settings, examples: int) -> np.ndarray:
    """Which examples each step sees, the same for every run.

    (steps, batch), each epoch in a new order.
    """
    return data.batches(examples, settings.steps, settings.batch, settings.seed + 1)


def logits(stack: Stack, network: Network, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(batch, classes) scores for (batch, features) images, and the Newton iterations they took."""
    state, iterations = stack(network.hidden, network.first(x))
    return network.last(state), iterations


def loss(stack: Stack, network: Network, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean cross-entropy, and the Newton iterations it took."""
    scores, iterations = logits(stack, network, x)
    return optax.softmax_cross_entropy_with_integer_labels(scores, y).mean(), iterations


@dataclass(frozen=True)
class Training:
    """One finished run.

    Attributes:
        losses: (steps,), before each step.
        iterations: (steps,), Newton iterations of each step; 0 where none were needed.
        gradient: of the first batch's loss, at the initial weights.
        accuracy: the share of the held-back digits it gets right.
        build: the step, compiled, and what that cost.
        again: repeats the last step; for timing.
    """

    losses: np.ndarray
    iterations: np.ndarray
    gradient: Network
    accuracy: float
    build: timing.Build
    again: Callable[[], Any]


def train(name: str, stack: Stack, settings: Settings, split: data.Split) -> Training:
    """Train the network with one way to run its layers."""
    network = initial(settings, split.train_x.shape[1])
    optimizer = optax.adam(optax.cosine_decay_schedule(settings.learning_rate, settings.steps))
    moments = optimizer.init(network)

    @jax.jit
    def step(network: Network, moments: Any, x: jax.Array, y: jax.Array) -> tuple[Any, ...]:
        value_and_grad = jax.value_and_grad(lambda n: loss(stack, n, x, y), has_aux=True)
        (value, iterations), gradient = value_and_grad(network)
        updates, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(network, updates), moments, value, iterations, gradient

    chosen = batches(settings, len(split.train_y))
    build = timing.build(step, network, moments, split.train_x[chosen[0]], split.train_y[chosen[0]])
    losses, iterations, first_gradient = [], [], None
    progress = tqdm(chosen, desc=f"{name:<{max(map(len, RUNS))}}", unit="step", disable=None)
    for batch in progress:
        x, y = split.train_x[batch], split.train_y[batch]
        network, moments, value, count, gradient = build.call(network, moments, x, y)
        first_gradient = first_gradient or gradient
        losses.append(float(value))
        iterations.append(int(count))
        progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)

    scores, _ = jax.jit(lambda network, x: logits(stack, network, x))(network, split.test_x)
    return Training(
        losses=np.array(losses),
        iterations=np.array(iterations),
        gradient=jax.device_get(first_gradient),
        accuracy=float(np.mean(np.argmax(scores, axis=1) == split.test_y)),
        build=build,
        again=lambda: build.call(network, moments, x, y),
    )


def rows(trainings: dict[str, Training], times: dict[str, timing.Timing]) -> list[Row]:
    """What is to be compared, one row a run."""
    baseline = trainings[BASELINE]
    return [
        {
            "run": name,
            "last loss": float(run.losses[-1]),
            "losses differ": float(np.max(np.abs(run.losses - baseline.losses))),
            "gradients differ": distance(run.gradient, baseline.gradient),
            "accuracy": run.accuracy,
            "iterations": float(np.mean(run.iterations)),
            "ms": times[name].median * 1e3,  # a step
            "min ms": times[name].minimum * 1e3,
            "time": times[name].median / times[BASELINE].median,
            "trace s": run.build.lower,
            "compile s": run.build.compile,
            "temp MB": (run.build.temporary_bytes or 0) / 1e6,
        }
        for name, run in trainings.items()
    ]


def printed(row: Row) -> Row:
    """The cells of a row as people read them."""
    return row | {"accuracy": f"{row['accuracy']:.1%}", "time": f"{row['time']:.2f}x"}


def summary(
    settings: Settings, trainings: dict[str, Training], times: dict[str, timing.Timing]
) -> str:
    """The table in plain words."""
    base, auto, parallel = (times[name].median for name in (BASELINE, AUTO, PARALLEL))
    apart = max(
        float(np.max(np.abs(run.losses - trainings[BASELINE].losses))) for run in trainings.values()
    )
    iterations = np.mean(trainings[PARALLEL].iterations)
    rounds = math.ceil(math.log2(settings.depth))
    forward = (
        "Newton iterations" if trainings[AUTO].iterations.any() else "a sequential forward pass"
    )
    verdict = "Same training" if apart < 1e-3 else "NOT the same training"
    lines = [
        f"{verdict}: over {settings.steps} steps the losses differ by at most {apart:.1e}.",
        f"deeppcr left to itself used {forward} here; "
        f"a step is {compared(auto, base)} layer by layer.",
        f"Everything parallel took {iterations:.1f} Newton iterations a step, "
        f"each of about {rounds} rounds",
        f"over all layers at once; a step is {compared(parallel, base)} layer by layer.",
    ]
    if jax.default_backend() == "cpu" and parallel > base:
        lines.append(
            "As expected on a CPU: it is more arithmetic, and there are no idle cores to share it."
        )
    return "\n".join(lines)


def compared(seconds: float, baseline: float) -> str:
    """How much faster or slower than the baseline."""
    ratio = seconds / baseline
    if 0.95 < ratio < 1.05:
        return "as fast as"
    return f"{1 / ratio:.1f}x faster than" if ratio < 1 else f"{ratio:.1f}x slower than"


def draw(path: Path, trainings: dict[str, Training], times: dict[str, timing.Timing]) -> None:
    """The loss curves on top of each other, and the times beside them."""
    # Wide below, thin on top: curves that coincide can still be told apart.
    widths = np.linspace(5, 1, len(trainings))
    with plots.figure(path, columns=2) as (curves, bars):
        for (name, run), width in zip(trainings.items(), widths, strict=True):
            curves.plot(smooth(run.losses), label=name, linewidth=width, alpha=0.8)
        curves.set(title="Training loss (running mean)", xlabel="step", yscale="log")
        curves.legend()
        for name in trainings:
            bars.barh(name, times[name].median * 1e3)
        bars.invert_yaxis()
        bars.set(
            title=f"A training step on {jax.devices()[0].device_kind} (median)",
            xlabel="milliseconds",
        )


def smooth(losses: np.ndarray, window: int = 25) -> np.ndarray:
    """The mean over up to `window` steps."""
    window = min(window, len(losses))
    return np.convolve(losses, np.ones(window) / window, mode="valid")


def main(argv: list[str]) -> None:
    """Train, compare, draw."""
    arguments = command.parser("digits", __doc__)
    arguments.set_defaults(repeats=REPEATS)
    for field in dataclasses.fields(Settings):
        number: Any = positive if field.type is int and field.name != "seed" else field.type
        name, usual = f"--{field.name.replace('_', '-')}", f"default: {field.default}"
        arguments.add_argument(name, type=number, metavar="N", help=usual)
    options = arguments.parse_args(argv)
    names = [field.name for field in dataclasses.fields(Settings)]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    settings = Settings(**((QUICK if options.quick else {}) | given))
    if options.calibrate:
        command.model(options)  # which `deeppcr` then decides by

    split = data.digits()
    print(
        f"{settings.depth} residual layers of width {settings.width} "
        f"learn {len(split.train_y)} digits, "
        f"{len(RUNS)} times over, from the same weights and batches.\n"
    )
    trainings = {
        name: train(name, stack, settings, split)
        for name, stack in in_time(RUNS.items(), options.seconds)
    }
    if not trainings:
        return
    again = {name: run.again for name, run in trainings.items()}
    for call in again.values():  # the first calls are not timed
        timing.clock(call)
    times = timing.interleave(again, timing.Effort(options.repeats, most=1))
    kept, found = command.record(options), rows(trainings, times)
    kept.add(*found)
    kept.finish()
    print(f"\n{show([printed(row) for row in found], HIDDEN)}\n")
    if len(trainings) == len(RUNS):
        print(f"{summary(settings, trainings, times)}\n")
    if kept.path:
        print("kept in", kept.path)
    path = picture(options) or FIGURE
    draw(path, trainings, times)
    print("Figure:", path)
