"""Finishing a chain step by step, from where it has converged."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import Steps
from deeppcr.loops import FINISHING
from deeppcr.state import Leaves


def finish(steps: Steps, initial: Leaves, trajectory: Leaves, prefix: Array) -> Leaves:
    """Run the steps after ``prefix`` one by one, over what is there; no turn of the loop if that is all of them."""
    length = steps.length

    def run(entry: Leaves, trajectory: Leaves) -> tuple[Leaves, Leaves]:
        def body(index: Array, trajectory: Leaves) -> Leaves:
            last = [
                jnp.where(
                    index == 0,
                    z,
                    lax.dynamic_index_in_dim(rest, jnp.maximum(index - 1, 0), keepdims=False),
                )
                for z, rest in zip(entry, trajectory, strict=True)
            ]
            inputs = [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in steps.inputs]
            state = steps.step(last, inputs, steps.captured)
            return [
                lax.dynamic_update_index_in_dim(rest, z, index, 0)
                for rest, z in zip(trajectory, state, strict=True)
            ]

        begin = jnp.clip(prefix - steps.across.rank * length, 0, length).astype(jnp.int32)
        with jax.named_scope(FINISHING):
            finished: Leaves = lax.fori_loop(begin, jnp.int32(length), body, trajectory)
        return [leaf[-1] for leaf in finished], finished

    if steps.across.size == 1:
        return run(initial, trajectory)[1]
    return lax.cond(
        prefix < steps.total,
        lambda: steps.across.in_turn(run, initial, trajectory)[1],
        lambda: trajectory,
    )
