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

from deeppcr.arrays import Leaves, like, varying_axes
from deeppcr.lower import ahead, steps_per_test
from deeppcr.lower import unless as at_most_one_trip
from depth.loops import named_loop

ITERATION = "newton iteration"
FALLBACK = "sequential fallback"
STEP = "newton step"
CORRECTION = "linear correction"
REPAIR = "linear fallback"

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

    Where a test is dear the first trips run in a counted loop, since extra trips do no harm. Not if
    the budget is 0: then ``goes_on`` alone says when it ends, and it is expected not to run.
    ``name``: the scope of the loop. ``start``: a named tuple; a trip counts itself in its
    ``iterations``, int32, if there is a budget. ``expected``: the number of trips to expect.
    """
    count = ahead(budget)
    if varying_axes(start):  # inside `jax.shard_map`; then the number of trips varies, too
        start = like(start, start)
        trip = _varying_like(start, trip)
    with named(name, min(expected, budget), count):
        if count:
            begun = cast(Any, start).iterations

            def after(trips: Any, state: Any) -> Any:  # the counter of the loop is the only one
                return state._replace(iterations=begun + jnp.asarray(trips, jnp.int32))

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

    A test for the end may take longer than a small step. Then each trip is a loop of known length.
    If its last steps are after the end, they run and change nothing.

    Args:
        begin: int32, from 0 to L. If it is L, nothing runs.
        step: ``(index, carry) -> (carry, state)``.
        carry: that of the step ``begin``.
        states: ``[L, ...]``.
        backwards: whether the first step is the last of the arrays.
    """
    length = len(states[0])
    size = steps_per_test(length)

    def one(index: Array, now: tuple[T, Leaves]) -> tuple[T, Leaves]:
        before, states = now
        after, new = step(index, before)
        place = length - 1 - index if backwards else index
        if size > 1:  # indices after the end are those of the last step
            last = [lax.dynamic_index_in_dim(rest, place, keepdims=False) for rest in states]
            is_step = index < length
            choose = partial(jnp.where, is_step)
            after, new = jax.tree.map(choose, (after, new), (before, last))
        return after, [
            lax.dynamic_update_index_in_dim(rest, z, place, 0)
            for rest, z in zip(states, new, strict=True)
        ]

    def trip(now: Any) -> Any:
        first, *start = now
        if size == 1:
            return first + 1, *one(first, start)
        after: Any = lax.fori_loop(
            np.int32(0), np.int32(size), lambda index, now: one(first + index, now), tuple(start)
        )
        return first + size, *after

    _, carry, states = lax.while_loop(lambda now: now[0] < length, trip, (begin, carry, states))
    return carry, states


def named(name: str, trips: int | None, before: int = 0) -> AbstractContextManager[None]:
    """A scope for one loop, and the number of trips to expect: see `depth.loops.named_loop`."""
    return named_loop(name, trips, by="deeppcr", before=before)


def unless(right: Array, result: T, otherwise: Callable[[], T]) -> T:
    """``result`` if ``right``, on all shards alike, else ``otherwise()``, of the same structure.

    A loop of at most one trip, in a scope.
    """
    with fallback(REPAIR):
        return at_most_one_trip(right, result, otherwise)
