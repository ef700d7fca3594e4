"""What a CPU runs: for loops an ordered list of rules, for all steps at once one more.

A rule of loops is a function ``(loop, operands) -> (loop, operands)``. Its file says what XLA does,
the gain, and the version of jax. It returns loops that it does not apply to unchanged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from deeppcr.arrays import Leaves
from deeppcr.lower.cpu import limits
from deeppcr.lower.cpu.factors_first import factors_first
from deeppcr.lower.cpu.inputs_first import inputs_first, run_in_chunks
from deeppcr.lower.cpu.one_function import fits, is_left_to_xla, one_function
from deeppcr.lower.cpu.products import plain_gradients, small_products, transposed_first
from deeppcr.lower.products import is_real_product, products_of
from deeppcr.lower.steps import Loop, Operands, lowered_by, steps_p
from depth.counts import matrices, size
from depth.jaxprs import equations

LoopRule = Callable[[Loop, Operands], tuple[Loop, Operands]]
FIRST: tuple[LoopRule, ...] = (factors_first, inputs_first)
LAST: tuple[LoopRule, ...] = (small_products, transposed_first)


def gains_by_inputs(loop: Loop) -> bool:
    """Whether to compute what is independent of the state first is worth compiling it apart."""
    if loop.kind.in_one:
        return False
    if loop.kind.linear and fits(loop.program):
        return True
    return any(map(_is_few_rows, products_of(equations(loop.program))))


def _is_few_rows(equation: Any) -> bool:
    """Whether a product multiplies few rows by a large matrix."""
    is_large = is_real_product(equation) and size(equation.invars[1]) >= limits.LARGE_MATRIX
    return is_large and matrices(equation)[1] <= limits.ROWS_OF_INPUTS


def run(rules: tuple[LoopRule, ...], loop: Loop, operands: Operands) -> Leaves | None:
    """The results of a loop, by these rules, up to the first that runs it; None if none applies."""
    plain = loop
    if loop.length <= 1 or is_left_to_xla(loop.program):
        return None
    for rule in (*FIRST, *rules) if gains_by_inputs(loop) else rules:
        loop, operands = rule(loop, operands)
        if loop.run:
            break
    if loop is plain:
        return None
    last, ys = run_in_chunks(loop, operands)
    return [*last, *ys]


# XLA cannot compile loops of one function for several devices (jaxlib 0.10.2).
alone, of_several = partial(run, (one_function, *LAST)), partial(run, LAST)
lowered = partial(lowered_by, plain_gradients)
steps_p.register("cpu", partial(lowered, alone), partial(lowered, of_several))
