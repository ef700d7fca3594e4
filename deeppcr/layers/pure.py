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
from typing import Any

import jax
import numpy as np

from deeppcr.layers.parts import (
    IMMUTABLE,
    PARTIALS,
    InTurn,
    Own,
    composite,
    held_by,
    is_library,
    is_named,
)

# What known libraries have that is not deterministic, has side effects, or sees that it is traced.
FOREIGN = frozenset(
    str.split("""
    breakpoint compile eval exec exit globals help id input open print quit vars locals delattr
    setattr type __import__ lru_cache cache cached_property save savetxt savez trace_state_clean
    config profiler
    """)
)
# Methods by which Python makes, compares, copies and prints objects, and those of named tuples.
ASIDE = frozenset(
    str.split("""
    __init__ __new__ __post_init__ __repr__ __str__ __reduce__ __reduce_ex__ __getstate__
    __setstate__ __del__ __sizeof__ __dir__ __eq__ __hash__ __setattr__ __delattr__ _make _replace
    _asdict _field_defaults
    """)
)
FIXED = (*IMMUTABLE, jax.Array, jax.tree_util.PyTreeDef, types.GenericAlias, types.UnionType)
FIXED += (types.MemberDescriptorType, type(vars(Own)["value"]), enum.EnumMeta)
CHANGES = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS")


def check_pure(values: Iterable[Any], seen: dict[int, Any] | None = None) -> None:
    """Raise `InTurn` if code that reaches these ``values`` may do more than compute."""
    seen = {} if seen is None else seen
    for value in values:
        if not isinstance(value, FIXED) and id(value) not in seen:
            seen[id(value)] = value
            check_pure(_reached(value, type(value)), seen)


def _reached(value: Any, kind: Any) -> Iterable[Any]:
    """What code that has this value can reach by it."""
    linen = getattr(sys.modules.get("flax.linen"), "Module", ())
    if kind is Own:
        return _methods(value.value) if isinstance(value.value, type) else _globals(value.value)
    if is_named(value) and is_library(value.__module__):
        if value.__name__ in FOREIGN or value.__module__.startswith("numpy.random"):
            raise InTurn(f"it uses {value.__name__}")
        return ()
    if kind is types.FunctionType:
        return *_globals(value), *held_by(value), *vars(value).values()
    if kind is types.MethodType or kind in PARTIALS:
        return composite(value)[1]
    if callable(value) and kind.__module__.startswith(("jax.", "jaxlib.")):  # `jax.custom_jvp`
        return filter(callable, vars(value).values())
    if isinstance(value, type) and issubclass(value, (tuple, enum.Enum, BaseException, linen)):
        return (Own(value),)
    if isinstance(value, tuple):
        return Own(kind), *tuple.__iter__(value)
    parameters = getattr(kind, "__dataclass_params__", None)
    if isinstance(value, linen) or getattr(parameters, "frozen", False):
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
            is_code = isinstance(item, types.FunctionType | property | classmethod | staticmethod)
            is_data = name.startswith(("__", "_abc")) and not is_code
            if not (name in ASIDE or is_data or type(item).__module__.startswith("flax")):
                yield getattr(item, "fget", getattr(item, "__func__", item))


def _globals(function: types.FunctionType) -> Iterable[Any]:
    """The globals that the code of a function names."""
    space = function.__globals__
    if is_library(space.get("__name__")):
        return
    loaded, names = _names(function.__code__)
    builtins = space.get("__builtins__", {})
    space = {**getattr(builtins, "__dict__", builtins), **space}
    for value in (space[name] for name in loaded & space.keys()):
        if not isinstance(value, types.ModuleType):
            yield value
            continue
        found = names & vars(value).keys()
        if not is_library(value.__name__):
            yield from (vars(value)[item] for item in found)
        elif foreign := found & (FOREIGN | {"random"} if value is np else FOREIGN):
            raise InTurn(f"it uses {value.__name__}.{min(foreign)}")


@functools.lru_cache(4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals that code loads, and all names in it; raises `InTurn` if it changes any."""
    found = list(dis.get_instructions(code))
    for opname, name in ((each.opname, each.argval) for each in found):
        changes = opname in CHANGES
        changes |= opname in ("STORE_ATTR", "DELETE_ATTR") and code.co_name != "setup"  # of linen
        changes |= opname in ("STORE_DEREF", "DELETE_DEREF") and name in code.co_freevars
        if changes or name in ("Tracer", "__class__", "replace", "_replace"):
            raise InTurn(f"its code has more than local effects: {name}")
    opnames = [each.opname for each in found]
    # A trial may raise errors that no call does. The end of a `with` is no `except`.
    if opnames.count("PUSH_EXC_INFO") > opnames.count("WITH_EXCEPT_START"):
        raise InTurn("it catches exceptions")
    globals_of = (each.argval for each in found if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    inner = [_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    loaded = frozenset(globals_of).union(*(names[0] for names in inner))
    return loaded, frozenset(code.co_names).union(*(names[1] for names in inner))
