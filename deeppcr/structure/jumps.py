"""Where a step may jump: a choice, a rounding or a comparison of the state.

The derivative of a step says nothing about a jump, so Newton's method does not see it coming. This
reader follows the state through the program of a step. Each value has the jumps that it may have,
and the choices that have not become jumps yet: a comparison of the state changes from one element
to the next at once, but ``where(z > 0, z, 0)`` does not. Elementwise arithmetic around a choice is
examined by `deeppcr.structure.continuity`: if its result is continuous wherever the choice changes,
there is no jump. What is neither elementwise nor simple is not proven: a step *may* jump there.

Kinks (relu, abs, max, clip, the maximum of a window) are continuous. An order (sort) is continuous
in its values, and jumps in its indices. Two values that depend on the state and are compared for
equality are a choice (a mask of the largest); a comparison for equality with a constant, which
guards a division by zero, is not, since hardly any state lies there. Rounding to a dtype is none.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax.numpy as jnp

from deeppcr.step import Step
from deeppcr.structure.continuity import (
    Node,
    is_continuous,
    leaf,
    literal,
    moved,
    operation,
    variable_of,
)
from depth.jaxprs import (
    NOWHERE,
    Location,
    called,
    interpret,
    location,
    scan_parts,
    without_constants,
)
from depth.primitives import primitive

# What a choice does with the state, by primitive.
COMPARES = dict.fromkeys(("eq", "ne", "ge", "gt", "le", "lt"), "compares")
ROUNDS = dict.fromkeys(("floor", "ceil", "round"), "rounds") | {"sign": "takes the sign of"}
CHOICES = COMPARES | ROUNDS | {"rem": "takes the remainder of"}
AT_ONCE = {
    "argmax": "takes the argmax of",
    "argmin": "takes the argmin of",
    "bitcast_convert_type": "reads the bits of",
    "population_count": "reads the bits of",
}
PROGRAMS = ("loop", "branch", "program")
TRIES = 6  # operations after a choice at which it is examined


class Jump(NamedTuple):
    """A line of the user's program at which the step may jump."""

    where: Location
    verb: str

    def __str__(self) -> str:
        where = f"{os.path.basename(self.where.file)}:{self.where.line}"
        return f"{where if self.where.line else 'the step'} {self.verb} the state"


class Value(NamedTuple):
    """A value of the program.

    Attributes:
        moves: whether it depends on the state.
        jumps: where it may jump.
        choices: of the state that it contains, which may still turn out to be continuous.
        node: its expression, as far as it is elementwise.
        tries: the number of operations left at which the choices are examined.
    """

    moves: bool
    jumps: frozenset[Jump]
    choices: frozenset[Jump]
    node: Node
    tries: int = TRIES

    @property
    def possible(self) -> frozenset[Jump]:
        """Its jumps, with all choices among them."""
        return self.jumps | self.choices


NOTHING: frozenset[Jump] = frozenset()


_FOUND: WeakKeyDictionary[Step, tuple[Jump, ...]] = WeakKeyDictionary()


def find_jumps(step: Step) -> tuple[Jump, ...]:
    """Where the next state may jump, line by line. Computed once for each step."""
    if step not in _FOUND:
        jaxpr, states = step.jaxpr, step.states
        inputs = [fresh(i < states) for i in range(len(jaxpr.invars))]
        results = _program(jaxpr, inputs, NOWHERE)[:states]
        _FOUND[step] = tuple(sorted(NOTHING.union(*(value.possible for value in results))))
    return _FOUND[step]


def fresh(moves: bool, jumps: frozenset[Jump] = NOTHING, is_bool: bool = False) -> Value:
    """A value without an expression."""
    return Value(moves, jumps, NOTHING, leaf(moves, is_bool))


def _program(jaxpr: Any, inputs: Sequence[Value], caller: Location) -> list[Value]:
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= {variable: fresh(False) for variable in jaxpr.constvars}
    return interpret(jaxpr, known, jaxpr.outvars, partial(_results, caller), _literal)


def _literal(atom: Any) -> Value:
    node = literal(float(atom.val)) if jnp.ndim(atom.val) == 0 and _is_real(atom) else leaf(False)
    return Value(False, NOTHING, NOTHING, node)


def _is_real(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and (jnp.issubdtype(dtype, jnp.floating) or _is_whole(dtype))


def _is_whole(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_))


def _results(caller: Location, equation: Any, operands: list[Value]) -> Sequence[Value]:
    name, kind = equation.primitive.name, primitive(equation).kind
    where = location(equation, caller)
    if (inner := called(equation)) is not None:
        return _program(without_constants(inner), operands, where)
    if kind == "elementwise":
        return [_elementwise(equation, operands, where)]
    if kind == "move" and name not in AT_ONCE and len(operands) == len(equation.outvars) == 1:
        (value,) = operands
        return [value._replace(node=moved(value.node, equation))]
    if not any(value.moves for value in operands):
        return _opaque(equation, operands)
    if kind in PROGRAMS:
        return _of_programs(equation, operands, where)
    jumps = NOTHING.union(*(value.possible for value in operands))
    if name in AT_ONCE:
        return _opaque(equation, operands, jumps | {Jump(where, AT_ONCE[name])})
    if kind == "random":
        return _opaque(equation, operands, jumps | {Jump(where, "draws random numbers by")})
    if kind == "sort":
        permuted = jumps | {Jump(where, "sorts by")}
        rest = len(equation.outvars) - 1
        return [fresh(True, jumps), *(fresh(True, permuted) for _ in range(rest))]
    if name in ("reduce_and", "reduce_or"):
        choices = NOTHING.union(*(value.choices for value in operands))
        plain = NOTHING.union(*(value.jumps for value in operands))
        return [Value(True, plain, choices, leaf(True, is_bool=True))]
    return _opaque(equation, operands, jumps)


