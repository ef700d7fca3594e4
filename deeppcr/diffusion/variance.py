"""Outputs with a learned variance: the second half of the model's output.

A model with twice the channels predicts ``m`` and values ``v``. The steps of DDPM scale their noise
by them (Nichol and Dhariwal, ICML 2021, section 3.1), if its configuration says so; other samplers
leave them out:

    learned          s sqrt(v)
    learned_range    s exp(span (v + 1) / 2)      from the smaller deviation, s, to the larger
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np


def doubled_axis(output: Any, x: Any) -> int | None:
    """The axis along which the output is twice as long as ``x``; None if there is not one only."""
    if len(output.shape) != len(x.shape):
        return None
    odd = [i for i, size in enumerate(x.shape) if output.shape[i] != size]
    is_double = len(odd) == 1 and output.shape[odd[0]] == 2 * x.shape[odd[0]]
    return odd[0] if is_double else None


def split(output: Any, x: Any) -> tuple[Any, Any]:
    """``(m, v)``; ``v`` is None if the output is ``m`` alone."""
    axis = doubled_axis(output, x)
    if axis is None:
        return output, None
    first, second = jnp.split(output, 2, axis=axis)
    return first, second


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """A learned variance.

    Attributes:
        variance_type: "learned" or "learned_range".
        span: ``[L]``: the logarithm of the ratio of the two deviations, or 1 if there is one only;
            0 where there is no noise.
    """

    variance_type: str
    span: np.ndarray

    def scale(self, noise: Any, values: Any, span: Any) -> Any:
        """The noise, scaled by the values ``v`` of the model."""
        values = jnp.where(span > 0, values.astype(span.dtype), 1)  # the last step has no noise
        if self.variance_type == "learned":
            return (noise.astype(span.dtype) * jnp.sqrt(values)).astype(noise.dtype)
        factor = jnp.exp(span * (values + 1) / 2)
        return (noise.astype(span.dtype) * factor).astype(noise.dtype)
