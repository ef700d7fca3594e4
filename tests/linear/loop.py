"""The oracle: the recurrence written down as a loop; and problems to give it."""

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.linear import Matrices


def compiled(function, **options):
    """`jax.jit` that compiles in half the time, for programs that run once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0}, **options)


def loop(A, b, reverse=False, initial=None):
    """``y_l = A_l y_{l-1} + b_l`` in plain numpy, for full (one axis more than b) and diagonal matrices."""
    A, b = np.asarray(A), np.asarray(b)
    y, state = np.zeros_like(b), np.zeros(b.shape[1:], b.dtype) if initial is None else np.asarray(initial)
    for step in reversed(range(len(b))) if reverse else range(len(b)):
        product = np.einsum("...ij,...j->...i", A[step], state) if A.ndim > b.ndim else A[step] * state
        state = product + b[step]
        y[step] = state
    return y


def problem(kind, length, batch, width, seed=0):
    """Blocks of norm about 1/2, and right-hand sides."""
    rng = np.random.default_rng(seed)
    shape = (length, *batch, width)
    A = rng.normal(size=(*shape, width) if kind is Matrices else shape) / (2 * np.sqrt(width))
    return jnp.asarray(A), jnp.asarray(rng.normal(size=shape))
