"""The objects that a call of a layer can change, found without calling it.

A layer is called on trial before it is called for real. The trial must leave nothing behind, and
must detect everything that the call changes. So every mutable object that the call can reach is
watched: Python's containers, arrays of numpy, objects written in Python, and the globals that
functions name. A layer that holds anything else is `Unseen`, and is never called on trial: a
generator of random numbers, an iterator, a file, an object of an unknown library.
"""

import collections
import functools
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from deeppcr.layers.names import FOREIGN_ATTRIBUTES, Path, is_foreign, is_library, names_of
from deeppcr.layers.objects import (
    BASES,
    CONTAINERS,
    DESCRIPTORS,
    LEAVES,
    instance_dict,
    is_of_python,
    read_slots,
    slots_of,
)
from deeppcr.layers.watch import Watched, path_of

MOST = 50_000  # objects in one layer

_JITTED = type(jax.jit(lambda x: x))
_WRAPPERS = (property, classmethod, staticmethod, functools.cached_property)
# Methods that Python calls implicitly are inspected in each class: constructors only where the
# class is called, and those for printing or copying never.
_MAKERS = ("__init__", "__new__", "__post_init__")
_ASIDE = frozenset(
    [
        "__repr__",
        "__str__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__del__",
        "__sizeof__",
        "__dir__",
    ]
)
_MAKING = ("__class__", "replace", "_replace")  # names that construct objects of any class
_BY_LIBRARIES = ("setup",)  # methods that a library calls by name: of flax.linen
_BY_ANY_NAME = (getattr, hasattr, vars, dir, setattr, delattr)


class Unseen(Exception):
    """Why a layer cannot be called on trial."""


