"""What a layer does beside returning a value: effects and callbacks in its program, and arrays that it uses up."""

from collections.abc import Iterator
from typing import Any

from jax.extend.core import jaxprs_in_params

from deeppcr.jaxprs import side_effects
from depth.jaxprs import without_constants


def effects_of(closed: Any) -> str:
    """Why a program has to be called exactly once, and in its turn; "" if nobody could tell how often it ran."""
    if found := side_effects(closed):
        return f"it has side effects: {', '.join(found)}"
    for equation in _equations(without_constants(closed)):
        if "callback" in equation.primitive.name:
            return f"it calls Python when it runs, by {equation.primitive.name}"
        if any(equation.params.get("donated_invars", ())):
            return "it donates what it takes"
    return ""


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from _equations(without_constants(inner))
