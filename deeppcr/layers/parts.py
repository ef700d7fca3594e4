"""Taking layers apart into arrays, which differ between layers, and code, which they share.

A layer becomes a tree: `Slot` where it has an array, `Fixed` for a value that a program can depend
on, `Node` for a composite. It can be rebuilt with other arrays in its slots. Two layers are alike
if their trees are equal and their arrays have equal types. `_KINDS` has a function for each kind of
layer: pytrees (registered dataclasses, modules of flax nnx and equinox, `jax.tree_util.Partial`),
functions with what they close over, methods, partials, bound modules of flax linen. A value that
none of them handles is `Opaque`: it is compared by its program, in `trial`.
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from deeppcr.layers.names import is_library
from deeppcr.layers.objects import attributes_of, key_of
from deeppcr.layers.reach import Unseen

DEEPEST = 50  # functions that close over functions that close over ...


class Opaque(Exception):
    """A part of a layer that cannot be taken apart."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """An array."""

    def build(self, arrays: Iterator[Any]) -> Any:
        """The next array."""
        return next(arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A composite of parts.

    Attributes:
        make: builds it from a list of parts.
        static: everything else that it depends on.
        parts: its parts, recursively taken apart.
    """

    make: Callable[[list[Any]], Any] = dataclasses.field(repr=False)
    static: Any
    parts: tuple["Code", ...] = ()

    @functools.cached_property
    def _key(self) -> Hashable:
        return type(self), key_of(self.static), self.parts

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Node)
            and type(self) is type(other)
            and _equal(self.static, other.static)
            and self.parts == other.parts
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def build(self, arrays: Iterator[Any]) -> Any:
        """The whole, with the next ``arrays`` in its slots."""
        return self.make([part.build(arrays) for part in self.parts])


def _equal(static: Any, other: Any) -> bool:
    """Whether their keys are equal, read only for items that are not the same object."""
    if static is other:
        return True
    if type(static) is type(other) is tuple and len(static) == len(other):
        return all(map(_equal, static, other))
    return key_of(static) == key_of(other)


class Fixed(Node):
    """A value that equal layers share: a number, a string, a function of a module."""

    def __init__(self, value: Any):
        super().__init__(partial(_value, value), value)


Code = Slot | Node
Split = Callable[[Any], Code]


def _value(value: Any, _: list[Any]) -> Any:
    return value


def _array(value: Any, split: Split) -> Code | None:
    """An array. Integers of numpy, which may be indices, are part of the code."""
    floating = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.inexact)
    return _SLOT if floating or isinstance(value, jax.Array) else None


_PLAIN_JIT: Any = jax.jit(lambda x: x)


def _jitted(value: Any, split: Split) -> Code | None:
    """A jitted function, unless it has options that a chain would lose: donation, a device."""
    if type(value) is not type(_PLAIN_JIT) or _is_named(value):
        return None
    if _options(value) != _options(_PLAIN_JIT):
        raise Opaque("a function jitted with options")
    return Node(_jit, "jit", (split(value.__wrapped__),))


def _jit(parts: list[Any]) -> Any:
    return jax.jit(parts[0])


def _options(jitted: Any) -> Any:
    """The options of `jax.jit`, as it pickles them; a unique object if it does not."""
    try:
        state = jitted.__getstate__()
        names = ("static_argnums", "static_argnames", "global_cache_key")
        return [state["fun"] is jitted.__wrapped__, *(state[name] for name in names)]
    except Exception:  # another jax
        return object()


_SIMPLE = (bool, int, float, complex, str, bytes, type, type(None), slice)
_SIMPLE += (np.generic, np.dtype, np.ndarray)  # type: ignore[assignment]


def _fixed(value: Any, split: Split) -> Code | None:
    """Numbers, strings, types, and objects that a module defines under their own name."""
    return Fixed(value) if isinstance(value, _SIMPLE) or _is_named(value) else None


def _is_named(value: Any) -> bool:
    """Whether a callable is the attribute of its module by its own name, and so shared by all."""
    is_ours = isinstance(value, types.FunctionType) or is_library(type(value).__module__)
    if not is_ours or not callable(value):  # other classes may invent names
        return False
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    name = getattr(value, "__qualname__", name)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:  # <lambda>
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


def _linen(value: Any, split: Split) -> Code | None:
    """A module of flax linen: bound, a call of ``apply``; unbound, a value."""
    linen = sys.modules.get("flax.linen")
    if linen is None or not isinstance(value, linen.Module):
        return None
    if value.scope is None:
        return Fixed(value)
    if value.scope.rngs or value.scope.mutable:
        raise Unseen("it is bound with random numbers, or with variables that it changes")
    unbound, variables = value.unbind()
    return Node(_apply, "linen", (Fixed(unbound), split(dict(variables))))


def _apply(parts: list[Any]) -> Any:
    module, variables = parts
    return partial(module.apply, variables)


