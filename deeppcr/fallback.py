"""The sequential fallback of a parallel computation whose result is not finite."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.loops import OVERFLOW

T = TypeVar("T")


def unless_finite(found: T, is_finite: Array, again: Callable[[], T]) -> T:
    """``found`` where it is finite, else ``again()``: the same structure, shapes and dtypes.

    A loop of one trip or none. A branch would always be taken under `jax.vmap`, which computes both
    sides and selects.
    """
    with jax.named_scope(OVERFLOW):
        result: tuple[Array, T] = lax.while_loop(
            lambda state: ~state[0],
            lambda state: (jnp.ones_like(state[0]), again()),
            (is_finite, found),
        )
    return result[1]
