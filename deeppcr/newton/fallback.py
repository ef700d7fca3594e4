"""The sequential fallback: it runs the steps after those that have converged."""

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import TracedChain
from deeppcr.loops import FALLBACK, fallback
from deeppcr.state import Leaves


def finish(chain: TracedChain, trajectory: Leaves, prefix: Array, expected: bool = False) -> Leaves:
    """Run the steps after ``prefix`` one by one; the loop makes no trip if there are none.

    ``expected``: whether it is known beforehand that there are some.
    """
    length = chain.length

    def run(entry: Leaves, trajectory: Leaves) -> tuple[Leaves, Leaves]:
        def body(index: Array, trajectory: Leaves) -> Leaves:
            last = [
                jnp.where(index == 0, z, _at(rest, jnp.maximum(index - 1, 0)))
                for z, rest in zip(entry, trajectory, strict=True)
            ]
            inputs = [_at(x, index) for x in chain.inputs]
            state = chain.step(last, inputs, chain.captured)
            return [
                lax.dynamic_update_index_in_dim(rest, z, index, 0)
                for rest, z in zip(trajectory, state, strict=True)
            ]

        begin = jnp.clip(prefix - chain.axis.rank * length, 0, length).astype(jnp.int32)
        with fallback(FALLBACK, expected):
            finished: Leaves = lax.fori_loop(begin, jnp.int32(length), body, trajectory)
        return [leaf[-1] for leaf in finished], finished

    if chain.axis.size == 1:
        return run(chain.initial, trajectory)[1]
    return lax.cond(
        prefix < chain.total,
        lambda: chain.axis.sequentially(run, chain.initial, trajectory)[1],
        lambda: trajectory,
    )


def _at(x: Array, index: Array) -> Array:
    return lax.dynamic_index_in_dim(x, index, keepdims=False)
