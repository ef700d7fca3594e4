"""What a model predicts, and the clean sample that follows from it."""

import numpy as np


def clean(prediction: str, alpha: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(p, q)``: the clean sample is ``p y + q output`` for a model that saw ``y = alpha clean + sigma noise``."""
    if prediction == "sample":
        return np.zeros_like(alpha), np.ones_like(alpha)
    if (
        prediction == "v_prediction"
    ):  # alpha noise - sigma clean (Salimans and Ho, ICLR 2022, appendix D)
        return alpha, -sigma
    if not alpha.all():
        raise ValueError(
            "prediction_type='epsilon' with rescale_betas_zero_snr=True: where no signal is left, none follows from the noise. "
            "Expected 'sample' or 'v_prediction', or a timestep_spacing that leaves out the last time."
        )
    return 1 / alpha, -sigma / alpha
