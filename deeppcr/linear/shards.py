"""The state before a shard, from the composition of the steps of each.

A shard whose first step starts from the state s ends with ``T s + v``, where ``(T, v)`` is the
composition of its steps,

    (A, b) after (A', b') = (A A', A b' + b).

1. Every device composes its own steps, pair by pair: log2(L/P) rounds of products, no messages. A
   solver whose rounds are such products has the composition from them.
2. Every device composes its map with that of the device 1, 2, 4, .. before it (Hillis & Steele,
   *Data parallel algorithms*, CACM 1986): log2(P) rounds, each with a message of one block and one
   vector.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import DeviceAxis
from deeppcr.linear.along import Along
from deeppcr.linear.blocks import Blocks


def state_before(composed: Any, axis: DeviceAxis) -> Array:
    """The state before this shard, zero before the first, from the composition of its steps."""
    found, distance = composed, 1
    while distance < axis.size:
        (earlier, earlier_offset), (own, own_offset) = axis.shift(found, distance), found
        after = (own.compose(earlier), own.apply(earlier_offset) + own_offset)
        found = select(axis.rank >= distance, after, found)
        distance *= 2
    before: Array = axis.shift(found[1])
    return before


def compose(blocks: Blocks, b: Array, along: Along) -> tuple[Blocks, Array]:
    """The composition ``(T, v)`` of all steps, as blocks and a vector of one step."""
    while (length := along.length(b)) > 1:
        rest = along.last((blocks, b), 1)
        (early, early_b), (late, late_b) = along.halves(
            along.first((blocks, b), length - length % 2)
        )
        blocks, b = late.compose(early), late.apply(early_b) + late_b
        if length % 2:
            blocks = jax.tree.map(along.join, blocks, rest[0])
            b = along.join(b, rest[1])
    return blocks, b


def starting_from(
    initial: Array, blocks: Blocks, b: Array, axis: DeviceAxis, reverse: bool
) -> Array:
    """``b`` of a shard that starts from ``initial``, for a solver that starts from zero."""
    along = Along(reverse=reverse)
    # The first block of the chain is ignored, even if it is NaN.
    start = along.first(blocks, 1)
    start = select(axis.rank == 0, jax.tree.map(jnp.zeros_like, start), start)
    return along.join(along.first(b, 1) + start.apply(initial), along.last(b, len(b) - 1))


def select(condition: Any, chosen: Any, otherwise: Any) -> Any:
    """Leaf by leaf, ``chosen`` if the scalar ``condition`` is true, else ``otherwise``."""
    return jax.tree.map(
        lambda yes, no: lax.select(lax.full(yes.shape, condition), yes, no), chosen, otherwise
    )
