"""Random chains of every kind and size, for the planner's choices."""

import dataclasses
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from experiments.models import cells

KINDS = ("tanh", "relu", "gru", "lstm", "residual conv", "elementwise")
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
BATCHES = (1, 8, 64)
MOST_WORK = 3e9  # operations of a forward pass: half a second on two cores
MOST_BYTES = 3e8  # of all weights and of all states
CHANNELS = 4  # of the residual convolutions


@dataclasses.dataclass(frozen=True)
class Specimen:
    """Kind and size of a chain."""

    kind: str
    width: int
    length: int
    batch: int

    @property
    def name(self) -> str:
        """Kind and size as text."""
        return f"{self.kind} w={self.width} L={self.length} batch={self.batch}"

    @property
    def work(self) -> float:
        """Approximate operations of a forward pass."""
        gates = {"gru": 6, "lstm": 4, "elementwise": 0}.get(self.kind, 1)  # of a w x w product each
        each = (
            6 * CHANNELS * self.width
            if self.kind == "residual conv"
            else 2 * gates * self.width**2 + 20 * self.width
        )
        return float(self.length * self.batch * each)

    @property
    def nbytes(self) -> float:
        """Bytes of states and weights."""
        weights = self.width**2 if self.kind in ("tanh", "relu") else 0
        return 4.0 * self.length * (weights + self.width * self.batch)

    @property
    def jacobian_bytes(self) -> float:
        """Bytes of the Jacobians of all steps."""
        entries = self.width if self.kind == "elementwise" else self.width**2
        return 4.0 * self.length * self.batch * entries


def specimens(number: int) -> Iterator[Specimen]:
    """At least ``number`` specimens, alternating between kinds."""
    drawn = [_drawn(kind) for kind in KINDS]
    for _ in range(math.ceil(number / len(KINDS))):
        yield from map(next, drawn)


def _drawn(kind: str) -> Iterator[Specimen]:
    """Endless specimens of a kind, of random sizes."""
    seen: set[Specimen] = set()
    rng = random.Random(f"{kind} 0")
    widths = [w for w in WIDTHS if w >= CHANNELS] if kind == "residual conv" else WIDTHS
    while True:
        found = Specimen(kind, rng.choice(widths), rng.choice(LENGTHS), rng.choice(BATCHES))
        if found.work <= MOST_WORK and found.nbytes <= MOST_BYTES and found not in seen:
            seen.add(found)
            yield found


Step = Callable[[Any, Any, Any], Any]
"""``(weights, state, input) -> state``, the weights being those that all steps share."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A chain to run.

    ``states(run)(weights, init, inputs)`` makes all of its states, ``run`` being a scan.
    """

    step: Step
    weights: Any
    init: Any
    inputs: Any

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """The arguments of the functions that `forward` and `gradient` return."""
        return self.weights, self.init, self.inputs

    def forward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """All states, by ``run``: `jax.lax.scan` or the like."""

        def states(weights: Any, init: Any, inputs: Any) -> Any:
            def body(state: Any, x: Any) -> tuple[Any, Any]:
                state = self.step(weights, state, x)
                return state, jax.tree.leaves(state)[0]

            return run(body, init, inputs)[1]

        return states

    def gradient(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The gradient of the states' mean square by weights, initial state and inputs."""
        states = self.forward(run)

        def loss(*arguments: Any) -> Array:
            return jnp.mean(states(*arguments) ** 2)

        return jax.grad(loss, (0, 1, 2))


def task(specimen: Specimen) -> Task:
    """The chain of a specimen, with random weights."""
    keys = iter(jax.random.split(jax.random.key(specimen.width), 8))
    n, length, batch = specimen.width, specimen.length, specimen.batch

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return scale * jax.random.normal(next(keys), shape, jnp.float32)

    near = n**-0.5  # the spectral radius of a random matrix is sqrt(n) times its entries' size
    init = jnp.zeros((batch, n), jnp.float32)
    sequence = normal(length, batch, n)
    match specimen.kind:
        case "tanh" | "relu":
            act = jnp.tanh if specimen.kind == "tanh" else jax.nn.relu
            layers = {"w": normal(length, n, n, scale=near), "b": normal(length, n, scale=0.1)}
            return Task(
                lambda _, z, layer: act(z @ layer["w"] + layer["b"][None]),
                None,
                normal(batch, n),
                layers,
            )
        case "gru" | "lstm":
            gates = 3 if specimen.kind == "gru" else 4
            weights = {name: normal(n, gates * n, scale=near) for name in ("W", "U")}
            zeros = jnp.zeros(gates * n, jnp.float32)
            if specimen.kind == "gru":
                return Task(cells.gru, weights | {"b": zeros, "c": zeros}, init, sequence)
            weights["b"] = zeros.at[n : 2 * n].set(1.0)  # remembers to begin with
            return Task(cells.lstm, weights, (init, init), sequence)
        case "residual conv":
            filters = {"w": normal(length, 3, CHANNELS, CHANNELS, scale=0.3 / length**0.5)}
            return Task(_convolution, None, normal(batch, n // CHANNELS, CHANNELS), filters)
        case "elementwise":
            weights = {"a": normal(n), "u": 0.5 * normal(n)}
            return Task(_elementwise, weights, init, sequence)
    raise ValueError(f"kind is {specimen.kind!r}, expected one of {KINDS}.")


def _convolution(_: Any, z: Array, layer: Any) -> Array:
    """A residual block on ``z: [batch, positions, channels]``: a convolution of width 3."""
    moved = lax.conv_general_dilated(
        jnp.tanh(z), layer["w"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return z + moved


def _elementwise(weights: Any, h: Array, x: Array) -> Array:
    keep = jax.nn.sigmoid(weights["a"])[None]
    return keep * h + (1 - keep) * jnp.tanh(x + weights["u"][None] * h)
