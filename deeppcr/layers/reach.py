"""What a layer can reach: every object that a call of it can reach, found without calling it.

A layer is called on trial, to see what it does, before it is called for good. The trial must leave nothing behind, and must see
whatever the call changes. So it is for layers that hold what can be watched: arrays, numbers, Python's containers, objects and
functions written in Python, with the globals that they name. Whoever holds more (a generator of random numbers, an iterator, a
file, an object of an unknown library) is `Unseen`, and is called in its turn alone.
"""

import collections
import contextlib
import functools
import operator
import re
import types
import weakref
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from deeppcr.layers import watch
from deeppcr.layers.bytecode import CALLED, Chain, names_of
from deeppcr.layers.objects import instance_dict, is_of_python, read_slots, slots_of
from deeppcr.layers.plain import (
    ASIDE,
    BASES,
    BY_NAME,
    CONTAINERS,
    DESCRIPTORS,
    JITTED,
    LEAVES,
    MAKE,
    METHODS,
    VALUES,
)
from deeppcr.layers.trusted import (
    FOREIGN_ATTRIBUTES,
    is_foreign,
    is_library,
    is_seeded,
    module_named,
)


class Unseen(Exception):
    """Why a layer cannot be called on trial."""


MOST = 50_000  # objects in one layer


class Reach:
    """The mutable objects that a call can reach, watched.

    Attributes:
        watched: the objects.

    Raises:
        Unseen: it can reach what cannot be watched.
    """

    def __init__(self, layer: Any, name: str = ""):
        self.watched: list[watch.Watched] = []
        self._seen: dict[int, Any] = {}
        self._watching: set[tuple[int, str]] = set()
        self._names: set[str] = set()
        self._read: set[str] = set()
        self._counted: set[str] = set()
        self._any_name = self._makes = self._jits = self._keeps = False
        self._spaces: dict[int, tuple[Mapping[str, Any], str, bool]] = {}
        self._found: set[tuple[int, str]] = set()
        self._visit(layer, name or _name(layer))
        while self._by_name():
            pass
        if foreign := FOREIGN_ATTRIBUTES & (self._names | self._read):
            raise Unseen(f"it uses {min(foreign)}")

    @property
    def counters(self) -> set[str]:
        """Names of attributes that are counted up and never read."""
        return set() if self._any_name else self._counted - self._read - self._names

    @property
    def may_be_stale(self) -> bool:
        """Whether `jax.jit` is in it, which reads once what may be changed later."""
        return self._jits and self._keeps

    @property
    def names(self) -> set[str]:
        """Every name that its code reads."""
        return self._names | self._read

    def _watch(self, entry: watch.Watched, is_state: bool = True) -> None:
        self.watched.append(entry)
        self._keeps = self._keeps or (is_state and entry.is_state)

    def _visit(self, value: Any, name: str) -> None:
        """Look at an object, and at what it holds."""
        if (
            type(value) in LEAVES
            or isinstance(value, np.generic | np.dtype)
            or id(value) in self._seen
        ):
            return
        self._seen[id(value)] = value
        kind = type(value)
        if len(self._seen) > MOST:
            raise Unseen(f"it holds more than {MOST} objects")
        if isinstance(value, types.ModuleType):
            self._module(value, name)
        elif isinstance(value, type):
            self._class(value, made=True)
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, name.rpartition(".")[0] or name)
            self._visit(value.__func__, name)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            self._builtin(value, name)
        elif isinstance(value, DESCRIPTORS):
            return
        elif isinstance(value, np.ndarray):
            self._array(value, name)
        elif isinstance(value, weakref.ref):
            self._visit(value(), name)
        elif isinstance(value, types.CellType):
            self._watch(watch.of_cell(name, value))
            with contextlib.suppress(ValueError):
                self._visit(value.cell_contents, name)
        elif isinstance(value, types.MappingProxyType):
            for key, item in value.items():
                self._visit(item, watch.path_of(name, key))
        elif isinstance(value, property):
            for part in (value.fget, value.fset, value.fdel):
                self._visit(part, name)
        elif isinstance(value, classmethod | staticmethod):
            self._makes = self._makes or isinstance(value, classmethod)
            self._visit(value.__func__, name)
        elif isinstance(value, functools.cached_property):
            self._visit(value.func, name)
        elif kind.__module__ == "numpy" and callable(value):
            if getattr(np, value.__name__, None) is not value or is_foreign(value):
                raise Unseen(f"it uses {name}")
        elif kind is functools._lru_cache_wrapper:
            if not is_library(getattr(value.__wrapped__, "__module__", None)):
                raise Unseen(f"it uses {name}, which keeps what it returned")
        elif kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
            self._any_name = True
        else:
            self._object(value, name)

    def _module(self, module: types.ModuleType, name: str) -> None:
        """A module that is used as a whole: what it has under the names that anything uses."""
        if is_foreign(module):
            raise Unseen(f"it uses {module.__name__}")
        space = vars(module)
        if not is_library(module.__name__):
            self._watch(watch.of_dict(name, space))
            self._spaces[id(space)] = space, name, False
        elif module.__name__.partition(".")[0] == "numpy":
            self._spaces[id(space)] = space, name, False

    def _class(self, kind: type, made: bool = False) -> None:
        """A class: the methods that Python calls by itself, and those that anything names."""
        if is_library(kind.__module__):
            if is_foreign(kind):
                raise Unseen(f"it uses {kind.__module__}.{kind.__qualname__}")
            return
        for base in kind.__mro__:
            if is_library(base.__module__):
                continue
            if not is_of_python(base):
                raise Unseen(f"it uses {base.__module__}.{base.__qualname__}")
            space = vars(base)
            key = id(base)
            if key not in self._spaces:
                self._spaces[key] = space, base.__name__, False
                self._watch(watch.of_class(base.__name__, base))
                self._visit(type(base), type(base).__name__)
            if made and not self._spaces[key][2]:
                self._spaces[key] = space, base.__name__, True

    def _by_name(self) -> bool:
        """Look at attributes of classes and modules by the names that have been met; whether there was one."""
        new = False
        for key, (space, name, made) in list(self._spaces.items()):
            is_class = isinstance(space, types.MappingProxyType)
            made = made or self._makes or "__class__" in self._names
            for entry in list(space):
                wanted = entry in self._names or self._any_name
                if is_class and entry.startswith("__"):
                    by_itself = isinstance(space[entry], METHODS) and entry not in ASIDE
                    wanted = by_itself or (made if entry in MAKE else entry in self._names)
                if wanted and (key, entry) not in self._found:
                    self._found.add((key, entry))
                    self._visit(space[entry], f"{name}.{entry}")
                    new = True
        return new

    def _function(self, function: types.FunctionType, name: str) -> None:
        module = function.__globals__.get("__name__")
        if is_library(module):
            self._of_library(function, name)
            return
        names = names_of(function.__code__)
        if names.catches:
            raise Unseen(
                f"{function.__qualname__} catches exceptions, and those of a trial are others"
            )
        self._names |= names.attributes
        self._read |= names.read
        self._counted |= names.counters
        self._watch(watch.of_function(name, function))
        self._visit(function.__dict__, name)
        for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._visit(part, f"a default of {name}")
        if function.__kwdefaults__:
            self._visit(function.__kwdefaults__, f"the defaults of {name}")
        for path in names.imports:
            self._import(path)
        self._globals(function.__globals__, names.globals)
        for chain in names.lookups:
            self._lookup(function.__globals__, chain)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for variable, cell in cells.items():
            chains = [chain for chain in names.cells if chain[0] == variable]
            self._cell(cell, f"{name}.{variable}", variable, chains)

    def _cell(self, cell: types.CellType, name: str, variable: str, chains: list[Chain]) -> None:
        self._watch(watch.of_cell(name, cell))
        try:
            value = cell.cell_contents
        except ValueError:  # it has no value yet
            return
        if variable == "__class__" and isinstance(value, type):
            self._class(
                value,
                made=any(len(chain) == 1 for chain in chains)
                and bool(chains)
                and "__class__" in self._names,
            )
        elif isinstance(value, types.ModuleType) and chains:
            for chain in chains:
                self._chain(value, chain[1:], name)
        else:
            self._visit(value, name)
            self._names.update(*(chain[1:] for chain in chains))

    def _import(self, path: str) -> None:
        module = module_named(path)
        if module is None:
            raise Unseen(f"it imports {path}")
        self._visit(module_named(path.partition(".")[0]), path.partition(".")[0])
        self._visit(module, path)

    def _globals(self, space: dict[str, Any], chains: frozenset[Chain]) -> None:
        here = sorted({chain[0] for chain in chains})
        name = str(space.get("__name__", "globals"))
        self._watch(watch.of_names(name, space, here))
        builtins = space.get("__builtins__", {})
        builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
        for chain in chains:
            if chain[0] in space:
                self._chain(space[chain[0]], chain[1:], chain[0])
            elif chain[0] in builtins:
                self._chain(builtins[chain[0]], chain[1:], chain[0])

    def _lookup(self, space: dict[str, Any], chain: Chain) -> None:
        """A global of which an attribute is looked up by a name that is known when it runs only."""
        value = space.get(chain[0]) if chain else None
        for name in chain[1:]:
            value = vars(value).get(name) if isinstance(value, types.ModuleType) else None
        if (
            isinstance(value, types.ModuleType)
            and is_library(value.__name__)
            and not value.__name__.startswith("numpy")
        ):
            return
        self._any_name = True
        self._globals(space, frozenset([chain] if chain else []))

    def _chain(self, value: Any, attributes: Chain, name: str) -> None:
        """What ``value.a.b`` is, as far as it is a matter of modules."""
        while isinstance(value, types.ModuleType) and attributes and attributes[0] != CALLED:
            if is_seeded(value, attributes):
                return
            if is_foreign(value):
                raise Unseen(f"it uses {value.__name__}")
            space = vars(value)
            if not is_library(value.__name__) and (id(value), attributes[0]) not in self._watching:
                self._watching.add((id(value), attributes[0]))
                self._watch(watch.of_names(value.__name__, space, attributes[:1]))
            if attributes[0] not in space:
                if is_library(value.__name__):
                    return
                raise Unseen(f"it uses {value.__name__}.{attributes[0]}")
            value, name = space[attributes[0]], f"{name}.{attributes[0]}"
            attributes = attributes[1:]
        attributes = tuple(attribute for attribute in attributes if attribute != CALLED)
        self._names.update(attributes)
        if isinstance(value, type) and attributes:
            self._class(value)
        else:
            self._visit(value, name)

    def _builtin(self, value: Any, name: str) -> None:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            if not is_library(value.__module__) or is_foreign(value):
                raise Unseen(f"it uses {value.__module__}.{value.__name__}")
            self._any_name = self._any_name or any(value is builtin for builtin in BY_NAME)
            return
        self._names.add(value.__name__)
        self._visit(owner, name)

    def _array(self, array: np.ndarray[Any, Any], name: str) -> None:
        if type(array) is not np.ndarray or array.dtype.hasobject:
            raise Unseen(f"it holds a {type(array).__name__} of {array.dtype}, {name}")
        self._watch(watch.of_array(name, array))
        if isinstance(array.base, np.ndarray):
            self._visit(array.base, name)

    def _of_library(self, value: Any, name: str) -> None:
        """A function of a known library: the functions and objects that it was given."""
        if is_foreign(value):
            raise Unseen(f"it uses {value.__module__}.{value.__qualname__}")
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):
                self._given(cell.cell_contents, name)
        for part in (*(value.__defaults__ or ()), *value.__dict__.values()):
            self._given(part, name)

    def _given(self, value: Any, name: str) -> None:
        """What a known library keeps: its own bookkeeping is its own affair."""
        kind = type(value)
        bookkeeping = is_library(kind.__module__) and kind.__module__.startswith(
            ("jax", "functools", "weakref", "_thread")
        )
        if kind.__module__ in ("_thread", "_contextvars") or kind is functools._lru_cache_wrapper:
            return
        if bookkeeping and not isinstance(
            value, (functools.partial, jax.tree_util.Partial, *DESCRIPTORS)
        ):
            self._of_jax(value, name)
        elif isinstance(value, tuple | list):
            for part in value:
                self._given(part, name)
        elif isinstance(value, dict):
            for part in value.values():
                self._given(part, name)
        else:
            self._visit(value, name)

    def _of_jax(self, value: Any, name: str) -> None:
        """An object of jax: the functions in it."""
        if type(value) is JITTED:
            inside = getattr(value, "__wrapped__", None)
            of_library = isinstance(inside, types.FunctionType) and is_library(
                inside.__globals__.get("__name__")
            )
            self._jits = self._jits or not of_library
        if isinstance(value, jax.Array):
            return
        if id(value) in self._seen and self._seen[id(value)] is not value:
            return
        if hasattr(getattr(value, "aval", None), "inner_aval"):
            raise Unseen(f"it holds a mutable reference, {name}")
        if is_foreign(value):
            raise Unseen(f"it uses {name}")
        for part in getattr(value, "__dict__", {}).values():
            if callable(part) and not isinstance(part, type) and id(part) not in self._seen:
                self._visit(part, name)

    def _object(self, value: Any, name: str) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] in ("jax", "jaxlib") and not isinstance(
            value, functools.partial
        ):
            self._of_jax(value, name)
            return
        if kind.__module__ == "typing" or kind is re.Pattern:
            return
        for base in kind.__mro__:
            known = base in CONTAINERS or base in VALUES or base in BASES
            if not known and not is_of_python(base):
                raise Unseen(f"it holds a {kind.__name__}, {name}, whose state cannot be seen")
        self._class(kind)
        if isinstance(value, functools.partial):
            for part in (value.func, *value.args, value.keywords):
                self._visit(part, name)
        if isinstance(value, dict):
            self._watch(watch.of_dict(name, value))
            for key, item in list(value.items() if kind is not dict else dict.items(value)):
                self._visit(key, name)
                self._visit(item, watch.path_of(name, key))
            if isinstance(value, collections.defaultdict):
                self._visit(value.default_factory, name)
        elif isinstance(value, list | collections.deque):
            self._watch(watch.of_sequence(name, value))
        elif isinstance(value, set):
            self._watch(watch.of_set(name, value))
        if isinstance(value, CONTAINERS) and not isinstance(value, dict):
            for index, item in enumerate(list(value)):
                self._visit(item, f"{name}[{index}]")
        self._attributes(value, name)

    def _attributes(self, value: Any, name: str) -> None:
        attributes = instance_dict(value)
        if attributes is not None and id(attributes) not in self._seen:
            self._seen[id(attributes)] = attributes
            self._watch(watch.of_dict(name, attributes), not _is_frozen(value))
        kind: Any = type(value)
        slots = slots_of(kind)
        if slots:
            self._watch(watch.of_slots(name, value, slots))
        for key, item in [*(attributes or {}).items(), *read_slots(value, slots).items()]:
            self._visit(item, f"{name}.{key}")


def _name(value: Any) -> str:
    return value.__name__ if isinstance(value, types.FunctionType) else type(value).__name__


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return bool(getattr(parameters, "frozen", False))
