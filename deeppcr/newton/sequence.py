"""Shards one after another: windows of a chain that is sharded over devices.

All shards of a chain are solved together if each device can hold the blocks of its shard. A shorter
window slides along one shard while the other devices wait, and the last state of the shard is sent
to the next device. So no device holds more than the blocks of one window, no input moves, and every
state equals that of a window on one device; but the solve takes as long as on one device. A window
that crosses shards would be no faster, since it is on one or two devices at a time.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
from jax import Array

from deeppcr.axis import LOCAL
from deeppcr.chain import TracedChain


class Reached(NamedTuple):
    """The progress of the iteration, passed from one shard to the next.

    Attributes:
        last: ``[*batch, w]``, the last state.
        iterations: int32.
        prefix: int32, the number of converged states from the start of the chain.
        exact: int32, the number of them that equal the sequential program's to the last bit.
        worst: the largest residual, relative to the size of the entry.
        residuals: by iteration, that of the guess first; empty unless recorded.
    """

    last: Array
    iterations: Array
    prefix: Array
    exact: Array
    worst: Array
    residuals: Array

    @classmethod
    def nothing(cls, initial: Array, residuals: Array) -> Self:
        """Before the first iteration."""
        none = jnp.int32(0)
        return cls(initial, none, none, none, jnp.zeros((), initial.dtype), residuals)


def solve_shard_after_shard(
    iterate: Callable[[TracedChain, Reached], tuple[Reached, Array]],
    chain: TracedChain,
    begun: Reached,
    budget: int,
) -> tuple[Reached, Array]:
    """``iterate`` on the shard of one device after another.

    Args:
        iterate: ``(chain, progress before) -> (progress after, states)``, with prefixes relative to
            the chain that it is given.
        chain: the shard of this device, inside `jax.shard_map`.
        begun: the progress before the first shard.
        budget: the maximum number of iterations. Entering a shard counts as one, like every move of
            a window.

    Returns:
        the progress on the whole chain, and the states of this device, ``[L, *batch, w]``.
    """

    def shard(before: Reached, _: Any) -> tuple[Reached, Array]:
        enters = (chain.offset > 0).astype(jnp.int32)
        iterations = jnp.minimum(before.iterations + enters, jnp.int32(budget))
        before = before._replace(iterations=iterations)
        initial = chain.layout.unflatten(before.last)
        own, states = iterate(dataclasses.replace(chain, initial=initial, axis=LOCAL), before)

        def in_chain(earlier: Array, own: Array) -> Array:
            return jnp.where(earlier >= chain.offset, chain.offset + own, earlier)

        reached = own._replace(
            last=states[-1],
            prefix=in_chain(before.prefix, own.prefix),
            exact=in_chain(before.exact, own.exact),
            worst=jnp.maximum(before.worst, own.worst),
        )
        return reached, states

    found: tuple[Reached, Array] = chain.axis.sequentially(shard, begun, None)
    return found
