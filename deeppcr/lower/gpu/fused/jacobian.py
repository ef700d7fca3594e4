"""The Jacobian of a step, entry by entry: one tangent for each entry of the state."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.entries import Entries, constant, evaluate, table_of
from deeppcr.lower.gpu.fused.operations import Code
from deeppcr.lower.gpu.fused.step import FusedStep
from deeppcr.programs import cut_first
from depth.jaxprs import Program, constants_of


class Linearised(NamedTuple):
    """A step and its Jacobian, entry by entry.

    Attributes:
        code: the statements of both.
        values: the next state, ``[w]``.
        columns: the derivatives of it with respect to each entry of the state, ``[w]`` each.
    """

    code: Code
    values: np.ndarray
    columns: list[np.ndarray]


def _derivative(step: FusedStep) -> Any:
    """The program ``(*state, *input, *captured, *tangents of the state) -> tangents``, closed."""
    program, count = step.program, step.states
    variables = [*program.invars, *program.constvars]
    avals = [abstract(x.aval) for x in variables]

    def tangents(*operands: Any) -> Leaves:
        state, rest = operands[:count], operands[count : len(variables)]

        def f(*state: Any) -> Leaves:
            known = dict(zip(variables, [*state, *rest], strict=True))
            return cut_first.evaluate(program, known, program.outvars[:count])

        return jax.jvp(f, state, operands[len(variables) :])[1]

    return jax.make_jaxpr(tangents)(*avals, *avals[:count])


def linearised(step: FusedStep, texts: Sequence[Sequence[str]], threads: int) -> Linearised:
    """The statements of a step and of its Jacobian.

    ``texts``: expressions of the entries of each operand; ``threads``: that share them.
    """
    code, derivative = step.code(threads), _derivative(step)
    operands = step.tables(code, texts)
    values = step.written(evaluate(step.program, operands, code)[: step.states])
    code.folds = True
    state = operands[: step.states]
    program, constants = Program.of(derivative), constants_of(derivative)
    known = [constant(np.asarray(x), len(state[0].examples)) for x in constants]
    tangents = []
    for k in range(sum(x.table.size for x in state)):
        given = [*operands, *_unit(state, k), *known]
        tangents.append(_joined(step.written(evaluate(program, given, code))))
    return Linearised(code, _joined(values), tangents)


def _joined(tables: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([table.ravel() for table in tables])


def _unit(state: Sequence[Entries], k: int) -> list[Entries]:
    """The tangent of entry ``k`` of a state."""
    zero = np.float32(0)
    one = np.float32(1)
    tangents = []
    for leaf in state:
        size = leaf.table.size
        entries = [one if k == place else zero for place in range(size)]
        tangents.append(leaf._replace(table=table_of(entries, leaf.table.shape)))
        k -= size
    return tangents
