"""Trace a user's step, a function of pytrees that may close over arrays, to a `Step`.

A step has to return a state like the one that it takes.

Random numbers that a step draws from inputs alone are drawn once for all steps (`drawn_first`).
Noise of given keys, or of a key that is carried and split, depends on no state and no parameter, so
that it has no derivative. Drawing it before the chain avoids redrawing it in every iteration of
Newton's method and in the gradient.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.arrays import Leaves, abstract, floating, is_weak, partition, varying_axes
from deeppcr.chain.eager import compiled_once
from deeppcr.chain.step import Step
from deeppcr.checks import describe, leaves_as_arrays, named_after
from deeppcr.programs.effects import couples_devices, side_effects
from deeppcr.programs.retrace import Retrace
from depth.counts import nbytes
from depth.jaxprs import (
    Program,
    bind,
    equations,
    interpret,
    is_reference,
    moved_by,
    needed,
    read_by,
    vary,
)
from depth.primitives import of_kind


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
            closed, output_tree, returned = _promoted(f, state, inputs)
    except Exception:
        if jax.sharding.get_abstract_mesh().empty:
            raise
        # It may name shardings of this mesh.
        closed, output_tree, returned = _promoted(f, state, inputs)
    state_tree: Any = jax.tree.structure(state)
    input_tree: Any = jax.tree.structure(inputs)
    program = Program.of(closed)
    step = Step(
        program,
        state_tree.num_leaves,
        state_tree,
        input_tree,
        output_tree,
        side_effects(closed),
        weak=tuple(map(is_weak, returned)),
    )
    constants = zip(program.constvars, closed.consts, strict=True)
    # Constants may be numbers and numpy arrays.
    captured = [c if is_reference(variable) else jnp.asarray(c) for variable, c in constants]
    return _varying_equally(step, captured)


def _promoted(
    f: Callable[[Any, Any], Any], state: Any, inputs: Any
) -> tuple[Any, Any, Sequence[Any]]:
    """See `_program`: of a state with the dtypes that ``f`` returns."""
    leaves, tree = jax.tree.flatten(state)
    traced = _program(f, state, inputs)
    promoted = list(map(promote, leaves, traced[2]))
    if any(map(operator.is_not, promoted, leaves)):  # once, as jax does
        state = jax.tree.unflatten(tree, promoted)
        traced = _program(f, state, inputs)
    check_same_state(state, traced[2])
    return traced


def _program(
    f: Callable[[Any, Any], Any], state: Any, inputs: Any
) -> tuple[Any, Any, Sequence[Any]]:
    """The program of ``(state, input) -> (*after, *outputs)``.

    ``after`` are the leaves that f has returned, in the dtypes of the state. Also the structure of
    the outputs, and the types of what f has returned, state and outputs.
    """
    returned: list[Any] = []

    @named_after(f)
    def step(before: Any, inputs: Any) -> tuple[Leaves, Any]:
        leaves = jax.tree.leaves(before)  # taken now: the step may change its argument
        result = f(before, inputs)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(
                f"f returns {describe(result)}, expected a pair (carry, y), as for jax.lax.scan; "
                "a step that returns the next state alone is one for deeppcr.Chain."
            )
        next_state, outputs = result
        check_same_structure(state, next_state)
        after = leaves_as_arrays("the next state", next_state)
        ys = leaves_as_arrays("y", outputs)
        returned[:] = map(jax.typeof, [*after, *ys])
        after = list(map(with_type_of, leaves, after))
        return after, jax.tree.unflatten(jax.tree.structure(outputs), ys)

    closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, inputs)
    return closed, jax.tree.structure(shapes[1]), returned


def _varying_equally(step: Step, captured: Leaves) -> tuple[Step, Leaves]:
    """The step whose arrays vary over the same axes of `jax.shard_map`, where that is possible.

    Also the arrays that it captures.
    """
    axes = step.varies
    if not axes or not step.varies_like_state or step.effects or couples_devices(step.jaxpr, axes):
        return step, captured
    program, constants = Retrace(axes).program(step.jaxpr)
    captured = [vary(x, axes) for x in captured]
    return dataclasses.replace(step, jaxpr=program), [*captured, *map(jnp.asarray, constants)]


def on_no_mesh() -> AbstractContextManager[Any]:
    """Programs traced in here can run on any mesh, and in `jax.shard_map`.

    A current mesh with manual axes stays, because arrays vary over them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    manual = mesh if mesh.manual_axes else jax.sharding.AbstractMesh((), ())
    return jax.sharding.use_abstract_mesh(manual)


def check_same_structure(before: Any, after: Any) -> None:
    """Raise unless the step returns a state of the structure that it takes."""
    old: Any = jax.tree.structure(before)
    new: Any = jax.tree.structure(after)
    if old != new:
        raise TypeError(
            f"the step changes the structure of the state: it takes {old} and returns {new}; "
            "expected the same structure. A step that returns (carry, y) is one for deeppcr.scan."
        )


