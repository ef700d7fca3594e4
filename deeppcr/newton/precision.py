"""Iterating in float32 or better, whatever the dtypes of the chain."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.arrays.avals import of_step
from deeppcr.arrays.state import Leaves, StateLayout
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.trace import trace


def in_float32(chain: TracedChain) -> TracedChain:
    """The same chain computed in float32 or better.

    Iterates in bfloat16 or float16 stagnate far above the resolution of their dtype. A step that
    casts to its narrow dtype is iterated in that dtype.
    """
    initial, inputs = [_widened(z) for z in chain.initial], [_widened(x) for x in chain.inputs]
    if chain.function is None or [z.dtype for z in initial] == list(chain.layout.dtypes):
        return chain
    state = jax.tree.unflatten(chain.step.state_tree, initial)
    first = list(map(of_step, inputs))
    try:
        step, captured = trace(
            chain.function, state, jax.tree.unflatten(chain.step.input_tree, first)
        )
    except (TypeError, ValueError):  # dtypes that do not mix, or a state that is cast back
        return chain
    layout = StateLayout.of(initial, len(chain.layout.batch_shape))
    return dataclasses.replace(
        chain, step=step, layout=layout, initial=initial, inputs=inputs, captured=captured
    )


def _widened(x: Array) -> Array:
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32
    return x.astype(np.float32) if narrow else x


def cast(leaves: Leaves, dtypes: Sequence[Any]) -> Leaves:
    """Every leaf in its dtype."""
    return [
        leaf if leaf.dtype == dtype else leaf.astype(dtype)
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
