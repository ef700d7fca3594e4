"""Taking layers apart into arrays, which differ between layers, and code, which they share.

A layer becomes a tree of `Code`, with slots where it has arrays: registered pytrees (modules of
flax nnx and of equinox among them), functions with their defaults and with what they close over,
partials, methods, bound modules of flax linen, pairs ``(apply, params)``. It can be rebuilt with
other arrays. Two layers are equal if their trees are, and if their arrays have equal types.
"""

import dataclasses
import sys
import types
from collections.abc import Hashable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from deeppcr.layers.pure import (
    IMMUTABLE,
    PARTIALS,
    InTurn,
    Seen,
    check_pure,
    globals_of,
    held_by,
    is_library,
    is_named,
    is_of_jax,
    linen_module,
    methods_of,
)


@dataclasses.dataclass(frozen=True)
class Code:
    """What equal layers share.

    Attributes:
        key: equal only if no program can tell two apart.
        parts: the parts of a composite.
        make: builds it from a list of its parts; None for an array.
    """

    key: Hashable
    parts: tuple["Code", ...] = ()
    make: Any = dataclasses.field(default=None, compare=False, repr=False)

    def build(self, arrays: Iterator[Any]) -> Any:
        """The whole, with the next ``arrays``."""
        if self.make is None:
            return next(arrays)
        return self.make(build(self.parts, arrays))


def build(codes: Iterable[Code], arrays: Iterable[Any]) -> list[Any]:
    """Values of these codes, with the ``arrays`` of the first, of the second, ..."""
    source = iter(arrays)
    return [code.build(source) for code in codes]


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


def take_apart(
    layer: Any, seen: Seen | None = None, holders: list[Any] | None = None
) -> tuple[Code, list[Any]]:
    """The code of a layer, and its arrays.

    Args:
        layer: the layer.
        seen: what is known to do nothing but compute, which gets what is new. None: whatever a
            layer reaches is trusted.
        holders: gets, for each array, the variables that hold it: of Python, which functions close
            over, and of flax nnx. Those that are one object are one variable.

    Raises:
        InTurn: a part has an unknown kind, or its code may do more than compute.
    """
    arrays: list[Any] = []

    def split(value: Any, held: tuple[Any, ...] = ()) -> Code:
        is_numbers = type(value) is np.ndarray and value.dtype.kind in "fcV"
        if is_numbers or isinstance(value, jax.Array):
            arrays.append(value)
            if holders is not None:
                holders.append(held)
            return Code("array")
        key, parts, make, reached = _composite(value)
        if seen is not None and key not in seen:
            check_pure(reached, seen)
            seen[key] = value
        if isinstance(value, (types.CellType, variable)):
            held = *held, value
        return Code(key, tuple(split(part, held) for part in parts), make)

    variable = getattr(sys.modules.get("flax.nnx"), "Variable", ())
    return split(as_callable(layer)), arrays


def _composite(value: Any) -> tuple[Hashable, Any, Any, Iterable[Any]]:
    """The key, the parts, the function that puts them together, and what else its code reaches."""
    linen = linen_module()
    if isinstance(value, linen) and value.scope is not None:
        if value.scope.rngs or value.scope.mutable:
            raise InTurn("it is bound with random numbers, or with variables that it changes")
        unbound, variables = value.unbind()
        value = partial(unbound.apply, dict(variables))
    kind: Any = type(value)
    if kind is dict:  # in its own order, which jax would sort
        return kind, value.items(), kind, ()
    if kind in (tuple, list):
        return kind, value, kind, ()
    if kind is types.MethodType or kind in PARTIALS:
        return kind, held_by(value), partial(_bind, kind), ()
    if kind is types.FunctionType and not (value.__dict__ or is_named(value)):
        code, space = value.__code__, value.__globals__
        make = partial(_define, code, space, value.__name__)
        held = *held_by(value)[:2], *(value.__closure__ or ())
        return (code, id(space)), held, make, globals_of(value)
    if kind is types.CellType:
        return kind, (value.cell_contents,), lambda held: types.CellType(*held), ()
    constant = *IMMUTABLE, type, np.ndarray, linen
    if isinstance(value, constant) or is_of_jax(value) or is_named(value):
        return key_of(value), (), partial(_value, value), (value,)
    # Any registered pytree, one level of it.
    parts, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if jax.tree_util.treedef_is_leaf(structure) and parts:
        raise InTurn(f"it holds a {kind.__name__}, which is no pytree")
    if not is_library(kind.__module__):
        copy = jax.tree.unflatten(structure, parts)
        old, new = (getattr(each, "__dict__", {}) for each in (value, copy))
        same = (k in new and (v is new[k] or key_of(v) == key_of(new[k])) for k, v in old.items())
        if type(copy) is not kind or not all(same):
            raise InTurn(f"a {kind.__name__} has attributes that are not part of the pytree")
    data: Any = structure.node_data()  # type: ignore[attr-defined]
    reached = () if data is None else (*methods_of(kind), data[1])
    return (kind, key_of(data)), parts, partial(jax.tree.unflatten, structure), reached


def _value(value: Any, _: list[Any]) -> Any:
    return value


def _bind(kind: Any, held: list[Any]) -> Any:
    """A method or a partial."""
    function, arguments, keywords = held
    return kind(function, *arguments, **dict(keywords))


def _define(code: Any, space: dict[str, Any], name: str, held: list[Any]) -> Any:
    """A function."""
    defaults, keywords, *cells = held
    made = types.FunctionType(code, space, name, defaults, tuple(cells))
    made.__kwdefaults__ = dict(keywords)
    return made


def is_pair(layer: Any) -> bool:
    """Whether a layer is a function with its parameters, ``(apply, params)``."""
    return type(layer) is tuple and len(layer) == 2 and callable(layer[0])


def as_callable(layer: Any) -> Any:
    """The layer as a function of x: ``layer``, or ``apply`` with its parameters for a pair."""
    return partial(layer[0], layer[1]) if is_pair(layer) else layer
