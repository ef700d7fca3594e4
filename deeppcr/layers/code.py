"""What a layer is made of: code, which layers alike share, and arrays, of which each has its own.

A layer is taken apart into a tree of nodes with arrays at some leaves, and can be built again with other arrays there. Two
layers are alike if their trees are equal and their arrays have equal types. A new kind of layer is one class and one entry in
`KINDS`: pytrees (registered dataclasses, flax nnx and equinox modules, `jax.tree_util.Partial`), functions with what they close
over, bound methods, partials, ``(apply, params)`` pairs, and flax linen modules. What none of them can take apart is `Opaque`:
it is compared by what it does, in `deeppcr.layers.traced`.
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from deeppcr.layers.objects import attributes_of
from deeppcr.layers.sameness import same
from deeppcr.layers.trusted import is_library

Arrays = list[Any]
Built = list[Any]


class Opaque(Exception):
    """A part of a layer that cannot be taken apart."""


class Stateful(Opaque):
    """A layer that changes when it is called, and cannot be called on trial."""


class Code(Protocol):
    """A layer without its arrays; equal for layers that do the same with arrays of the same types."""

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The layer with ``arrays`` in it; what can be changed is appended to ``built``: name, object, parts, structure."""


TakeApart = Callable[[Any], Code]


@dataclasses.dataclass(frozen=True)
class Slot:
    """An array."""

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The next array."""
        return next(arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class Fixed:
    """A value that is the same in layers alike: a number, a string, a function of a module."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and same(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The value."""
        return self.value


def fixed(value: Any, take_apart: TakeApart) -> Code | None:
    """Numbers, strings, types, and what a module has under its own name."""
    kinds = (
        bool
        | int
        | float
        | complex
        | str
        | bytes
        | type
        | np.generic
        | np.dtype
        | slice
        | np.ndarray
    )
    plain = value is None or isinstance(value, kinds)
    return Fixed(value) if plain or _is_named(value) else None


def _is_named(value: Any) -> bool:
    """Whether a callable is what its module has under its name: the same one for everybody."""
    ours = isinstance(value, types.FunctionType | type) or is_library(
        type(value).__module__
    )  # others may make names up
    if not ours or not callable(value):
        return False
    name, module = (
        getattr(value, "__qualname__", getattr(value, "__name__", None)),
        getattr(value, "__module__", None),
    )
    if not isinstance(name, str) or not isinstance(module, str):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value


@dataclasses.dataclass(frozen=True)
class Mapping:
    """A dict, in its own order, which jax would sort."""

    keys: Fixed
    values: tuple[Code, ...]

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The dict."""
        return _put_together(
            self.values, arrays, built, lambda parts: dict(zip(self.keys.value, parts, strict=True))
        )


def mapping(value: Any, take_apart: TakeApart) -> Code | None:
    """A plain dict."""
    if type(value) is not dict:
        return None
    return Mapping(Fixed(tuple(value)), tuple(map(take_apart, value.values())))


@dataclasses.dataclass(frozen=True)
class Tree:
    """One level of a pytree; ``static`` is what jax keeps beside its children."""

    structure: Any = dataclasses.field(compare=False)
    static: Fixed
    children: tuple[Code, ...]

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The pytree."""
        return _put_together(
            self.children, arrays, built, lambda parts: jax.tree.unflatten(self.structure, parts)
        )


def tree(value: Any, take_apart: TakeApart) -> Code | None:
    """Anything that jax knows as a pytree."""
    children, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
    if jax.tree_util.treedef_is_leaf(structure) and children:
        return None
    if not is_library(type(value).__module__) and not _is_all(
        value, jax.tree.unflatten(structure, children)
    ):
        raise Opaque(f"a {type(value).__name__}, of whose attributes jax does not know all")
    level: Any = structure
    return Tree(
        structure, Fixed((type(value), level.node_data())), tuple(map(take_apart, children))
    )


