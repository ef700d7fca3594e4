"""Signatures of parameters, constants and programs: equal only if the values certainly are."""

import hashlib
import inspect
import os
import sys
from abc import ABC, abstractmethod
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core.primitives import reduce_p

from deeppcr.arrays import is_traced
from depth.jaxprs import constants_of, is_literal, without_constants
from depth.primitives import primitive

# Packages whose functions, and objects that equal themselves alone, do not change.
FIXED = {*sys.stdlib_module_names, "deeppcr", "depth", "flax", "jax", "jaxlib", "numpy", "optax"}
JAX_FOLDERS = tuple(
    os.path.join(os.path.dirname(jax.__file__), "_src", folder) + os.sep
    for folder in ("lax", "nn", "numpy", "scipy")
)
MOST_KEPT_ENTRIES = 64  # elements of a constant that may be part of a program that is kept


def signature(value: Any) -> tuple[Any, str]:
    """A hashable value that is equal only for values that certainly are; why it must not be cached.

    A tracer equals itself only. The reason is empty if it may be cached: not if a part of the value
    is identified by its ``id`` only, such as a function, or if it contains an array of the user.
    """
    reader = _Signature()
    return reader.of(value), reader.reason


class DerivativeRule(NamedTuple):
    """What is known of the derivative rule of an equation.

    Attributes:
        is_users: whether it is of a user, not of jax.
        is_traced: whether it closes over a value that jax traces.
    """

    is_users: bool
    is_traced: bool


def rule_of(equation: Any) -> DerivativeRule:
    """The rule of an equation of `jax.custom_jvp` or `jax.custom_vjp`."""
    rule = equation.params.get("jvp_jaxpr_fun")
    if str(getattr(getattr(rule, "debug_info", None), "func_filename", "")).startswith(JAX_FOLDERS):
        return DerivativeRule(False, False)  # most often
    reader = _Signature()
    functions = {key: value for key, value in equation.params.items() if key != "call_jaxpr"}
    reader._parameters(equation.replace(params=functions))
    return DerivativeRule(reader.is_users, reader.is_traced)


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
        self.is_users = self.is_traced = False  # see `DerivativeRule`

    def of(self, value: Any) -> Any:
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            return self._program(value)
        if isinstance(value, dict):
            return tuple(sorted((key, self.of(item)) for key, item in value.items()))
        if isinstance(value, tuple | list):
            return (type(value), *map(self.of, value))
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return self._array(value)
        try:
            hash(value)
        except TypeError:
            self.reason = f"{type(value).__name__}, which has no hash"
            return (type(value), id(value))
        # One of jax's modules, as those of random keys, never changes. One made at a call, also by
        # jax, closes over its arguments.
        is_fixed = _module(value) == "jax" and getattr(value, "__closure__", ()) is None
        if isinstance(value, FunctionType | partial) and not is_fixed:
            self.reason = f"the function {getattr(value, '__qualname__', value)}"
        kind = type(value)
        if _equals_itself_alone(kind) and _module(kind) not in FIXED:
            self.reason = f"an object of {kind.__name__}, which may have changed"
        return (kind, value)

    def _array(self, value: Any) -> Any:
        try:
            content = np.asarray(value).tobytes()
        except (TypeError, ValueError, RuntimeError):  # tracers, keys, arrays on other machines
            self.reason = f"an array, {value.dtype}{list(value.shape)}"
            return ("array", id(value))
        if value.size > MOST_KEPT_ENTRIES:
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
                equation.primitive.name,
                str(equation.ctx),
                tuple(map(number, equation.invars)),
                self._parameters(equation),
                tuple(map(number, equation.outvars)),
            )
            for equation in jaxpr.eqns
        )
        constants = tuple(map(self.of, constants_of(closed)))
        return (inputs, constants, equations, tuple(map(number, jaxpr.outvars)))

    def _parameters(self, equation: Any) -> Any:
        for value in equation.params.values():
            if isinstance(value, Signed):
                if (key := value.signature) is not None:
                    return key
                self.reason = "a chain of such a step"
                return id(value)
        named = dict(equation.params)
        if equation.primitive is reduce_p:
            named.pop("computation")  # a function, whose program is another parameter
        if primitive(equation).kind != "derivative rule":
            return self.of(named)
        if named.get("symbolic_zeros") and "out_trees" in named:
            # A `jax.custom_vjp`: jax remembers what the last derivative was taken in.
            self.reason = "a jax.custom_vjp with symbolic_zeros=True"
        try:
            return tuple((key, self._rule(named[key])) for key in sorted(named))
        except (TypeError, ValueError, RecursionError):  # nothing yet in a cell, or itself
            self.reason, self.is_users = "a derivative rule", True
            return id(equation)

    def _function(self, rule: FunctionType) -> Any:
        """A user's function, what it reads by name from its module, and so of those it calls."""
        self.is_users = True
        functions, data = [rule], list[Any]()
        for function in functions:  # grows
            module = function.__globals__
            if held := [cell.cell_contents for cell in function.__closure__ or ()]:
                self.reason = f"the derivative rule {rule.__qualname__}, which closes over values"
                self.is_traced |= is_traced(held)
            reads = list(map(inspect.unwrap, held))
            for name in sorted(_names(function.__code__) & module.keys()):
                reads.append(value := inspect.unwrap(module[name]))
                if not callable(value) and not isinstance(value, ModuleType):
                    data.append((name, self.of(value)))
                elif isinstance(value, partial) or not (
                    isinstance(value, FunctionType) or _module(value) in FIXED
                ):  # it may have changed
                    self.reason = f"the derivative rule {rule.__qualname__}, which reads {name}"
            functions += [
                x
                for x in reads
                if isinstance(x, FunctionType) and _module(x) not in FIXED and x not in functions
            ]
        return (*functions, *data)

    def _rule(self, value: Any) -> Any:
        """A parameter of a function with a derivative rule, which is never traced.

        jax wraps the user's functions anew at every trace: in functions of its own, with memories
        of what they have traced. The user's are the same if they are the same objects.
        """
        if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
            return self._program(value)
        if isinstance(value, FunctionType):
            cells = value.__closure__ or ()
            if _module(value) == "jax":
                return (value.__code__, *(self._rule(cell.cell_contents) for cell in cells))
            return self._function(value)
        if hasattr(value, "transforms"):
            return self._rule((value.f, value.transforms))
        if isinstance(value, tuple | list):
            return tuple(map(self._rule, value))
        if callable(value):
            inner = getattr(value, "__wrapped__", None)
            # `jax.tree_util.Partial` holds a function of the user's.
            if _module(type(value)) not in ("jax", "jaxlib") or isinstance(value, partial):
                name = getattr(value, "__qualname__", type(value).__name__)
                self.reason, self.is_users = f"the derivative rule {name}", True
            return (self.of(value), self._rule(inner))  # of `jax.jit` or `jax.custom_jvp`
        kind = type(value)
        is_memory = _equals_itself_alone(kind) and _module(kind) == "jax"
        if is_memory or kind in (dict, object) or hasattr(value, "func_src_info"):
            return None
        # Of ``nondiff_argnums``, or an option.
        return self.of(value.val if hasattr(value, "val") else value)


def _names(code: CodeType) -> set[str]:
    """The names that a function reads, with those inside it: of its module, and of attributes."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _equals_itself_alone(kind: Any) -> bool:
    return getattr(kind, "__eq__", None) is object.__eq__


def _module(value: Any) -> str:
    """The package that something is of."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return (name or "").partition(".")[0]
