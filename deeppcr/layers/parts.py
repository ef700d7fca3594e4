"""Taking layers apart into arrays, which differ between layers, and code, which they share.

A layer becomes a tree of `Code`, with slots where it has arrays: registered pytrees (modules of
flax nnx and of equinox among them), functions with their defaults and with what they close over,
partials, methods, bound modules of flax linen, pairs ``(apply, params)``. It can be rebuilt with
other arrays. Two layers are equal if their trees are, and if their arrays have equal types.
"""

import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

LIBRARIES = frozenset(
    str.split("""
    jax jaxlib numpy ml_dtypes flax equinox haiku optax chex jaxtyping einops lineax optimistix
    diffrax distrax deeppcr depth builtins math cmath operator _operator functools _functools
    itertools collections _collections _collections_abc enum dataclasses typing abc _abc types copy
    """)
)
IMMUTABLE: Any = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
IMMUTABLE += (np.generic, np.dtype, enum.Enum, frozenset)
PARTIALS = (functools.partial, jax.tree_util.Partial)


class InTurn(Exception):
    """Why a layer has to be called in its turn."""


class Own(NamedTuple):
    """The code of a function, without what it was given; or the methods of a class."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Code:
    """What equal layers share.

    Attributes:
        key: equal only if no program can tell two apart.
        parts: the parts of a composite.
        make: builds it from a list of its parts; None for an array.
        fixed: what its code reaches besides its parts.
    """

    key: Hashable
    parts: tuple["Code", ...] = ()
    make: Any = dataclasses.field(default=None, compare=False, repr=False)
    fixed: tuple[Any, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def build(self, arrays: Iterator[Any]) -> Any:
        """The whole, with the next ``arrays``."""
        if self.make is None:
            return next(arrays)
        return self.make([part.build(arrays) for part in self.parts])

    def reaches(self) -> Iterator[Any]:
        """All that its code reaches, but for arrays."""
        yield from self.fixed
        for part in self.parts:
            yield from part.reaches()


class Identity:
    """The key of a value that equals only itself."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def key_of(value: Any) -> Hashable:
    """A key, equal for two values if no program can tell them apart, as it can 1 and True."""
    kind: Any = type(value)
    if kind is Code:
        return kind, value
    if kind in (tuple, list):
        return kind, tuple(map(key_of, value))
    if kind is dict:
        return kind, key_of([*value.items()])
    if kind is np.ndarray:
        return kind, str(value.dtype), value.shape, value.tobytes()
    if kind.__eq__ is object.__eq__ or kind.__hash__ is None or isinstance(value, jax.Array):
        return Identity(value)
    return kind, value, repr(value)


def take_apart(layer: Any) -> tuple[Code, list[Any]]:
    """The code of a layer, and its arrays; raises `InTurn` if a part of it has an unknown kind."""
    arrays: list[Any] = []

    def split(value: Any) -> Code:
        is_numbers = type(value) is np.ndarray and value.dtype.kind in "fcV"
        if is_numbers or isinstance(value, jax.Array):
            arrays.append(value)
            return Code("array")
        key, parts, make, fixed = composite(value)
        return Code(key, tuple(map(split, parts)), make, fixed)

    return split(as_callable(layer)), arrays


def composite(value: Any) -> tuple[Hashable, Any, Callable[[list[Any]], Any], tuple[Any, ...]]:
    """The key, the parts, the function that puts them together, and what else its code reaches."""
    linen: Any = getattr(sys.modules.get("flax.linen"), "Module", ())
    if isinstance(value, linen) and value.scope is not None:
        if value.scope.rngs or value.scope.mutable:
            raise InTurn("it is bound with random numbers, or with variables that it changes")
        unbound, variables = value.unbind()
        value = partial(unbound.apply, dict(variables))
    elif type(value) is types.MethodType:
        value = partial(value.__func__, value.__self__)
    kind = type(value)
    if kind in PARTIALS:
        names = tuple(value.keywords)
        parts = (value.func, *value.args, *value.keywords.values())
        return (kind, names), parts, partial(_bind, kind, names), ()
    if kind is types.FunctionType and not (value.__dict__ or is_named(value)):
        counts = len(value.__defaults__ or ()), tuple(value.__kwdefaults__ or ())
        key = value.__code__, id(value.__globals__), counts
        return key, held_by(value), partial(_define, value), (Own(value),)
    if kind is dict:  # in its own order, which jax would sort
        return key_of([*value]), value.values(), partial(_dict, tuple(value)), ()
    of_jax = callable(value) and kind.__module__.startswith(("jax.", "jaxlib."))
    if isinstance(value, (*IMMUTABLE, type, np.ndarray, linen)) or of_jax or is_named(value):
        return key_of(value), (), partial(_value, value), (value,)
    # Any registered pytree, one level of it.
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if jax.tree_util.treedef_is_leaf(structure) and leaves:
        raise InTurn(f"it holds a {kind.__name__}, which is no pytree")
    if not is_library(kind.__module__):
        copy = jax.tree.unflatten(structure, leaves)
        old, new = (getattr(each, "__dict__", {}) for each in (value, copy))
        same = (k in new and (v is new[k] or key_of(v) == key_of(new[k])) for k, v in old.items())
        if type(copy) is not kind or not all(same):
            raise InTurn(f"a {kind.__name__} has attributes that are not part of the pytree")
    data: Any = structure.node_data()  # type: ignore[attr-defined]
    fixed = () if data is None else (Own(kind), data[1])
    return (kind, key_of(data)), leaves, partial(jax.tree.unflatten, structure), fixed


def _value(value: Any, _: list[Any]) -> Any:
    return value


def _bind(kind: Any, names: tuple[str, ...], parts: list[Any]) -> Any:
    first = len(parts) - len(names)
    return kind(*parts[:first], **dict(zip(names, parts[first:], strict=True)))


def _dict(keys: tuple[Any, ...], parts: list[Any]) -> Any:
    return dict(zip(keys, parts, strict=True))


def held_by(function: types.FunctionType) -> list[Any]:
    """The defaults of a function, and what it closes over."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells]


def _define(function: types.FunctionType, held: list[Any]) -> Any:
    """``function``, with other defaults and other cells."""
    source, names = iter(held), function.__kwdefaults__ or {}
    defaults = tuple(next(source) for _ in function.__defaults__ or ())
    keywords = {name: next(source) for name in names}
    code, space, name = function.__code__, function.__globals__, function.__name__
    cells = tuple(map(types.CellType, source))
    made = types.FunctionType(code, space, name, defaults or None, cells)
    made.__kwdefaults__ = keywords or None
    return made


def is_library(module: Any) -> bool:
    """Whether a module of this name belongs to a known library."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


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


def is_pair(layer: Any) -> bool:
    """Whether a layer is a function with its parameters, ``(apply, params)``."""
    return type(layer) is tuple and len(layer) == 2 and callable(layer[0])


def as_callable(layer: Any) -> Any:
    """The layer as a function of x: ``layer``, or ``apply`` with its parameters for a pair."""
    return partial(layer[0], layer[1]) if is_pair(layer) else layer
