"""The sequential fallback: it runs the steps after those that have converged."""

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import Leaves
from deeppcr.chain.chain import TracedChain
from deeppcr.loops import FALLBACK, fallback, steps_from, unless
from deeppcr.lower import fused_scan
from deeppcr.sequential import kernel_of


def finish(chain: TracedChain, trajectory: Leaves, prefix: Array, expected: bool = False) -> Leaves:
    """Run the steps after ``prefix`` one by one; the loop makes no trip if there are none.

    On a GPU all steps run again where one kernel does that. ``expected``: whether it is known
    beforehand that there are some.
    """
    length = chain.length
    if step := kernel_of(chain):

        def kernel() -> Leaves:
            return fused_scan(step, chain.initial, chain.inputs, chain.captured, False, length)[1]

        with fallback(FALLBACK, expected):
            return unless(prefix == length, trajectory, kernel)

    def run(entry: Leaves, trajectory: Leaves) -> tuple[Leaves, Leaves]:
        def step(index: Array, before: Leaves) -> tuple[Leaves, Leaves]:
            inputs = [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in chain.inputs]
            after = chain.step(before, inputs, chain.captured)
            return after, after

        begin = jnp.clip(prefix - chain.axis.rank * length, 0, length).astype(jnp.int32)
        before = [
            jnp.where(begin == 0, z, lax.dynamic_index_in_dim(rest, begin - 1, keepdims=False))
            for z, rest in zip(entry, trajectory, strict=True)
        ]
        with fallback(FALLBACK, expected):
            _, finished = steps_from(begin, step, before, trajectory)
        return [leaf[-1] for leaf in finished], finished

    if chain.axis.size == 1:
        return run(chain.initial, trajectory)[1]
    return lax.cond(
        prefix < chain.total,
        lambda: chain.axis.sequentially(run, chain.initial, trajectory)[1],
        lambda: trajectory,
    )
