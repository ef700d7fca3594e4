"""`fused_scan_p`: a recurrence that is one kernel on a GPU, and `jax.lax.scan` elsewhere.

Its program for other readers, such as `depth`, is that of `jax.lax.scan`; so are its derivatives
and its `jax.vmap`. A solve has its own, and does not ask for them.
"""

from functools import partial
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir

from deeppcr.arrays.state import Leaves
from deeppcr.fused.backends import interpreted, native
from deeppcr.fused.kernel import run_kernel
from deeppcr.fused.step import FusedStep
from deeppcr.lower import platforms
from deeppcr.programs.calls import Call
from deeppcr.programs.cut_first import evaluate

fused_scan_p = Call("fused_scan")


def fused_scan(
    step: FusedStep, states: Leaves, inputs: Leaves, captured: Leaves, reverse: bool, length: int
) -> tuple[Leaves, Leaves]:
    """The last state, and the outputs of all steps, ``[length, ...]``, from the initial state.

    ``reverse``: whether the first step takes the last entry of the inputs.
    """
    program = jax.make_jaxpr(partial(_scan, step, reverse, length))(states, inputs, captured)
    found: Leaves = fused_scan_p.bind(
        *states,
        *inputs,
        *captured,
        call_jaxpr=program,
        step=step,
        length=length,
        reverse=reverse,
        interpret=platforms() == ("cuda",),
    )
    return found[: step.states], found[step.states :]


def _scan(
    step: FusedStep, reverse: bool, length: int, states: Leaves, inputs: Leaves, captured: Leaves
) -> Leaves:
    program = step.program
    shared = dict(zip(program.constvars, captured, strict=True))

    def body(state: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
        known = shared | dict(zip(program.invars, [*state, *x], strict=True))
        results = evaluate(program, known, program.outvars)
        return results[: step.states], results[step.states :]

    last, outputs = lax.scan(body, states, inputs, length, reverse)
    return [*last, *outputs]


def _kernel(
    *operands: Any,
    call_jaxpr: Any,
    step: FusedStep,
    length: int,
    reverse: bool,
    interpret: bool,
    is_gpu: bool = False,
) -> list[Any]:
    if not (is_gpu or interpret):
        return fused_scan_p.run(*operands, call_jaxpr=call_jaxpr)
    ends = step.states, step.states + step.inputs
    states, inputs = operands[: ends[0]], operands[ends[0] : ends[1]]
    parts = list(states), list(inputs), list(operands[ends[1] :])
    last, outputs = run_kernel(step, parts, length, reverse, native() if is_gpu else interpreted)
    return [*last, *outputs]


fused_scan_p.def_impl(lambda *operands, **params: jax.jit(partial(_kernel, **params))(*operands))
fused_scan_p.def_abstract_eval(lambda *_, call_jaxpr, **others: list(call_jaxpr.out_avals))
mlir.register_lowering(fused_scan_p, mlir.lower_fun(_kernel, multiple_results=True))
mlir.register_lowering(
    fused_scan_p,
    mlir.lower_fun(partial(_kernel, is_gpu=True), multiple_results=True),
    platform="cuda",
)
