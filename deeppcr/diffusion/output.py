"""What a model's output means: the sample ``x_0`` that it predicts, and perhaps a variance.

Samplers may clip ``x_0``, or threshold it relative to its own size (Imagen). Both are piecewise
smooth, so Newton's method applies. A model with twice the channels predicts ``m`` and values ``v``.
The steps of DDPM scale their noise by them (Nichol and Dhariwal, ICML 2021, section 3.1), if its
configuration says so; other samplers leave them out:

    learned          s sqrt(v)
    learned_range    s exp(span (v + 1) / 2)      from the smaller deviation, s, to the larger
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from deeppcr.diffusion.config import Config

Correction = Callable[[Array], Array]


def find_correction(config: Config) -> Correction | None:
    """The correction in a configuration; thresholding takes precedence, as in diffusers."""
    if config.get("thresholding"):
        ratio, largest = config["dynamic_thresholding_ratio"], config["sample_max_value"]
        return partial(threshold, ratio=ratio, largest=largest)
    bound = config.get("clip_sample_range", 1.0)
    return partial(jnp.clip, min=-bound, max=bound) if config.get("clip_sample") else None


def threshold(x_0: Array, *, ratio: float, largest: float) -> Array:
    """Dynamic thresholding (Saharia et al., NeurIPS 2022, section 2.3).

    Clips at a quantile of the sample's absolute values, and divides by it.

    Args:
        x_0: the sample; axis 0 is the batch.
        ratio: the quantile, over all other axes.
        largest: the quantile is clipped to [1, largest].
    """
    if x_0.ndim < 2:
        raise ValueError(
            "thresholding needs a batch axis before the axes of a sample; x has the shape "
            f"{x_0.shape}."
        )
    sizes = jnp.abs(x_0).astype(precise(x_0.dtype))
    quantile = jnp.quantile(sizes, ratio, axis=tuple(range(1, x_0.ndim)), keepdims=True)
    bound = jnp.clip(quantile, 1.0, largest).astype(x_0.dtype)
    return jnp.clip(x_0, -bound, bound) / bound


def precise(dtype: DTypeLike) -> Any:
    """This dtype, or float32: in bfloat16 most coefficients of a long sampler are 1."""
    return jnp.float32 if jnp.dtype(dtype).itemsize < 4 else jnp.dtype(dtype)


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


def scale_noise(variance_type: str, noise: Any, values: Any, span: Any) -> Any:
    """The noise, scaled by a learned variance: by the values ``v`` of the model."""
    values = jnp.where(span > 0, values.astype(span.dtype), 1)  # the last step has no noise
    is_free = variance_type == "learned"
    factor = jnp.sqrt(values) if is_free else jnp.exp(span * (values + 1) / 2)
    return (noise.astype(span.dtype) * factor).astype(noise.dtype)
