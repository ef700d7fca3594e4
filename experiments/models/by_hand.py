"""An LSTM and its derivative as a patient user writes them in plain JAX, without any library.

With gates ``i, f, o = s(..)``, ``g = tanh(..)`` of ``a = x W + b + h U``, ``c' = f c + i g`` and
``h' = o tanh(c')``, the cotangent of ``a`` is a product of that of the state with factors that all
steps have at once:

    e = dc' + dh' o (1 - tanh(c')^2)
    da = (e g i (1 - i),  e c f (1 - f),  e i (1 - g^2),  dh' tanh(c') o (1 - o))
    dc = e f,   dh = da U^T + (what reads h)

So a step back has one product, and gradients of weights are one product after the last step.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from experiments.models.cells import Weights, read


@jax.custom_vjp
def lstm(weights: Weights, xs: Array) -> Array:
    """The outputs ``[T, batch, n]`` of an LSTM for ``xs: [T, batch, inputs]``, from zeros on."""
    return _forward(weights, xs)[0]


def _forward(weights: Weights, xs: Array) -> tuple[Array, Any]:
    def step(state: tuple[Array, Array], a: Array) -> Any:
        h, c = state
        i, f, g, o = jnp.split(a + h @ weights["U"], 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        new = f * c + i * g
        bent = jnp.tanh(new)
        return (o * bent, new), (o * bent, c, bent, i, f, g, o)

    zero = jnp.zeros((xs.shape[1], weights["U"].shape[0]), xs.dtype)
    hs, *kept = lax.scan(step, (zero, zero), read(weights, xs))[1]
    return hs, (weights, xs, hs, kept)


def _backward(saved: Any, d_hs: Array) -> Any:
    weights, xs, hs, (c, bent, i, f, g, o) = saved
    to_c, to_o = o * (1 - bent * bent), bent * o * (1 - o)
    factors = g * i * (1 - i), c * f * (1 - f), i * (1 - g * g)

    def step(after: tuple[Array, Array], at: Any) -> Any:
        (dh, dc), (d_h, to_c, to_o, f, factors) = after, at
        dh = dh + d_h
        e = dc + dh * to_c
        da = jnp.concatenate([*(e * factor for factor in factors), dh * to_o], axis=-1)
        return (da @ weights["U"].T, e * f), da

    zero = jnp.zeros_like(hs[0])
    da = lax.scan(step, (zero, zero), (d_hs, to_c, to_o, f, factors), reverse=True)[1]
    before = jnp.concatenate([zero[None], hs[:-1]])
    rows = da.reshape(-1, da.shape[-1])
    of_weights = {
        "W": xs.reshape(len(rows), -1).T @ rows,
        "U": before.reshape(len(rows), -1).T @ rows,
        "b": rows.sum(0),
    }
    return of_weights, da @ weights["W"].T


lstm.defvjp(_forward, _backward)
