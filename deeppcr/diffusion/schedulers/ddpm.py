"""DDPM (Ho et al., NeurIPS 2020, equation 7): a sample of the posterior of ``x'`` given ``x`` and the clean sample.

With the signal ``alpha²`` here and ``alpha'²`` at the next time, and ``beta = 1 - alpha² / alpha'²``,

    x' = alpha' beta / (1 - alpha²) x0 + alpha / alpha' (1 - alpha'²) / (1 - alpha²) x + s noise
"""

import numpy as np

from deeppcr.diffusion.config import Config, one_of
from deeppcr.diffusion.correction import find_correction
from deeppcr.diffusion.prediction import clean
from deeppcr.diffusion.schedulers.integer_times import FIELDS, integer_times, lost, signal_at
from deeppcr.diffusion.schedulers.scheduler import Scheduler
from deeppcr.diffusion.table import Table, tabulate

LEAST_VARIANCE = 1e-20


def table(config: Config, steps: int, eta: float) -> Table:
    """The table of DDPM."""
    times = integer_times(config, steps)
    here = signal_at(config, times, 1.0)
    there = signal_at(config, np.append(times[1:], -1), 1.0)
    beta = lost(here, there)
    posterior = np.maximum((1 - there) / (1 - here) * beta, LEAST_VARIANCE)
    variance = beta if config["variance_type"] == "fixed_large" else posterior
    return tabulate(
        times,
        predicts=clean(config["prediction_type"], np.sqrt(here), np.sqrt(1 - here)),
        a=np.sqrt(here / there) * (1 - there) / (1 - here),
        c=np.sqrt(there) * beta / (1 - here),
        s=np.where(times > 0, np.sqrt(variance), 0.0),
        correct=find_correction(config),
    )


# diffusers' "fixed_large_log" takes the square root of the logarithm of a number below 1.
DDPM = Scheduler(
    FIELDS | {"variance_type": one_of("fixed_small", "fixed_small_log", "fixed_large")}, table
)
