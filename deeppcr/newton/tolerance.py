"""An absolute tolerance for every step: an array, or a function of the inputs of a step."""

from collections.abc import Callable
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.checks import check_tolerance, describe

Tolerance = float | Callable[[Any], Any] | Any  # or an array


def is_number(atol: Tolerance) -> bool:
    """Whether it is one number for all steps, known while jax traces."""
    return isinstance(atol, Real)


def check_atol(atol: Tolerance) -> None:
    """Raise unless it may be a tolerance; its shape is checked once the length is known."""
    if is_number(atol):
        check_tolerance("atol", atol)
    elif not (callable(atol) or _is_real(atol)):
        raise TypeError(
            f"atol is {describe(atol)}, expected a number >= 0, an array of real numbers with one "
            "for each step, or a function of the inputs of a step."
        )


def tolerances(atol: Tolerance, inputs: Any, length: int) -> Array:
    """The tolerance of every step, ``[L]``.

    Args:
        atol: as the user gave it; not a number.
        inputs: of the chain, a pytree with leaves ``[L, ...]``.
        length: of the chain.

    Raises:
        TypeError: the function returns no real number.
        ValueError: there is not one number for each step.
    """
    what = "atol is"
    if callable(atol):
        what = "the function atol returns, for all steps,"
        atol = jax.vmap(atol, axis_size=length)(inputs)
        if not _is_real(atol):
            raise TypeError(f"{what} {describe(atol)}, expected a real number for each step.")
    if np.shape(atol) not in ((), (length,)):
        raise ValueError(
            f"{what} an array of shape {np.shape(atol)}, expected {(length,)}: a number >= 0 for "
            "each step."
        )
    return lax.stop_gradient(jnp.broadcast_to(jnp.asarray(atol), (length,)))


def _is_real(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)
