"""What a step's jaxpr proves about its Jacobian, before anything runs.

`examples_are_separate`: no example of a batch can influence another, so one block an example is the whole derivative. The walk
follows the batch axes of the state through the program. It knows the common primitives and gives up at any other: "not proven"
is always a safe answer.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from deeppcr.jaxprs import ELEMENTWISE, Program, called, is_literal, without_constants
from deeppcr.state import Leaves, StateLayout
from deeppcr.step import Step

Axes = tuple[int, ...]  # where the batch axes are in an array; empty if the array does not depend on the state


class _Mixed(Exception):
    """Examples may meet here."""


def examples_are_separate(step: Step, layout: StateLayout) -> bool:
    """Whether it is proven that the derivative of each example's next state involves that example alone.

    What is walked is the program of the derivative: a `jax.custom_jvp` may mix what its function keeps apart.
    """
    if layout.examples <= 1:
        return True
    variables = [*step.jaxpr.invars, *step.jaxpr.constvars]
    shapes = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in variables]
    state, others = shapes[: step.states], shapes[step.states :]

    def derivative(state: Leaves, tangents: Leaves, others: Leaves) -> Leaves:
        inputs, captured = others[: step.inputs], others[step.inputs :]
        moved: Leaves = jax.jvp(lambda z: step(z, inputs, captured), (state,), (tangents,))[1]
        return moved

    closed = jax.make_jaxpr(derivative)(state, state, others)
    batch = tuple(range(len(layout.batch_shape)))
    try:
        outputs = _walk(Program.of(closed), [batch] * (2 * len(state)) + [()] * len(others))
    except _Mixed:
        return False
    return all(axes in (batch, ()) for axes in outputs)


def _walk(jaxpr: Any, inputs: list[Axes]) -> list[Axes]:
    found: dict[Any, Axes] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Axes:
        return () if is_literal(atom) else found.get(atom, ())  # constants are independent

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        results = _follow(equation, operands) if any(operands) else [()] * len(equation.outvars)
        found.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _follow(equation: Any, operands: list[Axes]) -> list[Axes]:
    name, count = equation.primitive.name, len(equation.outvars)
    if name in ELEMENTWISE:
        return [_same(operands)] * count
    inner = called(equation)
    if inner is not None:
        return _walk(without_constants(inner), operands)
    if name not in RULES:
        raise _Mixed
    return [RULES[name](equation, operands)] * count


def _same(operands: list[Axes]) -> Axes:
    dependent = {axes for axes in operands if axes}
    if len(dependent) > 1:
        raise _Mixed
    return dependent.pop()


def _require(condition: bool) -> None:
    if not condition:
        raise _Mixed


def _only_first(operands: list[Axes]) -> Axes:
    """The axes of the first operand; the others must not depend on the state."""
    _require(not any(operands[1:]))
    return operands[0]


def _without(axes: Axes, dropped: Any) -> Axes:
    _require(not set(axes) & set(dropped))
    return tuple(axis - sum(d < axis for d in dropped) for axis in axes)


def _reduce(equation: Any, operands: list[Axes]) -> Axes:
    return _without(_same(operands), equation.params["axes"])


def _squeeze(equation: Any, operands: list[Axes]) -> Axes:
    return _without(operands[0], equation.params["dimensions"])


def _along(key: str) -> Callable[[Any, list[Axes]], Axes]:
    """A rule for what mixes along one axis only."""

    def rule(equation: Any, operands: list[Axes]) -> Axes:
        axes = _same(operands)
        _require(equation.params[key] not in axes)
        return axes

    return rule


def _broadcast(equation: Any, operands: list[Axes]) -> Axes:
    axes = _only_first(operands)
    place = equation.params["broadcast_dimensions"]
    before, after = equation.invars[0].aval.shape, equation.params["shape"]
    _require(all(before[axis] == after[place[axis]] for axis in axes))
    return tuple(place[axis] for axis in axes)


def _transpose(equation: Any, operands: list[Axes]) -> Axes:
    order = equation.params["permutation"]
    return tuple(order.index(axis) for axis in operands[0])


def _reshape(equation: Any, operands: list[Axes]) -> Axes:
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    result = []
    for axis in _only_first(operands):
        start = int(np.prod(before[:axis], dtype=int))
        places = [
            place
            for place, size in enumerate(after)
            if size == before[axis] and int(np.prod(after[:place], dtype=int)) == start and place not in result
        ]
        _require(bool(places))
        result.append(places[0])
    return tuple(result)


def _slice(equation: Any, operands: list[Axes]) -> Axes:
    axes = _only_first(operands)
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    _require(all(before[axis] == after[axis] for axis in axes))
    return axes


def _pad(equation: Any, operands: list[Axes]) -> Axes:
    axes = _only_first(operands)
    _require(all(equation.params["padding_config"][axis] == (0, 0, 0) for axis in axes))
    return axes


def _reverse(equation: Any, operands: list[Axes]) -> Axes:
    _require(not set(operands[0]) & set(equation.params["dimensions"]))
    return operands[0]


def _dot(equation: Any, operands: list[Axes]) -> Axes:
    contracted, batch = equation.params["dimension_numbers"]
    ndims = [atom.aval.ndim for atom in equation.invars]

    def places(side: int) -> Axes:
        free = [axis for axis in range(ndims[side]) if axis not in (*contracted[side], *batch[side])]
        offset = len(batch[0]) + (0 if side == 0 else ndims[0] - len(batch[0]) - len(contracted[0]))
        order = {axis: place for place, axis in enumerate(batch[side])}
        order |= {axis: offset + place for place, axis in enumerate(free)}
        _require(all(axis in order for axis in operands[side]))
        return tuple(order[axis] for axis in operands[side])

    return _same([places(0), places(1)])


def _convolution(equation: Any, operands: list[Axes]) -> Axes:
    numbers = equation.params["dimension_numbers"]
    _require(_only_first(operands) == (numbers.lhs_spec[0],) and equation.params["batch_group_count"] == 1)
    return (numbers.out_spec[0],)


def _names(text: str) -> list[str]:
    return text.split()


RULES: dict[str, Callable[[Any, list[Axes]], Axes]] = {
    **dict.fromkeys(_names("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin"), _reduce),
    **dict.fromkeys(_names("cumsum cumprod cummax cummin cumlogsumexp"), _along("axis")),
    "concatenate": _along("dimension"),
    "sort": _along("dimension"),
    "split": _along("axis"),
    "squeeze": _squeeze,
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "dynamic_slice": _slice,
    "pad": _pad,
    "rev": _reverse,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
}
