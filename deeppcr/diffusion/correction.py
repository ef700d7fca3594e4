"""What samplers do to the clean sample that a model predicts: clip it, or threshold it by its own size (Imagen).

Both are piecewise smooth in the prediction, so that Newton's method works through them.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array


@dataclasses.dataclass(frozen=True)
class Clip:
    """All entries into [-bound, bound]."""

    bound: float

    def __call__(self, clean: Array) -> Array:
        return jnp.clip(clean, -self.bound, self.bound)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Dynamic thresholding (Saharia et al., NeurIPS 2022, section 2.3): clip at a quantile of a sample's sizes, and divide by it.

    Attributes:
        ratio: which quantile of the absolute values, over all axes but the first, which is the batch.
        largest: the quantile is taken as at least 1 and at most this.
    """

    ratio: float
    largest: float

    def __call__(self, clean: Array) -> Array:
        if clean.ndim < 2:
            raise ValueError(
                f"thresholding needs a batch axis before the axes of a sample; x has the shape {clean.shape}."
            )
        axes = tuple(range(1, clean.ndim))
        sizes = jnp.abs(clean)
        wide = sizes.astype(jnp.float32) if clean.dtype.itemsize < 4 else sizes
        quantile = jnp.quantile(wide, self.ratio, axis=axes, keepdims=True)
        bound = jnp.clip(quantile, 1.0, self.largest).astype(clean.dtype)
        return jnp.clip(clean, -bound, bound) / bound


Correction = Clip | Threshold


def find_correction(config: Mapping[str, Any]) -> Correction | None:
    """The correction that a scheduler's configuration asks for; thresholding takes precedence, as in diffusers."""
    if config.get("thresholding"):
        return Threshold(config["dynamic_thresholding_ratio"], config["sample_max_value"])
    return Clip(config["clip_sample_range"]) if config.get("clip_sample") else None
