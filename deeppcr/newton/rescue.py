"""Finishing a chain step by step, from where it has converged."""

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import Steps
from deeppcr.state import Leaves


def finish(steps: Steps, initial: Leaves, trajectory: Leaves, prefix: Array) -> Leaves:
    """Run the steps after ``prefix`` one by one, over what is there; no turn of the loop if that is all of them."""

    def body(index: Array, trajectory: Leaves) -> Leaves:
        last = [
            jnp.where(index == 0, z, lax.dynamic_index_in_dim(rest, jnp.maximum(index - 1, 0), keepdims=False))
            for z, rest in zip(initial, trajectory, strict=True)
        ]
        inputs = [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in steps.inputs]
        state = steps.step(last, inputs, steps.captured)
        return [lax.dynamic_update_index_in_dim(rest, z, index, 0) for rest, z in zip(trajectory, state, strict=True)]

    length = jnp.int32(trajectory[0].shape[0])
    finished: Leaves = lax.fori_loop(prefix, length, body, trajectory)
    return finished
