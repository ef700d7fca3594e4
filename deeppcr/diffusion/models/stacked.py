"""Layers that are alike, as one module whose parameters have the layers as axis 0.

A program has the module once, whatever the number of layers: it compiles as fast for all of them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

M = TypeVar("M", bound=nnx.Module)


def stack_of(layer: M, count: int) -> M:
    """``count`` layers as one: [...] -> [count, ...] for all parameters."""
    graph, parameters = nnx.split(layer)
    return nnx.merge(graph, jax.tree.map(lambda leaf: jnp.stack([leaf] * count), parameters))


def each(stack: M, call: Callable[..., Any], *xs: Any) -> Any:
    """``call(layer, *xs)`` of all layers side by side; ``xs`` and results have them as axis 0."""
    graph, parameters = nnx.split(stack)
    return jax.vmap(lambda own, *x: call(nnx.merge(graph, own), *x))(parameters, *xs)


def through(stack: M, call: Callable[..., Any], x: Any, *inputs: Any) -> Any:
    """``x = call(layer, x, *inputs)``, layer by layer; ``inputs`` have them as axis 0."""
    graph, parameters = nnx.split(stack)

    def step(x: Any, own: Any) -> tuple[Any, None]:
        return call(nnx.merge(graph, own[0]), x, *own[1]), None

    return lax.scan(step, x, (parameters, inputs))[0]
