"""The Jacobian of a step, entry by entry: one tangent for each entry of the state."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from deeppcr.arrays import Leaves, abstract_avals
from deeppcr.lower.gpu.fused.entries import table_of
from deeppcr.lower.gpu.fused.operations import Code
from deeppcr.lower.gpu.fused.step import FusedStep, flat
from deeppcr.programs.cut_first import apply


def linearised(step: FusedStep, threads: int) -> tuple[Code, np.ndarray, list[np.ndarray]]:
    """A step and its Jacobian, entry by entry, of a state that is a vector ``[w]``.

    Returns:
        the statements of both, which so many ``threads`` share; the next state, ``[w]``; and its
        derivatives with respect to each entry of the state, ``[w]`` each.
    """
    code, derivative = Code(threads, step.batches), _derivative(step)
    operands = step.tables(code, is_vector=True)
    values = step.evaluated(flat(step.program), operands, code)[: step.states]
    code.folds = True
    state = operands[: step.states]
    ends = np.cumsum([x.table.size for x in state])[:-1]
    columns = []
    for unit in np.eye(step.width, dtype=np.float32):
        parts = zip(state, np.split(unit, ends), strict=True)
        tangents = [
            x._replace(table=table_of(list(map(code.constant, part)), x.table.shape))
            for x, part in parts
        ]
        columns.append(_joined(step.evaluated(derivative, [*operands, *tangents], code)))
    return code, _joined(values), columns


def _derivative(step: FusedStep) -> Any:
    """The program ``(*state, *input, *captured, *tangents of the state) -> tangents``, closed."""
    count = step.states
    program = flat(step.program)._replace(outvars=step.program.outvars[:count])
    avals = abstract_avals(program.invars)

    def tangents(*operands: Any) -> Leaves:
        state, rest = operands[:count], operands[count : len(avals)]
        moving = operands[len(avals) :]
        return jax.jvp(lambda *state: apply(program, [*state, *rest]), state, moving)[1]

    return jax.make_jaxpr(tangents)(*avals, *avals[:count])


def _joined(tables: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(map(np.ravel, tables)))
