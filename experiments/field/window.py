"""ParaDiGMS's loop, written plainly: what a Picard iteration in a window is measured against.

A. Shih, S. Belkhale, S. Ermon, D. Sadigh, N. Anari, *Parallel Sampling of Diffusion Models*
(NeurIPS 2023), section 3: every state of the window is the first one plus the sum of the
increments before it,

    Y_l = Z_b + sum_{b < j <= l} (f(Z_{j-1}, x_j) - Z_{j-1}),

and the window then begins at the first state that moved by more than the tolerance, which is right
because those before it did not.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.models.chains import Model


# Norms of the updates ``[n, w]`` of n states: the paper's, and that of ``atol``.
def root_mean_square(update: np.ndarray) -> Any:
    """``[n]``"""
    return np.sqrt(np.square(update).mean(axis=-1))


def largest_entry(update: np.ndarray) -> Any:
    """``[n]``"""
    return np.abs(update).max(axis=-1)


def sliding_picard(
    model: Model,
    window: int,
    tolerance: float | np.ndarray,
    norm: Callable[[np.ndarray], Any] = root_mean_square,
) -> tuple[np.ndarray, int]:
    """All states of a chain of vectors ``[w]``, and the number of iterations.

    Args:
        model: the chain.
        window: steps that are iterated at once.
        tolerance: on the norm of a state's update: one number, or ``[L]``, one for each state. The
            paper's is in proportion to the noise of each step, see `Schedule.noise_tolerance`.
        norm: of the updates ``[n, w]`` of n states: ``[n]``.
    """
    length = model.length
    tolerances = np.broadcast_to(tolerance, (length,))
    states = np.broadcast_to(np.asarray(model.z0), (length + 1, *model.z0.shape)).copy()
    increments = jax.jit(lambda z, x: jax.vmap(model.step)(z, x) - z)
    begin, iterations, every = 0, 0, jax.tree.map(np.asarray, model.inputs)
    while begin < length:
        end = min(begin + window, length)
        inputs = jax.tree.map(operator.itemgetter(slice(begin, end)), every)
        moves = np.asarray(increments(states[begin:end], inputs))
        new = states[begin] + np.cumsum(moves, axis=0)
        update = norm(new - states[begin + 1 : end + 1])
        states[begin + 1 : end + 1] = new
        iterations += 1
        moved = np.flatnonzero(update > tolerances[begin:end])
        begin = begin + int(moved[0]) + 1 if moved.size else end
        states[end + 1 : min(begin + window, length) + 1] = states[end]
    return states[1:], iterations
