"""The Jacobian of a step, entry by entry: one tangent for each entry of the state."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.entries import Entries, constant, evaluate, table_of
from deeppcr.lower.gpu.fused.operations import Code
from deeppcr.lower.gpu.fused.step import MOST, FusedStep
from deeppcr.programs import cut_first
from depth.jaxprs import Program


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


def linearised(
    step: FusedStep, texts: Sequence[Sequence[str]]
) -> tuple[Code, int, list[Any], list[list[Any]]]:
    """The statements of a step and of its Jacobian, the entries of both: ``[w]``, ``[w][w]``.

    The number is that of the statements of the step alone, which are the first. Row k of the
    Jacobian has the derivatives with respect to entry k.
    """
    code, derivative = Code(MOST), _derivative(step)
    operands = step.tables(code, texts)
    values = step.written(evaluate(step.program, operands, code)[: step.states])
    own, code.folds = len(code.lines), True
    state = operands[: step.states]
    program, constants = Program.of(derivative), getattr(derivative, "consts", ())
    known = [constant(np.asarray(x), len(state[0].examples)) for x in constants]
    tangents = []
    for k in range(sum(x.table.size for x in state)):
        given = [*operands, *_unit(state, k), *known]
        found = step.written(evaluate(program, given, code))
        tangents.append([x for table in found for x in table.flat])
    return code, own, [x for table in values for x in table.flat], tangents


def _unit(state: Sequence[Entries], k: int) -> list[Entries]:
    """The tangent of entry ``k`` of a state."""
    zero, one, tangents = np.float32(0), np.float32(1), []
    for leaf in state:
        size = leaf.table.size
        entries = [one if k == place else zero for place in range(size)]
        tangents.append(leaf._replace(table=table_of(entries, leaf.table.shape)))
        k -= size
    return tangents
