"""The sequential fallback of what is computed in parallel and comes out as not finite."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.loops import FINISHING

T = TypeVar("T")


def unless_finite(found: T, is_finite: Array, again: Callable[[], T]) -> T:
    """``found`` where it is finite, else ``again()``: the same structure, shapes and dtypes.

    A loop of one trip or none. A branch would always be taken under `jax.vmap`, which computes both and selects.
    """
    with jax.named_scope(FINISHING):
        result: tuple[Array, T] = lax.while_loop(
            lambda state: ~state[0],
            lambda state: (jnp.ones_like(state[0]), again()),
            (is_finite, found),
        )
    return result[1]
