"""Taking layers apart into arrays, which differ between layers, and code, which they share.

`deeppcr.stack` needs it, since `deeppcr.unstack` returns layers again; and so do copies on which
layers are traced. A layer becomes a tree of `LayerCode`, with slots where it has arrays: registered
pytrees (modules of flax nnx and of equinox among them), functions with their defaults and with what
they close over, partials, methods, bound modules of flax linen, pairs ``(apply, params)``. It can
be rebuilt with other arrays. Two layers are equal if their trees are, and if their arrays have
equal types.
"""

import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

# Their classes hold nothing outside their pytrees that decides what they compute.
LIBRARIES = ("jax", "jaxlib", "flax", "equinox", "haiku", "optax", "diffrax", "deeppcr")
IMMUTABLE: Any = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
IMMUTABLE += (np.generic, np.dtype, enum.Enum, frozenset)
PARTIALS = (functools.partial, jax.tree_util.Partial)


class NotApart(Exception):
    """Why a layer cannot be taken apart."""


def is_library(module: Any) -> bool:
    """Whether a module of this name belongs to a known library."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_named(value: Any) -> bool:
    """Whether this is what a module has under its own name: a function, a class."""
    if not isinstance(value, types.FunctionType | type) and not is_library(type(value).__module__):
        return False  # it may make names up
    named: Any = sys.modules.get(str(getattr(value, "__module__", None)))
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    for part in str(name).split("."):
        named = getattr(named, part, None)
    return callable(value) and named is value


def linen_module() -> Any:
    """The class of the modules of flax linen; no class before that is imported."""
    return getattr(sys.modules.get("flax.linen"), "Module", ())


@dataclasses.dataclass(frozen=True)
class LayerCode:
    """What equal layers share.

    Attributes:
        key: equal only if no program can tell two apart.
        parts: the parts of a composite.
        make: builds it from a list of its parts; None for an array.
    """

    key: Hashable
    parts: tuple["LayerCode", ...] = ()
    make: Any = dataclasses.field(default=None, compare=False, repr=False)

    def build(self, arrays: Iterator[Any]) -> Any:
        """The whole, with the next ``arrays``."""
        if self.make is None:
            return next(arrays)
        return self.make([part.build(arrays) for part in self.parts])


ARRAY = LayerCode("array")


class Identity:
    """The key of a value that equals only itself."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


def key_of(value: Any) -> Hashable:
    """A key, equal for two values if no program can tell them apart, as it can 1 and True."""
    kind: Any = type(value)
    if kind in (tuple, list):
        return kind, tuple(map(key_of, value))
    if kind is dict:
        return kind, key_of([*value.items()])
    if kind is np.ndarray:
        return kind, str(value.dtype), value.shape, value.tobytes()
    if kind.__eq__ is object.__eq__ or isinstance(value, jax.Array):
        return Identity(value)
    try:
        hash(value)
    except TypeError:  # it, or a field of a flax linen module, is an array
        return Identity(value)
    return kind, value, repr(value)


def take_apart(layer: Any, holders: list[Any] | None = None) -> tuple[LayerCode, list[Any]]:
    """The code of a layer, and its arrays.

    Args:
        layer: the layer, which is trusted to do nothing but compute.
        holders: gets, for each array, the variable that holds it: of Python, which functions close
            over, or of flax nnx; else the layer. Two that are one object are one variable.

    Raises:
        NotApart: a part has an unknown kind.
    """
    arrays: list[Any] = []

    def split(value: Any, holder: Any) -> LayerCode:
        is_numbers = type(value) is np.ndarray and value.dtype.kind in "fcV"
        if is_numbers or isinstance(value, jax.Array):
            arrays.append(value)
            if holders is not None:
                holders.append(holder)
            return ARRAY
        key, parts, make = _composite(value)
        if isinstance(value, (types.CellType, variable)):
            holder = value
        return LayerCode(key, tuple(split(part, holder) for part in parts), make)

    variable = getattr(sys.modules.get("flax.nnx"), "Variable", ())
    try:
        return split(as_callable(layer), layer), arrays
    except RecursionError:
        raise NotApart("it holds itself") from None


def is_same(before: tuple[Any, list[Any]], after: tuple[Any, list[Any]]) -> bool:
    """Whether two values, each as its structure and its leaves, hold the same objects."""
    return before[0] == after[0] and list(map(id, before[1])) == list(map(id, after[1]))


