"""Signatures of parameters, constants and programs: equal only if the values certainly are."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import reduce_p

from depth.jaxprs import bind, called, is_literal, without_constants
from depth.primitives import primitive

SMALL = 64  # elements of a constant that may be part of a program that is kept


def signature(value: Any) -> Any:
    """A hashable value that is equal only for values that certainly are.

    A tracer equals itself only.
    """
    return _Signature().of(value)


def lasting_signature(value: Any) -> tuple[Any, str]:
    """`signature`, and why it must not be cached; empty if it may be.

    It must not be cached if a part of the value is identified by its ``id`` only, such as a
    function, or if it contains an array of the user.
    """
    reader = _Signature()
    return reader.of(value), reader.reason


class Signed(ABC):
    """A parameter that determines what its equation computes: no other parameter is read."""

    @property
    @abstractmethod
    def signature(self) -> Any | None:
        """A hashable value that contains no array of the user; None if there is none."""


class _Signature:
    """The computation of one signature."""

    def __init__(self) -> None:
        self.reason = ""
        self._rules: list[Any] = []  # those whose derivatives are being read

    def of(self, value: Any) -> Any:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            return self._program(value)
        if isinstance(value, dict):
            return tuple(sorted((key, self.of(item)) for key, item in value.items()))
        if isinstance(value, tuple | list):
            return (type(value), *map(self.of, value))
        if isinstance(value, jax.core.Tracer):
            self.reason = "a value that jax traces"
            return ("tracer", id(value))
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self._array(value)
        try:
            hash(value)
        except TypeError:
            self.reason = f"{type(value).__name__}, which has no hash"
            return (type(value), id(value))
        if isinstance(value, FunctionType | partial) and not _is_of_jax(value):
            self.reason = f"the function {getattr(value, '__qualname__', value)}"
        return (type(value), value)

    def _array(self, value: Any) -> Any:
        try:
            content = np.asarray(value).tobytes()
        except (TypeError, ValueError, RuntimeError):  # random keys, arrays on other machines
            self.reason = f"an array, {value.dtype}{list(value.shape)}"
            return ("array", id(value))
        if value.size > SMALL:
            self.reason = f"an array, {value.dtype}{list(value.shape)}"
            content = hashlib.blake2b(content).digest()
        return (str(value.dtype), tuple(value.shape), content)

    def _program(self, closed: Any) -> Any:
        """A jaxpr in a form that does not depend on the names of its variables."""
        jaxpr = without_constants(closed)
        numbers: dict[Any, int] = {}

        def number(atom: Any) -> Any:
            aval = (str(atom.aval), getattr(atom.aval, "weak_type", False))
            if is_literal(atom):
                return (*aval, self.of(np.asarray(atom.val, atom.aval.dtype)))
            return (*aval, numbers.setdefault(atom, len(numbers)))

        inputs = tuple(map(number, (*jaxpr.constvars, *jaxpr.invars)))
        equations = tuple(
            (
                each.primitive.name,
                str(each.ctx),
                tuple(map(number, each.invars)),
                self._parameters(each),
                tuple(map(number, each.outvars)),
            )
            for each in jaxpr.eqns
        )
        constants = tuple(self.of(value) for value in getattr(closed, "consts", ()))
        return (inputs, constants, equations, tuple(number(atom) for atom in jaxpr.outvars))

    def _parameters(self, equation: Any) -> Any:
        for value in equation.params.values():
            if isinstance(value, Signed):
                found = value.signature
                self.reason = self.reason if found is not None else "a chain of such a step"
                return id(value) if found is None else found
        if primitive(equation).kind != "derivative rule" or (inner := called(equation)) is None:
            named = dict(equation.params)
            if equation.primitive is reduce_p:
                named.pop("computation")  # a function, whose program is another parameter
            return self.of(named)
        # Its functions are new at every trace. The programs that jax derives from them are not.
        plain = {key: p for key, p in equation.params.items() if isinstance(p, bool | int | str)}
        rule = (self.of(plain), self.of(inner))
        if rule in self._rules:  # a rule that calls its function
            return ("again", self._rules.index(rule))
        self._rules.append(rule)
        try:
            derivative = self.of(_derivative(equation))
        except Exception:  # jax cannot differentiate it like this, nor can it be compared
            self.reason, derivative = "a rule of derivatives", id(equation)
        self._rules.pop()
        return (*rule, derivative)


def _is_of_jax(function: Any) -> bool:
    """Whether it is a function of one of jax's modules, as those of random keys: it never changes.

    A function made at a call, also by jax, closes over its arguments.
    """
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] == "jax" and getattr(function, "__closure__", ()) is None


def _derivative(equation: Any) -> Any:
    """The program of the derivative of an equation: forwards, or else backwards."""
    arguments = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    moves = [jnp.issubdtype(each.dtype, jnp.inexact) for each in arguments]
    is_vjp = equation.primitive.name.startswith("custom_vjp")
    if is_vjp:  # its captured arrays may not be differentiable
        constants = equation.params.get("num_consts", 0)
        moves = [i >= constants and is_moving for i, is_moving in enumerate(moves)]

    def split(values: Sequence[Any]) -> tuple[list[Any], Any]:
        moving = [x for x, is_moving in zip(values, moves, strict=True) if is_moving]

        def f(*moving: Any) -> list[Any]:
            rest = iter(moving)
            pairs = zip(values, moves, strict=True)
            return bind(equation, [next(rest) if is_moving else x for x, is_moving in pairs])

        return moving, f

    def forwards(*values: Any) -> Any:
        moving, f = split(values)
        return jax.jvp(f, moving, moving)

    def backwards(*values: Any) -> Any:
        moving, f = split(values)
        results, pull = jax.vjp(f, *moving)
        return results, pull(results)

    return jax.make_jaxpr(backwards if is_vjp else forwards)(*arguments)
