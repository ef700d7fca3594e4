"""Loops whose end depends on data: iterations, and fallbacks.

Their names are scopes of `jax.named_scope`, which profiles show. `depth` finds the loops by them,
and the number of trips to count: what the planner expects of iterations, none of a fallback.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays.avals import like, varying_axes
from deeppcr.arrays.state import Leaves
from deeppcr.lower import target
from depth.loops import named_loop

ITERATION = "newton iteration"
REFINEMENT = "adjoint refinement"
FALLBACK = "sequential fallback"
STEP = "newton step"
CORRECTION = "linear correction"
REPAIR = "linear fallback"
MOST_AT_ONCE = 128  # steps that a GPU takes between two waits of the host: what a wait is worth
FEWEST_WAITS = 8  # so that no more than a part of the chain runs after its end
AHEAD = 3  # trips that all iterations take which do not start from their solution

T = TypeVar("T")


def iterate(
    name: str,
    goes_on: Callable[[T], Array],
    trip: Callable[[T], T],
    start: T,
    budget: int,
    expected: int,
) -> T:
    """Repeat ``trip`` while ``goes_on``, which is false after ``budget`` trips.

    On an accelerator the first 3 run in a counted loop, without a host sync; extra trips do no
    harm. ``name``: the scope of the loop. ``start``: a named tuple; a trip counts itself in its
    ``iterations``, int32. ``expected``: the number of trips to expect.
    """
    count = ahead(budget)
    if varying_axes(start):  # inside `jax.shard_map`; then the number of trips varies, too
        start = like(start, start)
        trip = _varying_like(start, trip)
    begun = cast(Any, start).iterations

    def after(trips: Any, state: Any) -> Any:  # the counter of the loop is the only one
        return state._replace(iterations=begun + jnp.asarray(trips, jnp.int32))

    with named(name, min(expected, budget), count):
        if count:
            first = lax.fori_loop(0, count, lambda trips, state: trip(after(trips, state)), start)
            start = after(count, first)
        return lax.while_loop(goes_on, trip, start)


def _varying_like(start: T, f: Callable[[T], T]) -> Callable[[T], T]:
    return lambda state: like(f(state), start)


def fallback(name: str, expected: bool = False) -> AbstractContextManager[None]:
    """A scope for a loop that completes what another one has not achieved.

    ``expected``: whether it is known beforehand that it will run; then nothing is known of its
    number of trips.
    """
    return named(name, None if expected else 0)


def steps_from(
    begin: Array,
    step: Callable[[Array, T], tuple[T, Leaves]],
    carry: T,
    states: Leaves,
    backwards: bool = False,
) -> tuple[T, Leaves]:
    """What the last step carries on, and ``states`` with those from ``begin`` on by ``step``.

    In each trip of a loop whose end depends on data, the host of a GPU waits for the condition,
    longer than a small step takes. So there each trip is a loop of known length. If its last steps
    are after the end, they run and change nothing.

    Args:
        begin: int32, from 0 to L. If it is L, nothing runs.
        step: ``(index, carry) -> (carry, state)``.
        carry: that of the step ``begin``.
        states: ``[L, ...]``.
        backwards: whether the first step is the last of the arrays.
    """
    length = len(states[0])
    size = max(1, min(MOST_AT_ONCE, length // FEWEST_WAITS)) if target().waits else 1

    def one(index: Array, now: tuple[T, Leaves]) -> tuple[T, Leaves]:
        before, states = now
        after, found = step(index, before)
        place = length - 1 - index if backwards else index
        if size > 1:  # indices after the end are those of the last step
            last = [lax.dynamic_index_in_dim(rest, place, keepdims=False) for rest in states]
            is_step = index < length
            after = jax.tree.map(partial(jnp.where, is_step), after, before)
            found = [jnp.where(is_step, z, old) for z, old in zip(found, last, strict=True)]
        return after, [
            lax.dynamic_update_index_in_dim(rest, z, place, 0)
            for rest, z in zip(states, found, strict=True)
        ]

    def trip(now: tuple[Array, T, Leaves]) -> tuple[Array, T, Leaves]:
        first, before, known = now
        start = before, known
        if size == 1:
            return first + 1, *one(first, start)
        after: Any = lax.fori_loop(
            np.int32(0), np.int32(size), lambda index, now: one(first + index, now), start
        )
        return first + size, *after

    start = begin, carry, states
    found: tuple[Array, T, Leaves] = lax.while_loop(lambda now: now[0] < length, trip, start)
    return found[1:]


def named(name: str, trips: int | None, before: int = 0) -> AbstractContextManager[None]:
    """A scope for one loop, and the number of trips to expect: see `depth.loops.named_loop`."""
    return named_loop(name, trips, by="deeppcr", before=before)


def ahead(budget: int) -> int:
    """The number of trips that run before the first test for the end.

    A GPU runs asynchronously. In each trip of a loop whose end depends on data the host must wait
    for it, about as long as six kernels take; in a loop of known length it does not.
    """
    return min(AHEAD, budget) if target().launches else 0


def unless(right: Array, found: T, otherwise: Callable[[], T], expected: bool = False) -> T:
    """``found`` if ``right``, on all shards alike, else ``otherwise()``, of the same structure.

    Implemented as a loop of at most one trip. Under `jax.vmap` a branch would compute both sides
    and select. ``expected``: see `fallback`.
    """
    start = like((right, found), right, found)
    with fallback(REPAIR, expected):
        result: tuple[Array, T] = lax.while_loop(
            lambda state: ~state[0],
            lambda state: like((jnp.ones_like(state[0]), otherwise()), start),
            start,
        )
    return result[1]
