"""Trace a user's step, a function of pytrees that may close over arrays, to a `Step`."""

import dataclasses
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.arrays.state import Leaves
from deeppcr.chain.same_state import (
    check_same_state,
    check_same_structure,
    is_weak,
    promote,
    with_type_of,
)
from deeppcr.chain.step import Step
from deeppcr.checks import describe, leaves_as_arrays, named_after
from deeppcr.programs.effects import couples_devices, side_effects
from deeppcr.programs.retrace import varying_alike
from depth.jaxprs import Program, is_reference, vary, without_constants


def trace(f: Callable[[Any, Any], tuple[Any, Any]], state: Any, inputs: Any) -> tuple[Step, Leaves]:
    """Trace ``f(state, input) -> (state, outputs)``, the step of a chain.

    As `jax.lax.scan` does, it gives weakly typed leaves of the state, such as Python numbers, the
    dtypes that the step returns: `Step.dtypes`.

    Args:
        state: the initial state, or `jax.ShapeDtypeStruct` for it.
        inputs: the input of step 1, as `jax.ShapeDtypeStruct`.

    Returns:
        the step, and the arrays that ``f`` closes over.

    Raises:
        TypeError: the step returns no pair, or changes the structure, the shape or the dtype of the
            state.
    """
    try:
        with on_no_mesh():
            closed, output_tree = _promoted(f, state, inputs)
    except Exception:
        if jax.sharding.get_abstract_mesh().empty:
            raise
        closed, output_tree = _promoted(f, state, inputs)  # it may name shardings of this mesh
    state_tree: Any = jax.tree.structure(state)
    input_tree: Any = jax.tree.structure(inputs)
    states = state_tree.num_leaves
    program = Program.of(closed)
    end = len(program.outvars) - states
    outputs = [y.aval for y in program.outvars[states:end]]
    step = Step(
        program._replace(outvars=program.outvars[:end]),
        states,
        input_tree.num_leaves,
        state_tree,
        input_tree,
        output_tree,
        side_effects(closed),
        weak=tuple(map(is_weak, [*_returned(program, states), *outputs])),
    )
    constants = zip(program.constvars, closed.consts, strict=True)
    # Constants may be numbers and numpy arrays.
    captured = [c if is_reference(variable) else jnp.asarray(c) for variable, c in constants]
    return _varying_alike(step, captured)


def _promoted(f: Callable[[Any, Any], Any], state: Any, inputs: Any) -> tuple[Any, Any]:
    """See `_program`: of a state with the dtypes that ``f`` returns."""
    leaves, tree = jax.tree.flatten(state)
    closed, output_tree = _program(f, state, inputs)
    promoted = list(map(promote, leaves, _returned(closed, len(leaves))))
    if any(map(operator.is_not, promoted, leaves)):  # once, as jax does
        state = jax.tree.unflatten(tree, promoted)
        closed, output_tree = _program(f, state, inputs)
    check_same_state(state, _returned(closed, len(leaves)))
    return closed, output_tree


def _program(f: Callable[[Any, Any], Any], state: Any, inputs: Any) -> tuple[Any, Any]:
    """The program of ``(state, input) -> (*after, *outputs, *returned)``.

    ``after`` are the leaves that f has ``returned``, in the dtypes of the state. Also the structure
    of the outputs.
    """

    @named_after(f)
    def step(before: Any, inputs: Any) -> tuple[Leaves, Any, Leaves]:
        leaves = jax.tree.leaves(before)  # taken now: the step may change its argument
        result = f(before, inputs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"f returns {describe(result)}, expected a pair (carry, y), as for jax.lax.scan; "
                "a step that returns the next state alone is one for deeppcr.Chain."
            )
        next_state, outputs = result
        check_same_structure(state, next_state)
        returned = leaves_as_arrays("the next state", next_state)
        after = list(map(with_type_of, leaves, returned))
        ys = leaves_as_arrays("y", outputs)
        return after, jax.tree.unflatten(jax.tree.structure(outputs), ys), returned

    closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, inputs)
    return closed, jax.tree.structure(shapes[1])


def _returned(closed: Any, states: int) -> Leaves:
    """The types of the state that the user's function has returned, in a `_program`."""
    outvars = without_constants(closed).outvars
    return [variable.aval for variable in outvars[len(outvars) - states :]]


def _varying_alike(step: Step, captured: Leaves) -> tuple[Step, Leaves]:
    """The step whose arrays vary over the same axes of `jax.shard_map`, where that is possible.

    Also the arrays that it captures.
    """
    axes = step.varies
    if not axes or not step.varies_like_state or step.effects or couples_devices(step.jaxpr, axes):
        return step, captured
    program, constants = varying_alike(step.jaxpr, axes)
    captured = [vary(x, axes) for x in captured]
    return dataclasses.replace(step, jaxpr=program), [*captured, *map(jnp.asarray, constants)]


def on_no_mesh() -> AbstractContextManager[Any]:
    """Programs traced in here can run on any mesh, and in `jax.shard_map`.

    A current mesh with manual axes stays, because arrays vary over them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = mesh if mesh.manual_axes else jax.sharding.AbstractMesh((), ())
    return jax.sharding.use_abstract_mesh(manual)