def _method(value: Any, split: Split) -> Code | None:
    """A method bound to an object."""
    if not isinstance(value, types.MethodType):
        return None
    return Node(_call, "method", (split(value.__func__), split(value.__self__)))


def _call(parts: list[Any]) -> Any:
    function, *arguments = parts
    return partial(function, *arguments)


def _partial(value: Any, split: Split) -> Code | None:
    """A partial of functools or of jax, of which the function is taken apart, too."""
    if type(value) not in (partial, jax.tree_util.Partial):
        return None
    parts = (value.func, *value.args, *value.keywords.values())
    static = type(value), tuple(value.keywords)
    return Node(partial(_bind, *static), static, tuple(map(split, parts)))


def _bind(kind: Any, names: tuple[str, ...], parts: list[Any]) -> Any:
    first = len(parts) - len(names)
    return kind(*parts[:first], **dict(zip(names, parts[first:], strict=True)))


def _function(value: Any, split: Split) -> Code | None:
    """A function written in Python: its code, its defaults and its closure."""
    if not isinstance(value, types.FunctionType):
        return None
    if value.__dict__:
        raise Opaque(f"{value.__qualname__}, a function with attributes")
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:
        raise Opaque(f"{value.__qualname__} closes over a variable that has no value yet") from None
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    static = value.__code__, id(value.__globals__), len(defaults), tuple(keywords)
    parts = (*defaults, *keywords.values(), *cells)
    return Node(partial(_define, value), static, tuple(map(split, parts)))


def _define(function: types.FunctionType, parts: list[Any]) -> Any:
    """``function``, with other defaults and other cells."""
    source, names = iter(parts), function.__kwdefaults__ or {}
    defaults = tuple(next(source) for _ in function.__defaults__ or ())
    keywords = {name: next(source) for name in names}
    cells = tuple(map(types.CellType, source))
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, defaults or None, cells
    )
    made.__kwdefaults__ = keywords or None
    return made


def _mapping(value: Any, split: Split) -> Code | None:
    """A plain dict, in its own order, which jax would sort."""
    if type(value) is not dict:
        return None
    return Node(partial(_dict, tuple(value)), tuple(value), tuple(map(split, value.values())))


def _dict(keys: tuple[Any, ...], parts: list[Any]) -> Any:
    return dict(zip(keys, parts, strict=True))


def _tree(value: Any, split: Split) -> Code | None:
    """Any registered pytree, one level at a time."""
    children, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if jax.tree_util.treedef_is_leaf(structure) and children:
        return None
    again = None if is_library(type(value).__module__) else jax.tree.unflatten(structure, children)
    if again is not None and not (
        type(again) is type(value) and _are_same(attributes_of(value), attributes_of(again))
    ):
        raise Opaque(f"a {type(value).__name__}, with attributes that are not part of the pytree")
    level: Any = structure
    static = type(value), level.node_data()
    return Node(partial(jax.tree.unflatten, structure), static, tuple(map(split, children)))


def _are_same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two dicts have the same items, in any order."""
    return before.keys() == after.keys() and all(
        old is after[name]
        or (
            _are_same(old, after[name])
            if type(old) is type(after[name]) is dict
            else key_of(old) == key_of(after[name])
        )
        for name, old in before.items()
    )


_KINDS = [_array, _partial, _jitted, _fixed, _linen, _method, _function, _mapping, _tree]
_SLOT = Slot()


def take_apart(layer: Any, fixed: dict[int, Node] | None = None) -> tuple[Code, list[Any]]:
    """The code of a layer, and its arrays.

    Args:
        fixed: the values found in layers before, and functions that close over nothing, by id; they
            hold the values, and nothing has changed these since.

    Raises:
        Opaque: a part of it has an unknown kind.
        Unseen: it cannot be called on trial.
    """
    arrays = []
    fixed = {} if fixed is None else fixed

    def split(value: Any, level: int) -> Code:
        if (known := fixed.get(id(value))) is not None:
            return known
        if level > DEEPEST:
            raise Opaque("functions that close over each other")
        inside = partial(split, level=level + 1)
        for kind in _KINDS:
            code = kind(value, inside)
            if code is not None:
                if isinstance(code, Slot):
                    arrays.append(value)
                elif isinstance(code, Fixed) or (kind is _function and not code.parts):
                    fixed[id(value)] = code
                return code
        raise Opaque(f"a {type(value).__name__}")

    if is_pair(layer):
        return Node(_call, "pair", (split(layer[0], 0), split(layer[1], 0))), arrays
    return split(layer, 0), arrays


def is_pair(layer: Any) -> bool:
    """Whether a layer is a function with its parameters, ``(apply, params)``."""
    return type(layer) is tuple and len(layer) == 2 and callable(layer[0])


def as_callable(layer: Any) -> Callable[[Any], Any]:
    """The layer as a function of x: ``layer``, or ``apply`` with its parameters for a pair."""
    return partial(layer[0], layer[1]) if is_pair(layer) else layer