def changes(layer: Any, code: LayerCode, arrays: list[Any]) -> str:
    """What has changed in a layer since it was taken apart, as text; "" if nothing."""
    try:
        if is_same((code, arrays), take_apart(layer)):
            return ""
    except NotApart:  # it has a part that it had not
        pass
    before = list(map(id, arrays))
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    new = [path for path, leaf in leaves if isinstance(leaf, jax.Array) and id(leaf) not in before]
    return f"calling it changes {', '.join(map(jax.tree_util.keystr, new)) or 'its state'}"


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """What a variable holds that a function closes over."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        raise NotApart("it closes over a variable that has no value yet") from None


def _composite(value: Any) -> tuple[Hashable, Any, Any]:
    """The key, the parts, and the function that puts them together."""
    linen = linen_module()
    kind: Any = type(value)
    if kind is dict:  # in its own order, which jax would sort
        return kind, value.items(), kind
    if kind in (tuple, list):
        return kind, value, kind
    if kind is types.MethodType:
        return kind, (value.__func__, (value.__self__,), {}), partial(_bind, kind)
    if kind in PARTIALS:
        return kind, (value.func, value.args, value.keywords), partial(_bind, kind)
    if kind is types.FunctionType and not (value.__dict__ or is_named(value)):
        code, space = value.__code__, value.__globals__
        make = partial(_define, code, space, value.__name__)
        held = value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ())
        return (code, id(space)), held, make
    if kind is types.CellType:
        return kind, _contents(value), lambda held: types.CellType(*held)
    if kind is np.ndarray:  # a copy, since a call may change it
        return key_of(value), (), lambda _: value.copy()
    constant = *IMMUTABLE, type, np.ndarray, linen
    # By `jax.jit`, `jax.custom_jvp`, ...
    is_made_by_jax = callable(value) and kind.__module__.startswith(("jax.", "jaxlib."))
    if isinstance(value, constant) or is_made_by_jax or is_named(value):
        return key_of(value), (), partial(_value, value)
    # Any registered pytree, one level of it.
    parts, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if jax.tree_util.treedef_is_leaf(structure) and parts:
        raise NotApart(f"it holds a {kind.__name__}, which is no pytree")
    if not is_library(kind.__module__):
        copy = jax.tree.unflatten(structure, parts)
        old, new = (getattr(each, "__dict__", {}) for each in (value, copy))
        same = (k in new and (v is new[k] or key_of(v) == key_of(new[k])) for k, v in old.items())
        if type(copy) is not kind or not all(same):
            raise NotApart(f"a {kind.__name__} has attributes that are not part of the pytree")
    data: Any = structure.node_data()  # type: ignore[attr-defined]
    return (kind, key_of(data)), parts, partial(jax.tree.unflatten, structure)


def _value(value: Any, _: list[Any]) -> Any:
    return value


def _bind(kind: Any, held: list[Any]) -> Any:
    """A method or a partial."""
    function, arguments, keywords = held
    return kind(function, *arguments, **keywords)


def _define(code: Any, space: dict[str, Any], name: str, held: list[Any]) -> Any:
    """A function."""
    defaults, keywords, *cells = held
    made = types.FunctionType(code, space, name, defaults, tuple(cells))
    made.__kwdefaults__ = keywords
    return made


def is_pair(layer: Any) -> bool:
    """Whether a layer is a function with its parameters, ``(apply, params)``."""
    return type(layer) is tuple and len(layer) == 2 and callable(layer[0])


def is_bound(layer: Any) -> bool:
    """Whether a layer is a module of flax linen with its variables."""
    return isinstance(layer, linen_module()) and layer.scope is not None


def is_stateful(layer: Any) -> bool:
    """Whether it is bound, and changes its variables or counts its random numbers."""
    return is_bound(layer) and bool(layer.scope.rngs or layer.scope.mutable)


def as_callable(layer: Any) -> Any:
    """The layer as a function of x.

    A pair is ``apply`` with its parameters. So is a bound module of flax linen that changes
    nothing: flax calls bound modules only where they were bound, not in a trace of their own.
    """
    if is_pair(layer):
        return partial(layer[0], layer[1])
    if not is_bound(layer) or is_stateful(layer):
        return layer
    unbound, variables = layer.unbind()
    return partial(unbound.apply, dict(variables))
