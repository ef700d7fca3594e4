"""Evaluating parts of a jaxpr: what some outputs need, and no more."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax.extend.core import jaxprs_in_params


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant written into the equation."""
    return hasattr(atom, "val")


def has_custom_vjp(jaxpr: Any) -> bool:
    """Whether a function with a `jax.custom_vjp` is called, at any depth."""
    return any(
        equation.primitive.name.startswith("custom_vjp")
        or any(has_custom_vjp(getattr(inner, "jaxpr", inner)) for inner in jaxprs_in_params(equation.params))
        for equation in jaxpr.eqns
    )


def needed(jaxpr: Any, known: Mapping[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    """The equations that lead from the variables in ``known`` to those in ``wanted``, in order."""
    missing = {atom for atom in wanted if not is_literal(atom) and atom not in known}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if any(out in missing for out in equation.outvars) or equation.effects:
            kept.append(equation)
            missing |= {atom for atom in equation.invars if not is_literal(atom) and atom not in known}
    return kept[::-1]


Replacement = Callable[[Any, list[Any]], list[Any] | None]


def evaluate(jaxpr: Any, known: Mapping[Any, Any], wanted: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The values of ``wanted``, given those of the variables in ``known``.

    A variable in ``known`` is taken as it is, wherever in the jaxpr it is computed, so a program can be entered midway.
    ``replace(equation, operands)`` may compute the results of an equation in its own way, or return None.
    """
    values = dict(known)
    for equation in needed(jaxpr, known, wanted):
        operands = [atom.val if is_literal(atom) else values[atom] for atom in equation.invars]
        with equation.ctx.manager:
            results = replace(equation, operands) if replace else None
            if results is None:
                results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
                results = results if equation.primitive.multiple_results else [results]
        for variable, value in zip(equation.outvars, results, strict=True):
            values.setdefault(variable, value)
    return [atom.val if is_literal(atom) else values[atom] for atom in wanted]