class Reach:
    """The mutable objects that calls can reach, watched.

    Args:
        roots: the function and its arguments.

    Attributes:
        names: every name that the code reads.

    Raises:
        Unseen: they can reach an object that cannot be watched.
    """

    def __init__(self, *roots: Any):
        self.names: set[str] = set(_BY_LIBRARIES)
        self._watched: list[Watched] = []
        self._seen: dict[int, Any] = {}  # kept alive, and so their ids
        self._classes: dict[int, type] = {}
        self._looked_up: set[tuple[int, str]] = set()
        self._made: set[type] = set()
        self._by_any_name = self._makes_any = self._jits = self._keeps_data = False
        for root in roots:
            self._visit(root, _name_of(root))
        while self._look_up():
            pass
        if foreign := FOREIGN_ATTRIBUTES & self.names:
            raise Unseen(f"it uses {min(foreign)}")

    @property
    def may_be_stale(self) -> bool:
        """Whether it contains `jax.jit`, which reads values once that may change later."""
        return self._jits and self._keeps_data

    def changes(self) -> tuple[str, ...]:
        """The names of what has changed."""
        return tuple(dict.fromkeys(name for entry in self._watched for name in entry.changes()))

    def restore(self) -> None:
        """Restore everything."""
        for entry in self._watched:
            entry.restore()

    def _watch(
        self, name: str, target: Any, keys: Iterable[str] | None = None, is_data: bool = True
    ) -> None:
        entry = Watched(name, target, None if keys is None else tuple(keys))
        self._watched.append(entry)
        self._keeps_data = self._keeps_data or (is_data and entry.is_data)

    def _visit_all(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            self._visit(value, name)

    def _visit(self, value: Any, name: str) -> None:
        """Inspect an object and its contents."""
        kind = type(value)
        if kind in LEAVES or isinstance(value, np.generic | np.dtype) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if len(self._seen) > MOST:
            raise Unseen(f"it holds more than {MOST} objects")
        if isinstance(value, DESCRIPTORS) or kind.__module__ == "typing":
            return
        if isinstance(value, types.ModuleType):
            is_known = is_library(value.__name__) and not value.__name__.startswith("numpy")
            if not is_known or is_foreign(value):
                raise Unseen(f"it uses {value.__name__}")
        elif isinstance(value, type):
            self._class(value, is_made=True)
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, name.rpartition(".")[0] or name)
            self._visit(value.__func__, name)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            self._builtin(value, name)
        elif isinstance(value, np.ndarray):
            self._array(value, name)
        elif isinstance(value, types.MappingProxyType):
            self._entries(value, name)
        elif isinstance(value, weakref.ref):
            self._visit(value(), name)
        elif isinstance(value, _WRAPPERS):
            self._makes_any = self._makes_any or isinstance(value, classmethod)
            parts = ("fget", "fset", "fdel", "__func__", "func")
            self._visit_all((getattr(value, part, None) for part in parts), name)
        elif kind.__module__ == "numpy" and callable(value):
            if getattr(np, value.__name__, None) is not value or is_foreign(value):
                raise Unseen(f"it uses {name}")
        elif kind is functools._lru_cache_wrapper:
            if not is_library(getattr(value.__wrapped__, "__module__", None)):
                raise Unseen(f"it uses {name}, which keeps what it returned")
        elif kind is not jax.tree_util.Partial and _package_of(kind) in ("jax", "jaxlib"):
            self._of_jax(value, name)
        else:
            self._object(value, name)

    # Names: attributes of classes are inspected if any code names them.

    def _class(self, kind: type, is_made: bool = False) -> None:
        """A class, and whether the code may make objects of it."""
        if is_library(kind.__module__):
            if is_foreign(kind):
                raise Unseen(f"it uses {kind.__module__}.{kind.__qualname__}")
            self._makes_any = self._makes_any or (kind is type and is_made)
            return
        for base in kind.__mro__:
            if is_library(base.__module__):
                continue
            if not is_of_python(base):
                raise Unseen(f"it uses {base.__module__}.{base.__qualname__}")
            if is_made:
                self._made.add(base)
            if id(base) not in self._classes:
                self._classes[id(base)] = base
                self._watch(base.__name__, base)
                self._class(type(base))

    def _look_up(self) -> bool:
        """Inspect the attributes of classes that any code names; whether there was a new one."""
        if not self.names.isdisjoint(_MAKING):
            self._makes_any = True
        wanted = [
            (base, name)
            for base in self._classes.values()
            for name, value in vars(base).items()
            if (id(base), name) not in self._looked_up and self._is_wanted(base, name, value)
        ]
        for base, name in wanted:
            self._looked_up.add((id(base), name))
            self._visit(vars(base)[name], f"{base.__name__}.{name}")
        return bool(wanted)

    def _is_wanted(self, kind: type, name: str, value: Any) -> bool:
        if name in _MAKERS:
            return self._makes_any or kind in self._made
        if not name.startswith("__"):
            return self._by_any_name or name in self.names
        is_called = isinstance(value, (types.FunctionType, *_WRAPPERS)) and name not in _ASIDE
        return is_called or name in self.names

    def _follow(self, value: Any, path: Path, name: str) -> None:
        """The objects that ``value.a.b`` reaches: modules by name, classes by any name found."""
        self.names.update(path)
        while isinstance(value, types.ModuleType) and path:
            if is_foreign(value):
                raise Unseen(f"it uses {value.__name__}")
            space = vars(value)
            if not is_library(value.__name__):
                self._watch(value.__name__, space, path[:1])
            if path[0] not in space:
                if is_library(value.__name__):
                    return
                raise Unseen(f"it uses {value.__name__}.{path[0]}")
            value, path, name = space[path[0]], path[1:], f"{name}.{path[0]}"
        if isinstance(value, type) and path:
            self._class(value)
        else:
            self._visit(value, name)

    # Functions.

    def _function(self, function: types.FunctionType, name: str) -> None:
        space = function.__globals__
        if is_library(space.get("__name__")):
            self._of_library(function, name)
            return
        names = names_of(function.__code__)
        if names.imports:
            raise Unseen(f"{function.__qualname__} imports modules")
        if names.catches:
            raise Unseen(
                f"{function.__qualname__} catches exceptions, and a trial may raise others"
            )
        self.names |= names.attributes
        self._watch(name, function.__dict__, is_data=bool(function.__dict__))
        self._entries(function.__dict__, name)
        self._visit_all(function.__defaults__ or (), f"a default of {name}")
        self._visit(function.__kwdefaults__, f"the defaults of {name}")
        self._globals(space, names.globals)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for variable, cell in cells:
            self._watch(f"{name}.{variable}", cell)
            paths = [path[1:] for path in names.cells if path[0] == variable]
            for value in _contents(cell):
                if variable == "__class__" and isinstance(value, type):  # for `super()`
                    self._class(value)
                else:
                    for path in paths or [()]:
                        self._follow(value, path, f"{name}.{variable}")

    def _globals(self, space: dict[str, Any], paths: Iterable[Path]) -> None:
        builtins = space.get("__builtins__", {})
        builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
        self._watch(str(space.get("__name__", "globals")), space, {path[0] for path in paths})
        for first, *rest in paths:
            self.names.add(first)
            if first in space or first in builtins:
                self._follow(space.get(first, builtins.get(first)), tuple(rest), first)

    def _builtin(self, value: Any, name: str) -> None:
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            if not is_library(value.__module__) or is_foreign(value):
                raise Unseen(f"it uses {value.__module__}.{value.__name__}")
            self._by_any_name = self._by_any_name or value in _BY_ANY_NAME
            return
        self.names.add(value.__name__)
        self._visit(owner, name)

    def _of_library(self, function: types.FunctionType, name: str) -> None:
        """A function of a known library: the functions and objects that it was given."""
        if is_foreign(function):
            raise Unseen(f"it uses {function.__module__}.{function.__qualname__}")
        for cell in function.__closure__ or ():
            self._given(_contents(cell), name)
        self._given(function.__defaults__ or (), name)
        self._given(tuple(function.__dict__.values()), name)

    def _given(self, value: Any, name: str) -> None:
        """The values that a known library stores; its internal state is not inspected."""
        kind = type(value)
        if kind.__module__ in ("_thread", "_contextvars") or kind is functools._lru_cache_wrapper:
            return
        if kind in (tuple, list, dict):
            for part in value.values() if kind is dict else value:
                self._given(part, name)
            return
        known = _package_of(kind) in ("jax", "jaxlib", "functools", "weakref")
        if known and not isinstance(value, (functools.partial, *DESCRIPTORS)):
            self._of_jax(value, name)
        else:
            self._visit(value, name)

    def _of_jax(self, value: Any, name: str) -> None:
        """An object of jax: the functions in it."""
        if isinstance(value, jax.Array):
            return
        if type(value) is _JITTED:
            inside = getattr(value, "__wrapped__", None)
            space = inside.__globals__ if isinstance(inside, types.FunctionType) else {}
            self._jits = self._jits or not is_library(space.get("__name__"))
        if hasattr(getattr(value, "aval", None), "inner_aval"):
            raise Unseen(f"it holds a mutable reference, {name}")
        if is_foreign(value):
            raise Unseen(f"it uses {name}")
        for part in getattr(value, "__dict__", {}).values():
            if callable(part) and not isinstance(part, type):
                self._visit(part, name)

    # Objects.

    def _array(self, array: np.ndarray[Any, Any], name: str) -> None:
        if type(array) is not np.ndarray or array.dtype.hasobject:
            raise Unseen(f"it holds a {type(array).__name__} of {array.dtype}, {name}")
        self._watch(name, array)
        if isinstance(array.base, np.ndarray):
            self._visit(array.base, name)

    def _object(self, value: Any, name: str) -> None:
        kind: Any = type(value)
        for base in kind.__mro__:
            if base not in BASES and not is_of_python(base):
                raise Unseen(f"it holds a {kind.__name__}, {name}, whose state cannot be observed")
        if slots_of(kind) and isinstance(value, (dict, *CONTAINERS)):
            raise Unseen(f"it holds a {kind.__name__}, {name}, a container with slots")
        self._class(kind)
        if isinstance(value, functools.partial):
            self._visit_all((value.func, *value.args, value.keywords), name)
        elif isinstance(value, dict):
            self._watch(name, value)
            self._visit_all(dict.keys(value), name)
            self._entries(dict(dict.items(value)), name)
            if isinstance(value, collections.defaultdict):
                self._visit(value.default_factory, name)
        for base in CONTAINERS:
            if isinstance(value, base):
                if base not in (tuple, frozenset):
                    self._watch(name, value)
                self._entries(dict(enumerate(base.__iter__(value))), name)
        attributes = instance_dict(value)
        if kind not in CONTAINERS and id(attributes) not in self._seen:
            self._seen[id(attributes)] = attributes
            parameters = getattr(kind, "__dataclass_params__", None)
            self._watch(name, attributes, is_data=not getattr(parameters, "frozen", False))
            self._entries(attributes, name)
        if slots_of(kind):
            self._watch(name, value)
            self._entries(read_slots(value), name)

    def _entries(self, entries: Mapping[Any, Any], name: str) -> None:
        for key, value in list(entries.items()):
            self._visit(value, path_of(name, key))


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    """The value of a variable, if it has one."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _package_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _name_of(value: Any) -> str:
    return value.__name__ if isinstance(value, types.FunctionType) else type(value).__name__
