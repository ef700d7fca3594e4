"""Chunks of a chain: consecutive steps whose arrays stay in the cache of a CPU."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.state import Leaves

CHUNK = 1 << 21  # bytes of a chunk, so that they stay in the cache of a CPU


def steps_in_cache(each: int, totals: Sequence[Any] = ()) -> int:
    """The steps of a chunk that takes ``each`` bytes a step.

    ``totals``: arrays to which every chunk adds, so that it takes as many bytes as they do.
    """
    least = sum(math.prod(x.shape) * x.dtype.itemsize for x in totals)
    return max(1, max(CHUNK, least) // max(each, 1))


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


def run_in_chunks(
    f: Callable[[Leaves, Leaves], tuple[Leaves, Leaves, Leaves]],
    state: Leaves,
    inputs: Leaves,
    *,
    length: int,
    size: int,
) -> tuple[Leaves, Leaves, Leaves]:
    """The last state, all states and all outputs, by ``f(state, inputs)``, which takes a chunk.

    A chunk is compiled once: the last one begins early enough to be as long as the others, and
    computes a few steps again. ``f`` must have no side effects.
    """
    if size >= length:
        return f(state, inputs)
    count = -(-length // size)
    repeated = count * size - length

    def chunk(carry: Any, index: Array) -> tuple[Any, tuple[Leaves, Leaves]]:
        end, early = carry
        is_last, start = index == count - 1, jnp.minimum(index * size, length - size)
        state = [jnp.where(is_last, one, other) for one, other in zip(early, end, strict=True)]
        here = [lax.dynamic_slice_in_dim(x, start, size) for x in inputs]
        last, states, outputs = f(state, here)
        # The state after which the last chunk begins, if it begins early.
        before = [z[-1 - repeated] for z in states] if repeated else last
        return (last, before), (states, outputs)

    def whole_of(y: Array) -> Array:
        whole = y.reshape((count * size, *y.shape[2:]))
        if not repeated:
            return whole
        return jnp.concatenate(
            [whole[: (count - 1) * size], whole[(count - 1) * size + repeated :]]
        )

    (last, _), found = lax.scan(chunk, (state, state), jnp.arange(count, dtype=jnp.int32))
    states, outputs = jax.tree.map(whole_of, found)
    return last, states, outputs