def _opaque(
    equation: Any, operands: Sequence[Value], jumps: frozenset[Jump] = NOTHING
) -> list[Value]:
    """The results of an equation that nothing else is known of."""
    moves = any(value.moves for value in operands)
    if len(equation.outvars) != 1 or primitive(equation).kind in PROGRAMS:
        return [fresh(moves, jumps, is_bool=_is_bool(out)) for out in equation.outvars]
    nodes, is_bool = [value.node for value in operands], _is_bool(equation.outvars[0])
    return [Value(moves, jumps, NOTHING, variable_of(equation, nodes, moves, is_bool))]


def _is_bool(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.bool_))


def _elementwise(equation: Any, operands: list[Value], where: Location) -> Value:
    name = equation.primitive.name
    node = operation(equation, [value.node for value in operands])
    if not any(value.moves for value in operands):
        return Value(False, NOTHING, NOTHING, node)
    jumps = NOTHING.union(*(value.jumps for value in operands))
    choices = NOTHING.union(*(value.choices for value in operands))
    tries = min((value.tries for value in operands if value.choices), default=TRIES)
    if name in CHOICES and _chooses(name, operands):
        return Value(True, jumps, choices | {Jump(where, CHOICES[name])}, node, tries)
    if name == "convert_element_type" and _truncates(equation):
        return Value(True, jumps, choices | {Jump(where, "rounds")}, node, tries)
    if not choices or _is_bool(equation.outvars[0]) or name == "convert_element_type":
        return Value(True, jumps, choices, node, tries)
    if is_continuous(node):
        return Value(True, jumps, NOTHING, node)
    if name == "select_n" and operands[0].choices:
        cases = NOTHING.union(*(value.choices for value in operands[1:]))
        choices = cases | {Jump(where, "selects by")}
    if tries == 0:
        return Value(True, jumps | choices, NOTHING, leaf(True))
    return Value(True, jumps, choices, node, tries - 1)


def _chooses(name: str, operands: list[Value]) -> bool:
    """Whether a comparison or a rounding of the state changes at once somewhere."""
    if name not in ("eq", "ne"):
        return True
    left, right = operands
    return left.node is not right.node and left.moves and right.moves  # x != x: whether it is NaN


def _truncates(equation: Any) -> bool:
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    return bool(jnp.issubdtype(before, jnp.floating)) and _is_whole(after)


def _of_programs(equation: Any, operands: list[Value], where: Location) -> Sequence[Value]:
    """The results of an equation with inner programs."""
    name, params = equation.primitive.name, equation.params
    if name == "cond":
        which, *rest = operands
        branches = [
            _program(without_constants(branch), rest, where) for branch in params["branches"]
        ]
        by = which.jumps | {Jump(where, "branches by")} if which.moves else NOTHING
        return [
            fresh(
                any(each.moves for each in found) or which.moves,
                by.union(*(each.possible for each in found)),
            )
            for found in zip(*branches, strict=True)
        ]
    if name == "scan":
        consts, carried, _ = scan_parts(equation)
        body = without_constants(params["jaxpr"])
        fixed, state = operands[:consts], operands[consts : consts + carried]
        scanned = [_plain(value) for value in operands[consts + carried :]]
        return _repeated(lambda state: _program(body, [*fixed, *state, *scanned], where), state)
    if name == "while":
        first, start = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        condition = without_constants(params["cond_jaxpr"])
        body = without_constants(params["body_jaxpr"])

        def trip(state: list[Value]) -> list[Value]:
            (going,) = _program(condition, [*operands[:first], *state], where)
            by = going.jumps | {Jump(where, "loops by")} if going.moves else NOTHING
            found = _program(body, [*operands[first:start], *state], where)
            return [
                fresh(each.moves or going.moves, each.possible | by)
                if each.moves or going.moves
                else each
                for each in found
            ]

        return _repeated(trip, operands[start:])
    return _opaque(equation, operands, NOTHING.union(*(value.possible for value in operands)))


def _plain(value: Value) -> Value:
    """The same, of another element."""
    return fresh(value.moves, value.possible)


def _repeated(trip: Callable[[list[Value]], list[Value]], state: list[Value]) -> list[Value]:
    """The results of a trip that adds nothing to ``state``, which leads the results."""
    state = [_plain(value) for value in state]
    while True:
        found = trip(state)
        joined = [
            (old.moves or new.moves, old.jumps | new.possible)
            for old, new in zip(state, found, strict=False)
        ]
        if joined == [(value.moves, value.jumps) for value in state]:
            return [*state, *map(_plain, found[len(state) :])]
        state = [fresh(*each) for each in joined]
