"""ParaDiGMS's loop, written plainly: what a Picard iteration in a window is measured against.

A. Shih, S. Belkhale, S. Ermon, D. Sadigh, N. Anari, *Parallel Sampling of Diffusion Models*
(NeurIPS 2023), section 3: every state of the window is the first one plus the sum of the
increments before it,

    Y_l = Z_b + sum_{b < j <= l} (f(Z_{j-1}, x_j) - Z_{j-1}),

and the window then begins at the first state that moved by more than the tolerance.
"""

import operator

import jax
import numpy as np

from experiments.models.chains import Model


def sliding_picard(model: Model, window: int, tolerance: float) -> tuple[np.ndarray, int]:
    """All states of a chain of vectors ``[w]``, and the number of iterations.

    Args:
        model: the chain.
        window: steps that are iterated at once.
        tolerance: on the root mean square of a state's update. The paper scales it by each step's
            noise variance; here it is one number, as ``atol`` is.
    """
    length = model.length
    states = np.broadcast_to(np.asarray(model.z0), (length + 1, *model.z0.shape)).copy()
    increments = jax.jit(lambda z, x: jax.vmap(model.step)(z, x) - z)
    begin, iterations = 0, 0
    while begin < length:
        end = min(begin + window, length)
        inputs = jax.tree.map(operator.itemgetter(slice(begin, end)), model.inputs)
        moves = np.asarray(increments(states[begin:end], inputs))
        new = states[begin] + np.cumsum(moves, axis=0)
        update = np.sqrt(np.square(new - states[begin + 1 : end + 1]).mean(axis=-1))
        states[begin + 1 : end + 1] = new
        iterations += 1
        moved = np.flatnonzero(update > tolerance)
        # The first state follows from one that is right, so it is right whatever its update.
        begin = begin + max(int(moved[0]), 1) if moved.size else end
        states[end + 1 : min(begin + window, length) + 1] = states[end]
    return states[1:], iterations
