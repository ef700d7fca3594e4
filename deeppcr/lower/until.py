"""Loops that end when their data says so, and what a test for the end costs.

A GPU runs asynchronously. For the condition of a loop, or of a branch, the host must wait, about as
long as six kernels take; a loop of known length needs no wait. On a CPU conditions are free, and
what is written once compiles once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.avals import like
from deeppcr.lower.targets import target

MOST_AT_ONCE = 128  # steps that a GPU takes between two waits of the host: what a wait is worth
FEWEST_WAITS = 8  # so that no more than a part of the chain runs after its end
AHEAD = 3  # trips that all iterations take which do not start from their solution

T = TypeVar("T")


def ahead(budget: int) -> int:
    """The number of trips that run before the first test for the end."""
    return min(AHEAD, budget) if target().launches else 0


def steps_per_test(length: int) -> int:
    """The steps of a chain between two tests for its end; the last ones may run after it."""
    return max(1, min(MOST_AT_ONCE, length // FEWEST_WAITS)) if target().waits else 1


def once_unless(
    right: Array, known: T, otherwise: Callable[[], T]
) -> tuple[Callable[[Any], Array], Callable[[Any], Any], tuple[Array, T]]:
    """The arguments of `jax.lax.while_loop` for a loop of at most one trip: see `unless`.

    The second result of the loop is ``known`` if ``right``, else ``otherwise()``.
    """
    start = like((right, known), right, known)
    return (
        lambda state: ~state[0],
        lambda state: like((jnp.ones_like(state[0]), otherwise()), start),
        start,
    )


def unless(right: Array, known: T, otherwise: Callable[[], T]) -> T:
    """``known`` if ``right``, else ``otherwise()``, of the same structure.

    A loop of at most one trip. Under `jax.vmap` a branch would compute both sides and select, with
    a copy for each example of all that it reads, such as weights.
    """
    result: tuple[Array, T] = lax.while_loop(*once_unless(right, known, otherwise))
    return result[1]


class Opening(NamedTuple):
    """The first trips of a loop, which do less than the others: inside of it, or before it.

    Attributes:
        inside: whether they are trips of the loop, by a branch. Then the program has what all trips
            share once.
    """

    inside: bool

    def before(self, trips: int, trip: Callable[[T], T], start: T) -> T:
        """The state with which the loop begins."""
        for _ in range(0 if self.inside else trips):
            start = trip(start)
        return start

    def select(self, opens: Array, known: T, otherwise: Callable[[], T]) -> T:
        """In a trip of the loop: ``known`` if it is a first one, else ``otherwise()``.

        By a branch: for what reads little.
        """
        if not self.inside:
            return otherwise()
        return lax.cond(opens, lambda: known, otherwise)


def opening(sharded: bool) -> Opening:
    """``sharded``: whether the trips communicate, which no branch may do."""
    return Opening(inside=not target().launches and not sharded)