def _is_all(value: Any, again: Any) -> bool:
    """Whether a pytree that was flattened and put together again has the attributes that it had."""
    if type(again) is not type(value):
        return False
    return _same_entries(attributes_of(value), attributes_of(again))


def _same_entries(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two dicts have the same in them, in whatever order."""
    return before.keys() == after.keys() and all(
        _same_entries(old, after[name])
        if type(old) is type(after[name]) is dict
        else same(old, after[name])
        for name, old in before.items()
    )


def _put_together(
    parts: Sequence[Code], arrays: Iterator[Any], built: Built, make: Callable[[list[Any]], Any]
) -> Any:
    """A pytree of parts, recorded, to see later whether it was changed, as a whole: not those inside it."""
    inside: Built = []
    value = make([part.build(arrays, inside) for part in parts])
    built += [entry for entry in inside if isinstance(entry[1], types.FunctionType)]
    built.append((type(value).__name__, value, *jax.tree.flatten(value)))
    return value


@dataclasses.dataclass(frozen=True)
class Function:
    """A Python function: its code, its defaults, and what it closes over. Its globals are the same object, not compared."""

    code: types.CodeType
    names: int  # the identity of its globals
    function: types.FunctionType = dataclasses.field(compare=False)
    defaults: tuple[Code, ...]
    keywords: tuple[tuple[str, Code], ...]
    cells: tuple[Code, ...]

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """A function with other defaults and other cells."""
        defaults = tuple(default.build(arrays, built) for default in self.defaults)
        keywords = {name: default.build(arrays, built) for name, default in self.keywords}
        cells = tuple(types.CellType(cell.build(arrays, built)) for cell in self.cells)
        old = self.function
        new = types.FunctionType(self.code, old.__globals__, old.__name__, defaults or None, cells)
        new.__kwdefaults__ = keywords or None
        built.append((old.__name__, new, [cell.cell_contents for cell in cells], None))
        return new


def function(value: Any, take_apart: TakeApart) -> Code | None:
    """A function written in Python."""
    if not isinstance(value, types.FunctionType):
        return None
    if value.__dict__:
        raise Opaque(f"{value.__qualname__}, a function with attributes")
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:
        raise Opaque(f"{value.__qualname__} closes over a variable that has no value yet") from None
    return Function(
        value.__code__,
        id(value.__globals__),
        value,
        tuple(map(take_apart, value.__defaults__ or ())),
        tuple(
            (name, take_apart(default)) for name, default in (value.__kwdefaults__ or {}).items()
        ),
        tuple(map(take_apart, cells)),
    )


@dataclasses.dataclass(frozen=True)
class Jitted:
    """A function in `jax.jit`."""

    inside: Code

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The same function, jitted anew."""
        return jax.jit(self.inside.build(arrays, built))


def jitted(value: Any, take_apart: TakeApart) -> Code | None:
    """What is inside `jax.jit`, where that has no options that a chain would lose: a device, donation, static arguments."""
    if type(value) is not type(_PLAIN) or _is_named(value):
        return None
    if _options(value) != _options(_PLAIN):
        raise Opaque("a function jitted with options")
    return Jitted(take_apart(value.__wrapped__))


_PLAIN: Any = jax.jit(lambda x: x)


def _options(jitted: Any) -> Any:
    """What `jax.jit` was told, as it is kept to pickle jitted functions; unlike any other if it is not kept so."""
    try:
        state = jitted.__getstate__()
        unchanged = state["fun"] is jitted.__wrapped__
        return (
            unchanged,
            state["static_argnums"],
            state["static_argnames"],
            state["global_cache_key"],
        )
    except Exception:  # another jax
        return object()


@dataclasses.dataclass(frozen=True)
class Applied:
    """A function with its first arguments: a bound method, a partial, a pair of a function and parameters."""

    kind: str
    function: Code
    arguments: tuple[Code, ...]
    keywords: tuple[tuple[str, Code], ...] = ()

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """A partial of the function."""
        function = self.function.build(arrays, built)
        arguments = [argument.build(arrays, built) for argument in self.arguments]
        keywords = {name: value.build(arrays, built) for name, value in self.keywords}
        make = jax.tree_util.Partial if self.kind == "Partial" else functools.partial
        return make(function, *arguments, **keywords)


def method(value: Any, take_apart: TakeApart) -> Code | None:
    """A method bound to an object."""
    if not isinstance(value, types.MethodType):
        return None
    return Applied("method", take_apart(value.__func__), (take_apart(value.__self__),))


def partial(value: Any, take_apart: TakeApart) -> Code | None:
    """A partial of functools, or of jax, of which the function is taken apart, too."""
    if type(value) not in (functools.partial, jax.tree_util.Partial):
        return None
    keywords = tuple((name, take_apart(argument)) for name, argument in value.keywords.items())
    return Applied(
        type(value).__name__, take_apart(value.func), tuple(map(take_apart, value.args)), keywords
    )


def changes(built: Built) -> list[str]:
    """What of the parts of a rebuilt layer was replaced since: by name."""
    found = []
    for name, value, parts, structure in built:
        if isinstance(value, types.FunctionType):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), parts, strict=True)
            found += [
                f"{name}.{variable}"
                for variable, cell, part in cells
                if cell.cell_contents is not part
            ]
            continue
        paths, now = jax.tree_util.tree_flatten_with_path(value)
        if now != structure:
            found.append(f"the structure of {name}")
        found += [
            name + jax.tree_util.keystr(path)
            for (path, part), old in zip(paths, parts, strict=False)
            if part is not old
        ]
    return found


