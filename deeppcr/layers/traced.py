"""Layers that cannot be taken apart: compared by the program they run, traced once each."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.jaxprs import is_rule_of_jax
from deeppcr.layers.code import changes
from deeppcr.layers.effects import effects_of
from deeppcr.layers.held import Held
from deeppcr.layers.sameness import Structure
from deeppcr.layers.trial import Trial, constants_of, is_weak, run
from depth.jaxprs import without_constants


@dataclasses.dataclass(frozen=True)
class Traced:
    """A traced layer without the arrays it closed over; equal if the programs read the same.

    ``held`` are constants and functions inside the program that are in no text: they have to be the same objects.
    """

    text: str
    tree: Any
    held: tuple[int, ...]
    jaxpr: Any = dataclasses.field(compare=False)
    kept: Any = dataclasses.field(compare=False, repr=False)  # what `held` identifies, kept alive

    def build(self, arrays: Iterator[Any], built: list[Any]) -> Any:
        """The program with other arrays."""
        own = [next(arrays) for _ in self.jaxpr.constvars]
        return lambda x: self.tree.unflatten(
            jax.core.eval_jaxpr(self.jaxpr, own, *jax.tree.leaves(x))
        )


def trace(
    layer: Any, call: Callable[[Any], Any], x: Any, is_traced: bool
) -> tuple[Traced, list[Any], Trial]:
    """The program of a layer that takes ``x`` (`jax.ShapeDtypeStruct`), its arrays, and what came of tracing it.

    Raises:
        Unseen: it cannot be called on trial.
    """
    held = Held(layer)
    changed: list[str] = []

    def on_trial(x: Any) -> Any:
        given = ("its argument", x, *jax.tree.flatten(x))
        result = call(x)
        changed.extend(changes([given]))
        return result

    try:
        closed, returns = run(on_trial, x)
        changed += held.changes(is_traced)
    finally:
        held.restore()
    jaxpr = without_constants(closed)
    kept = [*_held(jaxpr), *([object()] if changed else [])]
    constants = [] if changed else constants_of(closed)
    captured = [
        constant if isinstance(constant, jax.Array) else jnp.asarray(constant)
        for constant in constants
    ]
    code = Traced(
        str(jaxpr), Structure(jax.tree.structure(returns)), tuple(map(id, kept)), jaxpr, kept
    )
    effects = effects_of(closed)
    needs_weak = any(map(is_weak, captured))
    return (
        code,
        captured,
        Trial(
            returns, tuple(dict.fromkeys(changed)), effects, bool(changed or effects), needs_weak
        ),
    )


def _programs(parameter: Any) -> Iterator[Any]:
    """The programs in a parameter of an equation, with their constants."""
    for item in parameter if isinstance(parameter, tuple | list) else (parameter,):
        if hasattr(item, "eqns"):
            yield item


def _held(jaxpr: Any) -> Iterator[Any]:
    """Constants of programs inside, and functions in parameters: callbacks, rules for derivatives that are not jax's own."""
    for equation in jaxpr.eqns:
        rule = equation.primitive.name.startswith(("custom_jvp", "custom_vjp"))
        if rule and not is_rule_of_jax(equation):
            yield object()  # rules are made anew by each trace: like no other
        for parameter in equation.params.values():
            for inner in _programs(parameter):
                yield from getattr(inner, "consts", ())
                yield from _held(inner)
            if not rule and equation.primitive.name not in _PLAIN_CALLS and _is_foreign(parameter):
                yield parameter


# Their functions are made by jax, from the program that stands beside them.
_PLAIN_CALLS = frozenset(
    {
        "jit",
        "pjit",
        "scan",
        "while",
        "cond",
        "remat2",
        "checkpoint",
        "reduce",
        "custom_linear_solve",
    }
)


def _is_foreign(parameter: Any) -> bool:
    """Whether a parameter is a function or an object that no text describes."""
    return (
        callable(parameter)
        and not isinstance(parameter, type | np.dtype)
        and not hasattr(parameter, "eqns")
    )
