"""Signatures of parameters, constants and programs: equal only for what is certainly the same."""

from typing import Any

import jax
import numpy as np

from depth.jaxprs import is_literal, without_constants


def signature(value: Any) -> Any:
    """Something hashable that is equal only for what is certainly the same.

    A tracer is the same as itself.
    """
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return _program(value)
    if isinstance(value, dict):
        return tuple(sorted((key, signature(item)) for key, item in value.items()))
    if isinstance(value, tuple | list):
        return (type(value), *map(signature, value))
    if isinstance(value, jax.core.Tracer):
        return ("tracer", id(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        try:
            return (str(value.dtype), tuple(value.shape), np.asarray(value).tobytes())
        except (TypeError, ValueError, RuntimeError):  # random keys, arrays on other machines
            return ("array", id(value))
    try:
        hash(value)
    except TypeError:
        return (type(value), id(value))
    return (type(value), value)


def _program(closed: Any) -> Any:
    """A jaxpr in a form that does not depend on the names of its variables."""
    jaxpr = without_constants(closed)
    numbers: dict[Any, int] = {}

    def number(atom: Any) -> Any:
        aval = (str(atom.aval),)
        if is_literal(atom):
            return (*aval, signature(np.asarray(atom.val, atom.aval.dtype)))
        return (*aval, numbers.setdefault(atom, len(numbers)))

    inputs = tuple(number(variable) for variable in (*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (
            e.primitive.name,
            tuple(map(number, e.invars)),
            signature(e.params),
            tuple(map(number, e.outvars)),
        )
        for e in jaxpr.eqns
    )
    constants = tuple(signature(value) for value in getattr(closed, "consts", ()))
    return (inputs, constants, equations, tuple(number(atom) for atom in jaxpr.outvars))
