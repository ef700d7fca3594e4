"""Loops that end when their data says so, and loops in chunks that stay in the cache of a CPU.

A GPU runs asynchronously. For the condition of a loop, or of a branch, the host must wait, about as
long as six kernels take; a loop of value length needs no wait. On a CPU conditions are free, and
what is written once compiles once.
"""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.avals import like
from deeppcr.lower.variants import target

AT_ONCE = 1 << 26  # bytes of temporaries, of which a part is kept, on an accelerator


def steps_in_cache(bytes_of_step: int, totals: Sequence[Any] = ()) -> int:
    """The steps of a chunk that takes so many bytes a step; no limit but on a CPU.

    ``totals``: arrays to which every chunk adds, so that it takes as many bytes as they do.
    """
    cache = target().cache
    if cache is None:
        return sys.maxsize
    least = sum(math.prod(x.shape) * x.dtype.itemsize for x in totals)
    return max(1, max(cache, least) // max(bytes_of_step, 1))


def steps_held(bytes_of_step: int, length: int, least: int, is_narrow: bool) -> int:
    """The steps whose temporaries are held at once.

    Args:
        bytes_of_step: those of a step.
        length: the number of all steps.
        least: fewer would not be worth what is computed once for all steps of a chunk.
        is_narrow: whether there is too little to gain by a cache.
    """
    cache = target().cache
    if cache is None:
        return max(1, AT_ONCE // bytes_of_step)
    # On a CPU they stay in the cache: 0.03 to 0.2 of the time for the Jacobians of a tanh RNN, a
    # GRU and an MLP of 32 entries and 65,536 steps (jax 0.10.2, 2 cores).
    return length if is_narrow else max(least, cache // bytes_of_step)


def even_chunk(length: int, most: int) -> int:
    """The steps of a chunk, up to ``most``, of chunks that are about equal."""
    count = -(-length // most)
    even = [n for n in range(count, 2 * count) if length % n == 0]  # else the last is shorter
    return -(-length // (even[0] if even else count))


def scan_in_chunks(
    f: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    parts: Any,
    *,
    length: int,
    size: int,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan` over chunks of ``size`` steps; ``f`` takes a whole chunk.

    The last chunk is shorter if ``size`` does not divide ``length``.
    """
    if size >= length:
        return f(carry, parts)
    count, rest = divmod(length, size)
    whole = jax.tree.map(lambda x: x[: count * size].reshape((count, size, *x.shape[1:])), parts)
    tail = jax.tree.map(lambda x: x[count * size :], parts)
    of_tail = []
    if rest and reverse:
        carry, result = f(carry, tail)
        of_tail.append(result)
    carry, results = lax.scan(f, carry, whole, reverse=reverse)
    results = jax.tree.map(lambda y: y.reshape((count * size, *y.shape[2:])), results)
    if rest and not reverse:
        carry, result = f(carry, tail)
        of_tail.append(result)
    return carry, jax.tree.map(lambda *ys: jnp.concatenate(ys), results, *of_tail)


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
    right: Array, value: T, otherwise: Callable[[], T]
) -> tuple[Callable[[Any], Array], Callable[[Any], Any], tuple[Array, T]]:
    """The arguments of `jax.lax.while_loop` for a loop of at most one trip: see `unless`.

    The second result of the loop is ``value`` if ``right``, else ``otherwise()``.
    """
    start = like((right, value), right, value)
    return (
        lambda state: ~state[0],
        lambda state: like((jnp.ones_like(state[0]), otherwise()), start),
        start,
    )


def unless(right: Array, value: T, otherwise: Callable[[], T]) -> T:
    """``value`` if ``right``, else ``otherwise()``, of the same structure.

    A loop of at most one trip. Under `jax.vmap` a branch would compute both sides and select, with
    a copy for each example of all that it reads, such as weights.
    """
    result: tuple[Array, T] = lax.while_loop(*once_unless(right, value, otherwise))
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

    def select(self, opens: Array, value: T, otherwise: Callable[[], T]) -> T:
        """In a trip of the loop: ``value`` if it is a first one, else ``otherwise()``.

        By a branch: for what reads little.
        """
        if not self.inside:
            return otherwise()
        return lax.cond(opens, lambda: value, otherwise)


def opening(sharded: bool) -> Opening:
    """``sharded``: whether the trips communicate, which no branch may do."""
    return Opening(inside=not target().launches and not sharded)
