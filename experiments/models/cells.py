"""Recurrent cells.

The gated recurrent unit and the long short-term memory, as torch, flax and cuDNN have them.

A cell reads its input through ``a = x W + b`` before it looks at its state. That half does not wait
for anything, so a program that cares for speed makes it for all steps at once, as one product:
`read`. What is left is the step of the chain: `gru_step`, `lstm_step`. `gru` and `lstm` are both
halves in one, from the input itself.

Weights are a dictionary: ``W: [inputs, k n]`` and ``b: [k n]`` for the input, ``U: [n, k n]`` for
the state, with k = 3 or 4 gates side by side; a GRU has a second bias ``c: [3 n]``, which its reset
gate scales. States may have batch axes in front.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.models.training import affine

Weights = Mapping[str, Array]
Pair = tuple[Array, Array]


def read(weights: Weights, x: Array) -> Array:
    """The part of a cell that reads the input alone, ``[..., k n]``.

    Of one step, or of all of them at once.
    """
    return affine(x, weights["W"], weights["b"])


def gru_step(weights: Weights, h: Array, from_x: Array) -> Array:
    """The next state of a GRU (Cho et al. 2014, reset gate after the product), from `read`.

    ``r, u = s(a_r + (h U + c)_r), s(a_u + (h U + c)_u)``, then ``(1 - u) tanh(a_n + r (h U + c)_n)
    + u h``.
    """
    n = h.shape[-1]
    from_h = affine(h, weights["U"], weights["c"])
    gates = jax.nn.sigmoid(from_x[..., : 2 * n] + from_h[..., : 2 * n])
    reset, update = gates[..., :n], gates[..., n:]
    return (1 - update) * jnp.tanh(from_x[..., 2 * n :] + reset * from_h[..., 2 * n :]) + update * h


def lstm_step(weights: Weights, state: Pair, from_x: Array) -> Pair:
    """The next ``(h, c)`` of an LSTM (Hochreiter and Schmidhuber 1997), from `read`.

    ``i, f, g, o = a + h U``, then ``c' = s(f) c + s(i) tanh(g)`` and ``h' = s(o) tanh(c')``.
    """
    h, c = state
    i, f, g, o = jnp.split(h @ weights["U"] + from_x, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru(weights: Weights, h: Array, x: Array) -> Array:
    """One step of a GRU from its input ``x: [..., inputs]``."""
    return gru_step(weights, h, read(weights, x))


def lstm(weights: Weights, state: Pair, x: Array) -> Pair:
    """One step of an LSTM from its input ``x: [..., inputs]``."""
    return lstm_step(weights, state, read(weights, x))


def gru_weights(n: int, inputs: int | None = None, seed: int = 0) -> dict[str, Array]:
    """Random weights of a GRU, uniform in +- 1/sqrt(n), as in torch.

    As many inputs as states by default.
    """
    return uniform(
        n, {"W": (inputs or n, 3 * n), "U": (n, 3 * n), "b": (3 * n,), "c": (3 * n,)}, seed
    )


def lstm_weights(n: int, inputs: int | None = None, seed: int = 0) -> dict[str, Array]:
    """Random weights of an LSTM, uniform in +- 1/sqrt(n)."""
    return uniform(n, {"W": (inputs or n, 4 * n), "U": (n, 4 * n), "b": (4 * n,)}, seed)


def uniform(n: int, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Array]:
    """Random arrays by name, uniform in +- 1/sqrt(n)."""
    draw = np.random.default_rng(seed).uniform
    bound = n**-0.5
    return {
        name: jnp.asarray(np.float32(draw(-bound, bound, shape))) for name, shape in shapes.items()
    }
