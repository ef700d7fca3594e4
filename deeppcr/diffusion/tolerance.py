"""Tolerances in proportion to the noise of each step, as ParaDiGMS has them.

A state is ``x = a x_0 + s noise``. The step of DDPM that follows, to ``a'`` and ``s'``, adds noise
of the standard deviation

    d = s' sqrt(1 - (a s' / (a' s))²)

so an error of the state much below ``d`` is lost in noise. Samplers without noise pass through the
same distributions: the same tolerances suit them.
"""

import numpy as np


def posterior_deviations(a: np.ndarray, s: np.ndarray) -> np.ndarray:
    """``[L]``: the noise of the step that follows each state at which the model is called.

    It leads to the next level that is lower: some samplers call the model twice at one level. No
    lower one is known for the last, which has the deviation of the state before.

    Args:
        a: ``[L]``, the factor of ``x_0`` in these states.
        s: ``[L]``, the factor of the noise.
    """
    with np.errstate(divide="ignore"):
        level = s / a  # inf for pure noise
    found = np.zeros(len(s))
    for index, here in enumerate(level):
        lower = index + 1 + np.flatnonzero(level[index + 1 :] < here)
        if len(lower):
            found[index] = s[lower[0]] * np.sqrt(1 - (level[lower[0]] / here) ** 2)
        elif index:
            found[index] = found[index - 1]
    return found
