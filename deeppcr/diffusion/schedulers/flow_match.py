"""Euler's method for flow matching (Lipman et al., ICLR 2023).

Here ``x = (1 - sigma) x0 + sigma noise`` and ``output = noise - x0``; the second form adds fresh
noise:

    x' = x + (sigma' - sigma) output    or    x' = (1 - sigma') x0 + sigma' noise

Sigmas are shifted towards the noise: by ``shift``, or by a ``mu`` that depends on the size of the
image.
"""

import numpy as np

from deeppcr.diffusion.config import Config
from deeppcr.diffusion.grid import flow_sigmas, ramp, shifted
from deeppcr.diffusion.table import NOISE, OUTPUT, X0, Table, X, tabulate


def flow_match(config: Config, steps: int) -> Table:
    """The table of Euler's method for flow matching."""
    total = config["num_train_timesteps"]
    ends = np.array([1.0, 1 / total])
    # diffusers shifts the two ends, and then all sigmas between them once more; with dynamic
    # shifting, only once.
    ends = ends if config["use_dynamic_shifting"] else shifted(ends, config["shift"])
    sigmas = flow_sigmas(config, np.linspace(ends[0], ends[1], steps), config["shift"])
    if (curve := ramp(config, sigmas, steps)) is not None:
        sigmas = curve
    if config["invert_sigmas"]:
        sigmas = 1 - sigmas
    next_sigmas = np.append(sigmas[1:], 1.0 if config["invert_sigmas"] else 0.0)
    if config["stochastic_sampling"]:
        x = (1 - next_sigmas) * X0 + next_sigmas * NOISE
    else:
        x = X + (next_sigmas - sigmas) * OUTPUT
    times = (sigmas * total).astype(np.float32)
    return tabulate({"prediction_type": "flow_prediction"}, times, 1 - sigmas, sigmas, {"x": x})
