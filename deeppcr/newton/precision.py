"""Iterating in float32 or better, whatever the dtypes of the chain."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.chain import Problem
from deeppcr.state import Leaves, StateLayout
from deeppcr.step import trace


def in_float32(problem: Problem) -> Problem:
    """The same chain computed in float32 or better.

    Iterates of bfloat16 or float16 stall far above what their dtype could resolve. A step that insists on its narrow dtype, by a
    cast of its own, is iterated as it is.
    """
    initial, inputs = [_widened(z) for z in problem.initial], [_widened(x) for x in problem.inputs]
    if [z.dtype for z in initial] == list(problem.layout.dtypes):
        return problem
    tree, batch_ndim = problem.step.state_tree, len(problem.layout.batch_shape)
    state = jax.tree.unflatten(tree, initial)
    arguments = jax.tree.unflatten(
        problem.step.input_tree, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in inputs]
    )
    try:
        step, captured = trace(problem.function, state, arguments)
    except (
        TypeError,
        ValueError,
    ):  # what jax raises of dtypes that do not mix, and `trace` of a state cast back
        return problem
    layout = StateLayout.of(initial, batch_ndim)
    return Problem(problem.function, step, layout, problem.length, initial, inputs, captured)


def _widened(x: Array) -> Array:
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32
    return x.astype(np.float32) if narrow else x


def cast(leaves: Leaves, dtypes: Sequence[Any]) -> Leaves:
    """Every leaf in its dtype."""
    return [
        leaf if leaf.dtype == dtype else leaf.astype(dtype)
        for leaf, dtype in zip(leaves, dtypes, strict=True)
    ]
