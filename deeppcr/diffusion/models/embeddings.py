"""The embedding of a time or a label, which the layers of a network read.

The features of a time t are ``sin(w_i t)`` and ``cos(w_i t)``, with frequencies ``w_i`` in a
geometric sequence from 1 to 1/10000 (Ho et al., NeurIPS 2020), or a row of a table. Two layers
follow. The angles are float32 in every network: they are as large as the number of training times.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from deeppcr.diffusion.models.layers import Linear

SLOWEST = 10_000  # the ratio of the first frequency to the one past the last


class Positional(nnx.Module):
    """Fixed frequencies: [batch] -> [batch, size], float32.

    Args:
        size: the number of features.
        shift: subtracted from the number of frequencies in their exponents.
        flip: whether cosines come before sines.
    """

    def __init__(self, size: int, *, shift: float, flip: bool) -> None:
        self.size, self.shift, self.flip = size, shift, flip

    def __call__(self, t: Array) -> Array:
        half = self.size // 2
        exponents = (
            np.arange(half, dtype=np.float32)
            * np.float32(-math.log(SLOWEST))
            / np.float32(half - self.shift)
        )
        angles = t.astype(jnp.float32)[:, None] * np.exp(exponents)[None]
        waves = (
            [jnp.cos(angles), jnp.sin(angles)] if self.flip else [jnp.sin(angles), jnp.cos(angles)]
        )
        return jnp.pad(jnp.concatenate(waves, axis=1), [(0, 0), (0, self.size % 2)])


class Rows(nnx.Module):
    """Rows of a table: integers [batch] -> [batch, size]; NaN for a number beyond the table."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = nnx.Param(jnp.zeros((count, size)))

    def __call__(self, numbers: Array) -> Array:
        if not jnp.issubdtype(numbers.dtype, jnp.integer):
            raise TypeError(
                f"a time or label has dtype {numbers.dtype}, expected an integer: this model looks "
                "it up in a table."
            )
        return jnp.take(self.weight[...], numbers, axis=0, mode="fill")


class TwoLayers(nnx.Module):
    """Linear, activation, linear: [batch, inputs] -> [batch, outputs].

    In the dtype of the parameters.
    """

    def __init__(
        self, inputs: int, outputs: int, act: Callable[[Array], Array] = jax.nn.silu
    ) -> None:
        self.linear_1 = Linear(inputs, outputs)
        self.linear_2 = Linear(outputs, outputs)
        self.act = act

    def __call__(self, x: Array) -> Array:
        return self.linear_2(self.act(self.linear_1(x.astype(self.linear_1.weight.dtype))))