def is_pair(layer: Any) -> bool:
    """Whether a layer is a function with its parameters, ``(apply, params)``."""
    return type(layer) is tuple and len(layer) == 2 and callable(layer[0])


@dataclasses.dataclass(frozen=True)
class Bound:
    """A flax linen module bound to variables: called as the module's ``apply``."""

    module: Fixed
    variables: Code

    def build(self, arrays: Iterator[Any], built: Built) -> Any:
        """The call."""
        return functools.partial(self.module.value.apply, self.variables.build(arrays, built))


def linen(value: Any, take_apart: TakeApart) -> Code | None:
    """A flax linen module: bound, with its variables; unbound, equal to those with equal fields."""
    module = sys.modules.get("flax.linen")
    if module is None or not isinstance(value, module.Module):
        return None
    if value.scope is None:
        return Fixed(value)
    if value.scope.rngs or value.scope.mutable:
        raise Stateful("a linen module bound with random numbers or with variables that it changes")
    unbound, variables = value.unbind()
    return Bound(Fixed(unbound), take_apart(dict(variables)))


def array(value: Any, take_apart: TakeApart) -> Code | None:
    """An array, which `take_apart` collects; numpy's integers, which may be indices, are part of the code."""
    floating = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.inexact)
    return Slot() if floating or isinstance(value, jax.Array) else None


KINDS = [array, jitted, fixed, linen, method, partial, function, mapping, tree]
DEEPEST = 50  # functions that close over functions that close over ...


def take_apart(layer: Any) -> tuple[Code, Arrays]:
    """The code of a layer, and its arrays.

    Raises:
        Opaque: a part of it is of no known kind.
    """
    arrays: Arrays = []

    def part(value: Any, level: int) -> Code:
        if level > DEEPEST:
            raise Opaque("functions that close over each other")
        for kind in KINDS:
            code = kind(value, lambda inner: part(inner, level + 1))
            if code is not None:
                if isinstance(code, Slot):
                    arrays.append(value)
                return code
        raise Opaque(f"a {type(value).__name__}")

    if is_pair(layer):
        return Applied("pair", part(layer[0], 0), (part(layer[1], 0),)), arrays
    return part(layer, 0), arrays


def as_callable(layer: Any) -> Callable[[Any], Any]:
    """The layer as it is called: ``layer(x)``, or ``apply(params, x)`` for a pair."""
    return functools.partial(layer[0], layer[1]) if is_pair(layer) else layer