def check_same_state(before: Any, returned: Sequence[Any]) -> None:
    """Raise unless the leaves that are ``returned`` first have the types of the state ``before``.

    Weakly typed ones may have less than these dtypes.
    """
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(before), returned, strict=False):
        name = f"state{jax.tree_util.keystr(path)}"
        if a.shape != b.shape or not _fits(a, b):
            remedy = f" Give the initial state dtype {b.dtype}, or cast what the step returns."
            raise TypeError(
                f"the step changes {name} from {describe(a)} "
                f"to {describe(b)}; expected the same shape and dtype at every step."
                + (remedy if a.shape == b.shape else "")
            )
        _check_varies(name, a, b)


def with_type_of(before: Any, after: Any) -> Any:
    """The leaf ``after`` in the dtype of ``before``, not weakly typed; unchanged ones remain so."""
    is_same = before.dtype == after.dtype and not is_weak(after)
    if after is before or is_same or not _fits(before, after):
        return after
    return after.astype(before.dtype)


def _fits(before: Any, after: Any) -> bool:
    return before.dtype == after.dtype or (is_weak(after) and _rank(after) <= _rank(before))


def _check_varies(name: str, before: Any, after: Any) -> None:
    """Raise unless two arrays vary over the same axes of `jax.shard_map`."""
    old, new = varying_axes(before), varying_axes(after)
    if old == new:
        return
    shown = [", ".join(map(repr, sorted(axes))) or "none" for axes in (old, new)]
    cast = f"jax.lax.pcast(..., {tuple(sorted(old ^ new))}, to='varying')"
    target = "what the step returns" if old - new else "the initial state"
    raise TypeError(
        f"the step changes over which axes of jax.shard_map {name} varies, "
        f"{describe(before)}: over {shown[0]} before, over {shown[1]} after it; expected the same "
        f"axes at every step. Apply {cast} to this part of {target}."
    )


def promote(before: Any, after: Any) -> Any:
    """A leaf of the state, promoted if it is weakly typed and the step returns a wider dtype."""
    if before.dtype != after.dtype and _fits(after, before):
        return abstract(before, dtype=after.dtype)
    return before


def _rank(x: Any) -> int:
    """The rank of the kind of a dtype: lower ranks are promoted to higher ones."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    ranks = [rank for rank, kind in enumerate(kinds) if jnp.issubdtype(x.dtype, kind)]
    return ranks[0] if ranks else -1


# -- random numbers --------------------------------------------------------------------------------

MOST_BYTES = 1 << 26  # of all steps: 64 MB; beyond it a step draws its own


def drawn_first(step: Step, captured: Leaves, inputs: Leaves, length: int) -> tuple[Step, Leaves]:
    """The step that takes such numbers as more inputs, and these inputs; or the same step."""
    program, first = step.jaxpr, _drawing(step)
    numbers = first.outvars
    if not numbers or length * sum(map(nbytes, numbers)) > MOST_BYTES:
        return step, []
    variables = [*program.invars[step.states :], *program.constvars]
    values = dict(zip(variables, [*inputs, *captured], strict=True))
    arrays = list(map(values.__getitem__, first.invars))
    constants = list(map(values.__getitem__, first.constvars))
    drawn = compiled_once(_draw, step, arrays, constants)
    rest = needed(program, numbers, program.outvars)
    program = program._replace(invars=[*program.invars, *numbers], eqns=rest)
    return dataclasses.replace(step, jaxpr=program), drawn


def _draw(step: Step, inputs: Leaves, captured: Leaves) -> Leaves:
    """The numbers of all steps, from what their program reads."""
    first = _drawing(step)

    def one(inputs: Leaves) -> Leaves:
        return interpret(first, first.environment([*captured, *inputs]), first.outvars, bind)

    return jax.vmap(one)(inputs)


def _drawing(step: Step) -> Program:
    """The program of the numbers that the rest of a step reads, from what it reads itself.

    It draws all that depends on no floating number.
    """
    program = step.jaxpr
    if not of_kind(equations(program), "random"):  # most often
        return Program([], [], [], [])
    inputs = program.invars[step.states :]
    random: list[Any] = []
    for equation in program.eqns:
        within = equations(program._replace(eqns=[equation]))  # the equation itself, too
        are_keys = all(jnp.issubdtype(y.aval.dtype, jax.dtypes.prng_key) for y in equation.outvars)
        if of_kind(within, "random") and not are_keys:
            random += equation.outvars
    variables = [*inputs, *program.constvars]
    floats = partition(variables, floating(variables))
    with_state = moved_by(program, [*program.invars[: step.states], *floats])
    by_inputs = moved_by(program, inputs)  # what is not is the same in all steps
    drawn = moved_by(program, by_inputs.intersection(random)) - with_state
    rest = [each for each in program.eqns if drawn.isdisjoint(each.outvars)]
    numbers = list(filter(drawn.__contains__, read_by(rest, program.outvars)))
    first = needed(program, (), numbers)
    is_read = read_by(first).__contains__
    constants = list(filter(is_read, program.constvars))
    return Program(constants, list(filter(is_read, inputs)), first, numbers)
