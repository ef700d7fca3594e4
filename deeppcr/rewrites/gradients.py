"""Gradients of the arrays of a chain: with plain sums, and without transposes of products."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from deeppcr.rewrites.cut_first import evaluate
from deeppcr.rewrites.plain_sums import is_odd_sum, plain_sum
from deeppcr.rewrites.swapped import is_transpose, swapped
from depth.jaxprs import entered, rewritten


def plain_gradients(pull: Callable[..., Any]) -> Callable[..., Any]:
    """``pull``, a function of arrays such as that of `jax.vjp`, rewritten; see this module."""

    def g(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(pull, return_shape=True)(*arguments)
        results = _run(closed, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return g


def _run(closed: Any, operands: Sequence[Any]) -> list[Any]:
    program, known = entered(closed, operands)
    return evaluate(swapped(program), known, program.outvars, _replaced)


def _replaced(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The results of a sum, or of a call of a function with what is rewritten; else None."""
    if is_odd_sum(equation):
        return [plain_sum(equation, *operands)]
    return rewritten(equation, operands, _run, lambda each: is_odd_sum(each) or is_transpose(each))
