"""The sample ``x_0`` that a model's output predicts, and its correction by samplers.

They clip it, or threshold it relative to its own size (Imagen). Both are piecewise smooth, so
Newton's method applies.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.diffusion.config import flag, number, one_of

PREDICTIONS = ("epsilon", "sample", "v_prediction")
PREDICTION_FIELD = {"prediction_type": one_of(*PREDICTIONS)}
FLOW_PREDICTION_FIELD = {"prediction_type": one_of(*PREDICTIONS, "flow_prediction")}
THRESHOLD_FIELDS = {
    "thresholding": flag(False),
    "dynamic_thresholding_ratio": number(0.995, share=True),
    "sample_max_value": number(1.0),
}
CLIP_FIELDS = {"clip_sample": flag(True), "clip_sample_range": number(1.0)}


def original_from(
    prediction: str, alpha: np.ndarray, sigma: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``(p, q)``: the predicted ``x_0`` is ``p y + q output`` for the model's input ``y``.

    Here ``y = alpha x_0 + sigma noise``.
    """
    if prediction == "sample":
        return np.zeros_like(alpha), np.ones_like(alpha)
    if prediction == "v_prediction":
        # output = alpha noise - sigma x_0 (Salimans and Ho, ICLR 2022, appendix D)
        return alpha, -sigma
    if prediction == "flow_prediction":
        # output = noise - x_0, and alpha = 1 - sigma (Lipman et al., ICLR 2023)
        return np.ones_like(alpha), -sigma
    if not alpha.all():
        raise ValueError(
            "prediction_type='epsilon' with rescale_betas_zero_snr=True: at the last time there is "
            "only noise, which does not determine the sample. Expected 'sample' or 'v_prediction', "
            "or a timestep_spacing that leaves out the last time."
        )
    return 1 / alpha, -sigma / alpha


@dataclasses.dataclass(frozen=True)
class Clip:
    """Clip all entries to [-bound, bound]."""

    bound: float

    def __call__(self, x_0: Array) -> Array:
        return jnp.clip(x_0, -self.bound, self.bound)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """Dynamic thresholding: clip at a quantile of the sample's absolute values, and divide by it.

    Reference: Saharia et al., NeurIPS 2022, section 2.3.

    Attributes:
        ratio: the quantile, computed over all axes but the first, which is the batch.
        largest: the quantile is clipped to [1, largest].
    """

    ratio: float
    largest: float

    def __call__(self, x_0: Array) -> Array:
        if x_0.ndim < 2:
            raise ValueError(
                "thresholding needs a batch axis before the axes of a sample; x has the shape "
                f"{x_0.shape}."
            )
        sizes = jnp.abs(x_0)
        wide = sizes.astype(jnp.float32) if x_0.dtype.itemsize < 4 else sizes
        quantile = jnp.quantile(wide, self.ratio, axis=tuple(range(1, x_0.ndim)), keepdims=True)
        bound = jnp.clip(quantile, 1.0, self.largest).astype(x_0.dtype)
        return jnp.clip(x_0, -bound, bound) / bound


Correction = Clip | Threshold


def find_correction(config: Mapping[str, Any]) -> Correction | None:
    """The correction in a configuration; thresholding takes precedence, as in diffusers."""
    if config.get("thresholding"):
        return Threshold(config["dynamic_thresholding_ratio"], config["sample_max_value"])
    return Clip(config["clip_sample_range"]) if config.get("clip_sample") else None
