"""Training with nothing but jax, and a cache of trained weights, ~/.cache/deeppcr-experiments."""

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.bench.progress import PROGRESS

CACHE = Path.home() / ".cache" / "deeppcr-experiments"

Params = dict[str, Array]
Tree = TypeVar("Tree")


def train(
    loss: Callable[[Params, Array], Array], params: Params, steps: int, rate: float, key: Array
) -> Params:
    """Train by `adam`; ``loss(params, key)`` draws its batch by the key."""

    @jax.jit
    def update(
        params: Params, moments: tuple[Params, Params], index: Array
    ) -> tuple[Params, tuple[Params, Params]]:
        gradient = jax.grad(loss)(params, jax.random.fold_in(key, index))
        params, mean, square = adam(params, *moments, gradient, index, rate, steps)
        return params, (mean, square)

    zeros = jax.tree.map(jnp.zeros_like, params)
    moments = (zeros, zeros)
    for index in range(steps):
        if index % 100 == 0:
            PROGRESS.say(f"training, step {index} of {steps}")
        params, moments = update(params, moments, np.int32(index))
    return params


def adam(
    params: Tree, mean: Tree, square: Tree, gradient: Tree, index: Array, rate: float, steps: int
) -> tuple[Tree, Tree, Tree]:
    """A step of Adam (Kingma and Ba 2015) whose rate falls to 0 along half a cosine.

    Args:
        params: pytree.
        mean: of the gradients so far.
        square: the mean of their squares.
        gradient: of this step.
        index: of this step, from 0: int32 scalar.
        rate: at the start.
        steps: how many there will be.

    Returns:
        parameters, mean and square after the step.
    """
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
    square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, gradient)
    count = index.astype(jnp.float32) + 1
    now = rate * 0.5 * (1 + jnp.cos(math.pi * (count - 1) / steps))
    now = now * jnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - now * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    return params, mean, square


def cached(name: str, first: Params, make: Callable[[], Params]) -> Params:
    """The result of ``make``, from a file if there is one; ``first`` has its names and shapes."""
    path = CACHE / f"{name}.npz"
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            params = {key: jnp.asarray(arrays[key]) for key in first}
        if all(params[key].shape == value.shape for key, value in first.items()):
            return params
    except Exception:
        pass
    params = make()
    CACHE.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=CACHE, prefix=f".{name}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as whole:
            np.savez(whole, **jax.device_get(params))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return params


def normal(key: Array, *shape: int) -> Array:
    """Random matrices that preserve the mean norm of a vector."""
    return jax.random.normal(key, shape, jnp.float32) / math.sqrt(shape[-2])


def affine(z: Array, weight: Array, bias: Array) -> Array:
    """``z W + b``, for ``z: [*batch, in]`` and ``b: [*batch, out]`` or ``[out]``."""
    return z @ weight + jnp.broadcast_to(bias, (*z.shape[:-1], bias.shape[-1]))
