"""A recurrence that is one kernel on a GPU, and `jax.lax.scan` elsewhere.

Its program for other readers, such as `depth`, is that of `jax.lax.scan`; so are its derivatives. A
solve has its own, and does not ask for them.
"""

from functools import partial
from typing import Any

from jax import lax

from deeppcr.arrays import Leaves
from deeppcr.lower.gpu.fused.call import call
from deeppcr.lower.gpu.fused.kernel import FusedScan
from deeppcr.lower.gpu.fused.step import FusedStep, flat
from deeppcr.programs.cut_first import apply


def fused_scan(
    step: FusedStep, states: Leaves, inputs: Leaves, captured: Leaves, reverse: bool, length: int
) -> tuple[Leaves, Leaves]:
    """The last state, and all states, ``[length, ...]``, from the initial state.

    ``reverse``: whether the first step takes the last entry of the inputs.
    """
    program = partial(_scan, step, reverse, length)
    results = call(FusedScan(step, length, reverse), program, [*states, *inputs, *captured])
    return results[step.states :], results[: step.states]


def _scan(step: FusedStep, reverse: bool, length: int, *operands: Any) -> Leaves:
    states, end = step.states, len(step.whole.invars)
    program = flat(step.whole)
    captured = operands[end:]

    def body(state: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        after = apply(program, [*state, *x, *captured])
        return after, after

    inputs = list(operands[states:end])
    last, trajectory = lax.scan(body, list(operands[:states]), inputs, length, reverse)
    return [*trajectory, *last]
