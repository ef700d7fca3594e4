"""Whether Python code does nothing but compute, so that a program of it loses nothing.

Equal layers run as one chain only if the code of one of them, run once, says it all. It does if
nothing that the code can reach may change: numbers, arrays, functions of known libraries, and other
such code. Anything else has to be called in its turn: a list, a counter, a generator of random
numbers, `print`.
"""

import collections
import dataclasses
import dis
import enum
import functools
import sys
import types
from collections.abc import Hashable, Iterable
from typing import Any

import jax
import numpy as np

Seen = dict[Hashable, Any]

LIBRARIES = frozenset(
    str.split("""
    jax jaxlib numpy ml_dtypes flax equinox haiku optax chex jaxtyping einops lineax optimistix
    diffrax distrax deeppcr depth builtins math cmath operator _operator functools _functools
    itertools collections _collections _collections_abc enum dataclasses typing abc _abc types copy
    """)
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
IMMUTABLE: Any = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
IMMUTABLE += (np.generic, np.dtype, enum.Enum, frozenset)
PARTIALS = (functools.partial, jax.tree_util.Partial)
FIXED = (*IMMUTABLE, jax.Array, jax.tree_util.PyTreeDef, types.GenericAlias, types.UnionType)
FIXED += (
    types.MemberDescriptorType,
    type(vars(collections.namedtuple("A", "b"))["b"]),
    enum.EnumMeta,
)
CHANGES = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS")


class InTurn(Exception):
    """Why a layer has to be called in its turn."""


def is_library(module: Any) -> bool:
    """Whether a module of this name belongs to a known library."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_named(value: Any) -> bool:
    """Whether this is what a module has under its own name: a function, a class."""
    if not isinstance(value, types.FunctionType | type) and not is_library(type(value).__module__):
        return False  # it may make names up
    found: Any = sys.modules.get(str(getattr(value, "__module__", None)))
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    for part in str(name).split("."):
        found = getattr(found, part, None)
    return callable(value) and found is value


def is_of_jax(value: Any) -> bool:
    """Whether this is a function that jax has made: by `jax.jit`, `jax.custom_jvp`, ..."""
    return callable(value) and type(value).__module__.startswith(("jax.", "jaxlib."))


def linen_module() -> Any:
    """The class of the modules of flax linen; no class before that is imported."""
    return getattr(sys.modules.get("flax.linen"), "Module", ())


def held_by(value: Any) -> tuple[Any, ...]:
    """What functions have of their own: defaults, those by keyword, and what they close over.

    Of a method and of a partial: its function, arguments, and arguments by keyword.
    """
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return value.__defaults__, tuple((value.__kwdefaults__ or {}).items()), *cells
    if isinstance(value, types.MethodType):
        return value.__func__, (value.__self__,), ()
    return value.func, value.args, tuple(value.keywords.items())


def check_pure(values: Iterable[Any], seen: Seen) -> None:
    """Raise `InTurn` if code that reaches these ``values`` may do more than compute."""
    for value in values:
        if not isinstance(value, FIXED) and id(value) not in seen:
            seen[id(value)] = value
            check_pure(_reached(value, type(value)), seen)


def _reached(value: Any, kind: Any) -> Iterable[Any]:
    """What code that has this value can reach by it."""
    if is_named(value) and is_library(value.__module__):
        if value.__name__ in FOREIGN or value.__module__.startswith("numpy.random"):
            raise InTurn(f"it uses {value.__name__}")
        return ()
    if kind is types.FunctionType:
        return *globals_of(value), *held_by(value), *vars(value).values()
    if kind is types.MethodType or kind in PARTIALS:
        return held_by(value)
    if is_of_jax(value):
        return filter(callable, vars(value).values())
    linen = linen_module()
    if isinstance(value, type) and issubclass(value, (tuple, enum.Enum, BaseException, linen)):
        return methods_of(value)
    if isinstance(value, tuple):
        return *methods_of(kind), *tuple.__iter__(value)
    parameters = getattr(kind, "__dataclass_params__", None)
    if isinstance(value, linen) or getattr(parameters, "frozen", False):
        fields = (getattr(value, each.name, None) for each in dataclasses.fields(value))
        return *methods_of(kind), *fields
    if kind.__module__.startswith("flax") and kind.__name__ == "HashableMapping":
        return value.values()
    if kind.__module__.startswith("equinox") and not vars(value):  # a sentinel
        return ()
    what = f"the class {value.__name__}" if isinstance(value, type) else f"a {kind.__name__}"
    raise InTurn(f"it reaches {what}, which may change")


def methods_of(kind: type) -> Iterable[Any]:
    """What a class of the user's defines."""
    for base in kind.__mro__:
        for name, item in {} if is_library(base.__module__) else vars(base).items():
            is_code = isinstance(item, types.FunctionType | property | classmethod | staticmethod)
            is_data = name.startswith(("__", "_abc")) and not is_code
            if not (name in ASIDE or is_data or type(item).__module__.startswith("flax")):
                yield getattr(item, "fget", getattr(item, "__func__", item))


def globals_of(function: types.FunctionType) -> Iterable[Any]:
    """The globals that the code of a function names."""
    space = function.__globals__
    if is_library(space.get("__name__")):
        return
    loaded, names = _names(function.__code__)
    builtins = space.get("__builtins__", {})
    builtins = getattr(builtins, "__dict__", builtins)
    for name in loaded & (space.keys() | builtins.keys()):
        value = space.get(name, builtins.get(name))
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
