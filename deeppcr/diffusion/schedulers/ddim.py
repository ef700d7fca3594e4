"""DDIM (Song et al., ICLR 2021, equation 12): the clean sample and the noise, both as the model sees them, mixed anew.

With the signal ``alpha²`` here and ``alpha'²`` at the next time,

    x' = alpha' x0 + sqrt(1 - alpha'² - s²) noise_seen + s noise,    s² = eta² (1 - alpha'²) / (1 - alpha²) (1 - alpha² / alpha'²)

where ``noise_seen = (x - alpha x0) / sigma``, with ``x0`` as it was before any correction.
"""

import numpy as np

from deeppcr.diffusion.config import Config, flag
from deeppcr.diffusion.correction import find_correction
from deeppcr.diffusion.prediction import clean
from deeppcr.diffusion.schedulers.integer_times import FIELDS, integer_times, lost, signal_at
from deeppcr.diffusion.schedulers.scheduler import Scheduler
from deeppcr.diffusion.table import Table, tabulate


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of DDIM."""
    times = integer_times(config, steps)
    last = 1.0 if config["set_alpha_to_one"] else signal_at(config, np.zeros(1, int), 1.0)[0]
    here = signal_at(config, times, last)
    # By the stride of "leading" spacing, whatever the spacing.
    there = signal_at(config, times - config["num_train_timesteps"] // steps, last)
    alpha, sigma = np.sqrt(here), np.sqrt(1 - here)
    p, q = clean(config["prediction_type"], alpha, sigma)
    s = eta * np.sqrt((1 - there) / (1 - here) * lost(here, there))
    seen = np.sqrt(1 - there - s**2) / sigma
    return tabulate(
        times,
        predicts=(p, q),
        a=seen * (1 - alpha * p),
        b=seen * -alpha * q,
        c=np.sqrt(there),
        s=s,
        correct=find_correction(config),
    )


DDIM = Scheduler(FIELDS | {"set_alpha_to_one": flag(True)}, table, takes_eta=True)
