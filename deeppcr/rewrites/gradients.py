"""Gradients of the arrays of a chain: plain sums, no transposes of products, no tiny products."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from deeppcr.rewrites.cut_first import evaluate
from deeppcr.rewrites.outer_products import is_few_outer_products
from deeppcr.rewrites.plain_sums import is_odd_sum, plain_sum
from deeppcr.rewrites.swapped import is_transpose, swapped
from deeppcr.rewrites.terms import term_by_term
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
    program = swapped(program)

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        """The results of what is rewritten, or of a call of a function that contains it."""
        if is_odd_sum(equation):
            return [plain_sum(equation, *operands)]
        if is_few_outer_products(equation):
            return [term_by_term(equation, *operands)]
        return rewritten(equation, operands, _run, _is_rewritten)

    return evaluate(program, known, program.outvars, replace)


def _is_rewritten(equation: Any) -> bool:
    return is_odd_sum(equation) or is_few_outer_products(equation) or is_transpose(equation)
