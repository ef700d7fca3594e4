"""Chunks of a chain: consecutive steps whose arrays stay in the cache of a CPU."""

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.lower.targets import target

AT_ONCE = 1 << 26  # bytes of temporaries, of which a part is kept, on an accelerator


def steps_in_cache(each: int, totals: Sequence[Any] = ()) -> int:
    """The steps of a chunk that takes ``each`` bytes a step; no limit but on a CPU.

    ``totals``: arrays to which every chunk adds, so that it takes as many bytes as they do.
    """
    cache = target().cache
    if cache is None:
        return sys.maxsize
    least = sum(math.prod(x.shape) * x.dtype.itemsize for x in totals)
    return max(1, max(cache, least) // max(each, 1))


def steps_held(each: int, length: int, least: int, is_narrow: bool) -> int:
    """The steps whose temporaries, ``each`` bytes a step, are held at once.

    Args:
        each: bytes.
        length: the number of all steps.
        least: fewer would not be worth what is computed once for all steps of a chunk.
        is_narrow: whether there is too little to gain by a cache.
    """
    cache = target().cache
    if cache is None:
        return max(1, AT_ONCE // each)
    # On a CPU they stay in the cache: 0.03 to 0.2 of the time for the Jacobians of a tanh RNN, a
    # GRU and an MLP of 32 entries and 65,536 steps (jax 0.10.2, 2 cores).
    return length if is_narrow else max(least, cache // each)


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
    results = []
    if rest and reverse:
        carry, result = f(carry, tail)
        results.append(result)
    carry, result = lax.scan(f, carry, whole, reverse=reverse)
    results.insert(0, jax.tree.map(lambda y: y.reshape((count * size, *y.shape[2:])), result))
    if rest and not reverse:
        carry, result = f(carry, tail)
        results.append(result)
    return carry, jax.tree.map(lambda *ys: jnp.concatenate(ys), *results)
