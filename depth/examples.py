"""Example programs: ``python -m depth --example NAME``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

Example = tuple[Callable[..., Any], tuple[Any, ...]]


def shapes(*sizes: int) -> jax.ShapeDtypeStruct:
    """An argument with a shape and without values."""
    return jax.ShapeDtypeStruct(sizes, "float32")


def mlp() -> Example:
    """Three layers on one number, 8 hidden units: 2 + 5 + 4 = 11."""

    def run(weights: list[Array], x: Array) -> Array:
        for w in weights[:-1]:
            x = jnp.maximum(x @ w, 0)
        return x @ weights[-1]

    return run, ([shapes(1, 8), shapes(8, 8), shapes(8, 1)], shapes(1))


def attention() -> Example:
    """Four heads of 16 on 128 positions."""
    query = shapes(1, 128, 4, 16)
    return jax.nn.dot_product_attention, (query, query, query)


def resnet() -> Example:
    """Eight residual blocks of two convolutions, 32 channels, 32 x 32 pixels, layer by layer."""

    def convolve(x: Array, kernel: Array) -> Array:
        return lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def run(kernels: Array, x: Array) -> Array:
        def block(x: Array, kernels: Array) -> tuple[Array, None]:
            hidden = jax.nn.relu(convolve(x, kernels[0]))
            return jax.nn.relu(x + convolve(hidden, kernels[1])), None

        return jnp.mean(lax.scan(block, x, kernels)[0], axis=(1, 2))

    return run, (shapes(8, 2, 3, 3, 32, 32), shapes(8, 32, 32, 32))


def rnn() -> Example:
    """A tanh recurrence of 64 units over 1000 steps, and its gradient."""

    def loss(weights: dict[str, Array], x: Array) -> Array:
        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = jnp.tanh(weights["h"] @ h + weights["x"] @ x)
            return h, h

        return jnp.mean(lax.scan(step, jnp.zeros_like(x[0]), x)[1] ** 2)

    return jax.grad(loss), ({"h": shapes(64, 64), "x": shapes(64, 64)}, shapes(1000, 64))


EXAMPLES: dict[str, Callable[[], Example]] = {
    "mlp": mlp,
    "attention": attention,
    "resnet": resnet,
    "rnn": rnn,
}
