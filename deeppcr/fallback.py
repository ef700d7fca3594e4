"""The sequential fallback of a parallel computation whose result is not finite."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.loops import OVERFLOW

T = TypeVar("T")


def unless_finite(found: T, again: Callable[[], T], axis: ChainAxis = LOCAL) -> T:
    """``found`` if all of it is finite on all shards, else ``again()``, of the same structure.

    A loop of one trip or none. A branch would always be taken under `jax.vmap`, which computes both
    sides and selects.
    """
    spoilt = jnp.stack([~jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found)]).any()
    is_finite = axis.largest(spoilt.astype(jnp.int32)) == 0
    with jax.named_scope(OVERFLOW):
        result: tuple[Array, T] = lax.while_loop(
            lambda state: ~state[0],
            lambda state: (jnp.ones_like(state[0]), again()),
            (is_finite, found),
        )
    return result[1]
