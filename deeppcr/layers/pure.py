"""Whether Python code does nothing but compute, so that a program of it loses nothing.

Equal layers run as one chain only if the code of one of them, run once, says it all. It does if
nothing that the code can reach may change: numbers, arrays, functions of known libraries, and other
such code. Anything else has to be called in its turn: a list, a counter, a generator of random
numbers, `print`.
"""

import dataclasses
import dis
import enum
import functools
import sys
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np


class InTurn(Exception):
    """Why a layer has to be called in its turn."""


class Own(NamedTuple):
    """The code of a function, without what it was given; or the methods of a class."""

    value: Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LIBRARIES = _words(
    """
    jax jaxlib numpy ml_dtypes flax equinox haiku optax chex jaxtyping einops lineax optimistix
    diffrax distrax deeppcr depth builtins math cmath operator _operator functools _functools
    itertools collections _collections _collections_abc enum dataclasses typing abc _abc types copy
    """
)
# What known libraries have that is not deterministic, has side effects, or sees that it is traced.
_FOREIGN = _words(
    """
    breakpoint compile eval exec exit globals help id input open print quit vars locals delattr
    setattr type __import__ lru_cache cache cached_property save savetxt savez trace_state_clean
    config profiler
    """
)
# Methods by which Python makes, compares, copies and prints objects, and those of named tuples.
_ASIDE = _words(
    """
    __init__ __new__ __post_init__ __repr__ __str__ __reduce__ __reduce_ex__ __getstate__
    __setstate__ __del__ __sizeof__ __dir__ __eq__ __hash__ __setattr__ __delattr__ _make _replace
    _asdict _field_defaults
    """
)
IMMUTABLE: Any = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
IMMUTABLE += (np.generic, np.dtype, enum.Enum, frozenset)
_FIXED = (*IMMUTABLE, jax.Array, jax.tree_util.PyTreeDef, types.GenericAlias, types.UnionType)
_FIXED += (types.MemberDescriptorType, type(vars(Own)["value"]), enum.EnumMeta)
JITTED: Any = type(jax.jit(lambda x: x))
_WRAPPERS = property | classmethod | staticmethod
PARTIALS = (functools.partial, jax.tree_util.Partial)
_THAWED = types.SimpleNamespace(frozen=False)


def is_library(module: Any) -> bool:
    """Whether a module of this name belongs to a known library."""
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


def is_named(value: Any) -> bool:
    """Whether this is what a module has under its own name: a function, a class."""
    if not isinstance(value, types.FunctionType | type) and not is_library(type(value).__module__):
        return False  # it may make names up
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not (callable(value) and isinstance(name, str)):
        return False
    found: Any = sys.modules.get(str(module))
    for part in getattr(value, "__qualname__", name).split("."):
        found = getattr(found, part, None)
    return found is value


def check_pure(values: Iterable[Any], seen: dict[int, Any] | None = None) -> None:
    """Raise `InTurn` if code that reaches these ``values`` may do more than compute."""
    seen = {} if seen is None else seen
    for value in values:
        if not isinstance(value, _FIXED) and id(value) not in seen:
            seen[id(value)] = value
            check_pure(_reached(value, type(value)), seen)


def _reached(value: Any, kind: Any) -> Iterable[Any]:
    """What code that has this value can reach by it."""
    linen = getattr(sys.modules.get("flax.linen"), "Module", ())
    if kind is Own:
        return _methods(value.value) if isinstance(value.value, type) else _globals(value.value)
    if is_named(value) and is_library(value.__module__):
        if value.__name__ in _FOREIGN or value.__module__.startswith("numpy.random"):
            raise InTurn(f"it uses {value.__name__}")
        return ()
    if kind is types.FunctionType:
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        held = (cell.cell_contents for name, cell in cells if name != "__class__")
        given = {**(value.__kwdefaults__ or {}), **value.__dict__}
        return *_globals(value), *(value.__defaults__ or ()), *given.values(), *held
    if kind is types.MethodType:
        return value.__func__, value.__self__
    if kind in PARTIALS:
        return value.func, *value.args, *value.keywords.values()
    if kind is JITTED:
        return (value.__wrapped__,)
    if callable(value) and kind.__module__.startswith("jax."):  # such as `jax.custom_jvp`
        return filter(callable, vars(value).values())
    if isinstance(value, type) and issubclass(value, (tuple, enum.Enum, BaseException, linen)):
        return (Own(value),)
    if isinstance(value, tuple):
        return Own(kind), *tuple.__iter__(value)
    if isinstance(value, linen) or getattr(kind, "__dataclass_params__", _THAWED).frozen:
        fields = (getattr(value, each.name, None) for each in dataclasses.fields(value))
        return Own(kind), *fields
    if kind.__module__.startswith(("flax", "equinox")):
        if kind.__name__ == "HashableMapping":
            return value.values()
        if not vars(value):  # a sentinel
            return ()
    what = f"the class {value.__name__}" if isinstance(value, type) else f"a {kind.__name__}"
    raise InTurn(f"it reaches {what}, which may change")


def _methods(kind: type) -> Iterable[Any]:
    """What a class of the user's defines."""
    for base in kind.__mro__:
        for name, item in {} if is_library(base.__module__) else vars(base).items():
            data = not isinstance(item, types.FunctionType | _WRAPPERS)
            if name in _ASIDE or (data and name.startswith(("__", "_abc"))):
                continue
            if not type(item).__module__.startswith("flax"):
                yield getattr(item, "fget", getattr(item, "__func__", item))


def _globals(function: types.FunctionType) -> Iterable[Any]:
    """The globals that the code of a function names."""
    space = function.__globals__
    if is_library(space.get("__name__")):
        return
    loaded, names = _names(function.__code__)
    builtins = space.get("__builtins__", {})
    builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
    for name in loaded & (space.keys() | builtins.keys()):
        value = space.get(name, builtins.get(name))
        if not isinstance(value, types.ModuleType):
            yield value
            continue
        found = names & vars(value).keys()
        foreign = found & (_FOREIGN | {"random"} if value is np else _FOREIGN)
        if not is_library(value.__name__):
            yield from (vars(value)[item] for item in found)
        elif foreign:
            raise InTurn(f"it uses {value.__name__}.{min(foreign)}")


@functools.lru_cache(4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code loads, and all names in it; raises `InTurn` if it changes any."""
    loaded, names = set(), set(code.co_names)
    found = [i for i in dis.get_instructions(code) if i.opname not in ("CACHE", "NOP")]
    for instruction, after in zip(found, [*found[1:], None], strict=True):
        opname, name = instruction.opname, instruction.argval
        if opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(name)
        changes = opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS")
        changes |= opname in ("STORE_ATTR", "DELETE_ATTR") and code.co_name != "setup"  # of linen
        changes |= opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars
        if changes or name in ("Tracer", "__class__", "replace", "_replace"):
            raise InTurn(f"its code has more than local effects: {name}")
        # A trial may raise errors that no call does. The end of a `with` is no `except`.
        if opname == "PUSH_EXC_INFO" and getattr(after, "opname", "") != "WITH_EXCEPT_START":
            raise InTurn("it catches exceptions")
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            inner_loaded, inner_names = _names(inner)
            loaded |= inner_loaded
            names |= inner_names
    return frozenset(loaded), frozenset(names)
