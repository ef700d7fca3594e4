"""Loops whose end depends on data: iterations, and the fallback for results that are not finite.

The names are scopes of `jax.named_scope`: profiles show them, and costs find the loops by them.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.platforms import platform

ITERATION = "newton iteration"
REFINEMENT = "adjoint refinement"
FALLBACK = "sequential fallback"
OVERFLOW = "overflow fallback"
AHEAD = 3  # trips that all iterations take which do not start from their solution

T = TypeVar("T")


def iterate(
    name: str, goes_on: Callable[[T], Array], trip: Callable[[T], T], start: T, budget: int
) -> T:
    """Repeat ``trip`` while ``goes_on``, which is false after ``budget`` trips.

    On an accelerator the first 3 run in a counted loop, without a host sync; extra trips do no
    harm. ``name``: the scope of the loop.
    """
    with jax.named_scope(name):
        if count := ahead(budget):
            start = lax.fori_loop(0, count, lambda _, state: trip(state), start)
        end: T = lax.while_loop(goes_on, trip, start)
    return end


def ahead(budget: int) -> int:
    """The number of trips that run before the first test for the end.

    A GPU runs asynchronously. In each trip of a loop whose end depends on data the host must wait
    for it, about as long as six kernels take; in a loop of known length it does not.
    """
    return 0 if platform() == "cpu" else min(AHEAD, budget)


def unless_finite(found: T, again: Callable[[], T], axis: ChainAxis = LOCAL) -> T:
    """``found`` if all of it is finite on all shards, else ``again()``, of the same structure.

    Implemented as a loop of at most one trip. Under `jax.vmap` a branch would compute both sides
    and select.
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
