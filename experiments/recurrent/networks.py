"""Recurrent networks as people train them, and beside them torch and an LSTM by hand."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from experiments.bench.programs import Scan
from experiments.models import by_hand, cells
from experiments.recurrent import beside_torch
from experiments.recurrent.programs import Outputs, Problem, gradient

BY_HAND = "by hand"
INPUTS = 2  # tuples of arguments
Weights = dict[str, Array]
Layer = Callable[[Any, Array], Array]  # (weights, xs) -> ys


def lstm(weights: Weights, state: Any, x: Array) -> Any:
    """An LSTM as the step of a scan."""
    h, c = cells.lstm(weights, state, x)
    return (h, c), h


def gru(weights: Weights, h: Array, x: Array) -> Any:
    """A GRU."""
    h = cells.gru(weights, h, x)
    return h, h


def layer_norm(weights: Weights, h: Array, x: Array) -> Any:
    """A user's own cell: ``h' = tanh((1 + s) norm(x W + b + h U))``."""
    a = cells.read(weights, x) + h @ weights["U"]
    a = a - a.mean(-1, keepdims=True)
    h = jnp.tanh((1 + weights["s"]) * a * lax.rsqrt(jnp.square(a).mean(-1, keepdims=True) + 1e-5))
    return h, h


def linear(weights: Weights, h: Array, x: Array) -> Any:
    """A linear RNN with a readout: ``h' = x W + b + h U``, ``y = tanh(h' R)``."""
    h = cells.read(weights, x) + h @ weights["U"]
    return h, jnp.tanh(h @ weights["R"])


def peepholes(weights: Weights, state: Any, x: Array) -> Any:
    """An LSTM whose gates see the cell (Gers and Schmidhuber 2000)."""
    h, c = state
    i, f, g, o = jnp.split(cells.read(weights, x) + h @ weights["U"], 4, axis=-1)
    i, f = (jax.nn.sigmoid(gate + weights[key] * c) for gate, key in ((i, "pi"), (f, "pf")))
    c = f * c + i * jnp.tanh(g)
    h = jax.nn.sigmoid(o + weights["po"] * c) * jnp.tanh(c)
    return (h, c), h


def layered(layer: Layer, weights: Any, xs: Array) -> Array:
    """One layer."""
    return layer(weights, xs)


def bidirectional(layer: Layer, weights: Any, xs: Array) -> Array:
    """A layer in each direction, side by side."""
    return jnp.concatenate([layer(weights[0], xs), layer(weights[1], xs[::-1])[::-1]], axis=-1)


def stacked(layer: Layer, weights: Any, xs: Array) -> Array:
    """A layer that reads another one."""
    return layer(weights[1], layer(weights[0], xs))


class Kind(NamedTuple):
    """The cell of a network, its random weights, by units and seed, and how layers are joined."""

    cell: Callable[[Any, Any, Array], Any]
    weights: Callable[[int, int], Any]
    joined: Callable[[Layer, Any, Array], Array] = layered

    def outputs(self, layer: Layer) -> Outputs:
        """``(weights, xs) -> ys``, with ``T`` and a batch in front."""
        return partial(self.joined, layer)

    def by(self, scan: Scan) -> Outputs:
        """The same by a scan, from zeros on."""

        def layer(weights: Weights, xs: Array) -> Array:
            zero = jnp.zeros((xs.shape[1], weights["U"].shape[0]), xs.dtype)
            start = (zero, zero) if self.cell in PAIRS else zero
            return scan(partial(self.cell, weights), start, xs)[1]

        return self.outputs(layer)


def _weights(n: int, seed: int, gates: int = 1, **more: tuple[int, ...]) -> Weights:
    shapes = {"W": (n, gates * n), "U": (n, gates * n), "b": (gates * n,), **more}
    return cells.uniform(n, shapes, seed)


def _lstm(n: int, seed: int, **more: tuple[int, ...]) -> Weights:
    return _weights(n, seed, 4, **more)


def _two(n: int, seed: int) -> tuple[Weights, Weights]:
    return _lstm(n, 2 * seed), _lstm(n, 2 * seed + 1)


PAIRS = (lstm, peepholes)  # cells whose state is two arrays
KINDS = {
    "LSTM": Kind(lstm, _lstm),
    "GRU": Kind(gru, lambda n, seed: _weights(n, seed, 3, c=(3 * n,))),
    "cell with layer norm": Kind(layer_norm, lambda n, seed: _weights(n, seed, s=(1, n))),
    "linear RNN, readout": Kind(linear, lambda n, seed: _weights(n, seed, R=(n, n))),
    "LSTM, peepholes": Kind(
        peepholes, lambda n, seed: _lstm(n, seed, pi=(1, n), pf=(1, n), po=(1, n))
    ),
    "LSTM, bidirectional": Kind(lstm, _two, bidirectional),
    "LSTM, two layers": Kind(lstm, _two, stacked),
}


class Size(NamedTuple):
    """A network of one size."""

    kind: str
    units: int
    length: int
    batch: int

    def problem(self, part: str = "networks", direction: str = "gradient") -> Problem:
        """The network on random inputs of as many features as units."""
        kind, n = KINDS[self.kind], self.units
        arguments, others = [], dict[str, Any]()
        for seed in range(INPUTS):
            xs = np.random.default_rng(seed).standard_normal(
                (self.length, self.batch, n), np.float32
            )
            arguments.append((kind.weights(n, seed), jnp.asarray(xs)))
        if direction == "gradient":
            by = {BY_HAND: gradient(kind.outputs(by_hand.lstm))} if kind.cell is lstm else {}
            others = {**by, **beside_torch.programs(self.kind)}
        labels: dict[str, Any] = {"part": part, "kind": self.kind, "w": n}
        labels |= {"L": self.length, "batch": self.batch}
        return Problem(labels, kind.by, arguments, others, direction)


TRAINED = (  # the most important first
    Size("LSTM", 128, 200, 16),
    Size("LSTM", 256, 100, 16),
    Size("LSTM", 512, 50, 16),
    Size("LSTM", 128, 200, 1),
    Size("GRU", 128, 200, 8),
    Size("LSTM", 256, 100, 64),
    Size("GRU", 512, 50, 8),
    Size("LSTM", 32, 200, 16),
    Size("cell with layer norm", 128, 200, 16),
    Size("linear RNN, readout", 128, 200, 16),
    Size("LSTM, bidirectional", 128, 200, 8),
    Size("LSTM, two layers", 128, 200, 8),
)
