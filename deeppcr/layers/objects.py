"""The contents of objects, read without calling their methods, and whether two are the same.

Layers may be stacked only if no program can tell their static values apart. That is stricter than
``==``, to which 1 is True and 0.0 is -0.0, and to which a class may give any meaning. So no class
outside of Python, numpy and jax is asked. Its objects are compared by their attributes if they are
values (of a class that defines ``==``), and by identity if not.
"""

import collections
import enum
import functools
import re
import sys
import types
from collections.abc import Hashable, Iterable
from typing import Any

import jax
import numpy as np

_VALUES: Any = (bool, int, float, complex, str, bytes, range, slice, np.generic, np.dtype)
_VALUES += (jax.Array, jax.ShapeDtypeStruct)
# Classes with immutable objects.
LEAVES = {*_VALUES, type(None), type(...), type(NotImplemented), types.CodeType}
LEAVES |= {types.GenericAlias, types.UnionType, jax.tree_util.PyTreeDef, re.Pattern}
DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    type(vars(collections.namedtuple("_Named", "a"))["a"]),
)
CONTAINERS: Any = (list, set, frozenset, tuple, collections.deque)
# Classes of Python whose objects keep their state in attributes, in entries or in arguments.
BASES = {*_VALUES, *CONTAINERS, dict, collections.OrderedDict, collections.defaultdict, object}
BASES |= {functools.partial, types.SimpleNamespace, enum.Enum, BaseException, Exception}

_PLAIN = (bool, int, str, bytes, range, type(None), types.CodeType)
_NUMBERS = (float, complex)
_SEQUENCES = (tuple, list, set, frozenset)  # sets in the order in which a loop over them runs
_DICTS = (dict, collections.OrderedDict, types.MappingProxyType)
_PARTIALS = (functools.partial, jax.tree_util.Partial)


def instance_dict(value: Any) -> dict[str, Any]:
    """The attributes of an object, bypassing its class, except those in slots."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


@functools.lru_cache(1024)
def slots_of(kind: Any) -> dict[str, types.MemberDescriptorType]:
    """The slots of a class."""
    return {
        key: slot
        for base in kind.__mro__
        if is_of_python(base)
        for key, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    }


def read_slots(value: Any) -> dict[str, Any]:
    """The attributes in slots that have a value."""
    kind: Any = type(value)
    found = {}
    for key, slot in slots_of(kind).items():
        try:
            found[key] = slot.__get__(value)
        except AttributeError:
            continue
    return found


def attributes_of(value: Any) -> dict[str, Any]:
    """All attributes of an object."""
    return instance_dict(value) | read_slots(value)


@functools.lru_cache(1024)
def is_of_python(kind: type) -> bool:
    """Whether a class was written in Python, so that its objects keep their state in attributes."""
    is_heap_type, is_immutable = kind.__flags__ & (1 << 9), kind.__flags__ & (1 << 8)
    if kind.__module__ in sys.builtin_module_names or not is_heap_type or is_immutable:
        return False
    source = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return not (isinstance(source, str) and source.endswith((".so", ".pyd")))


class Identity:
    """The key of a value that equals only itself."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def key_of(value: Any) -> Hashable:
    """A key, equal for two values if no program can tell them apart, or if they are identical."""
    try:
        return _key(value)
    except Exception:  # a foreign descriptor may raise anything
        return Identity(value)


class Structure:
    """The structure of a pytree, compared by `key_of`."""

    def __init__(self, tree: Any):
        self.tree = tree
        self._key = key_of(tree)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self.tree)

    def unflatten(self, leaves: Any) -> Any:
        """The pytree with these leaves."""
        return jax.tree.unflatten(self.tree, leaves)


def _key(value: Any) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in _NUMBERS:
        return kind, repr(value)
    if kind is np.ndarray or isinstance(value, np.generic):
        return _key_of_array(value, kind)
    if kind is slice:
        return kind, _keys((value.start, value.stop, value.step))
    if kind in _SEQUENCES:
        return kind, _keys(value)
    if kind in _DICTS:
        return kind, _keys(value), _keys(value.values())
    if kind in _PARTIALS:
        return kind, _keys((value.func, value.args, value.keywords, vars(value)))
    if kind is types.MethodType:
        return kind, Identity(value.__func__), Identity(value.__self__)
    if kind is jax.tree_util.PyTreeDef:
        return kind, _key(value.node_data()), _keys(value.children())
    has_equality: Any = kind.__eq__ is not object.__eq__  # type: ignore[comparison-overlap]
    if not has_equality or isinstance(value, jax.Array):
        return Identity(value)
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib"):
        hash(value)
        return kind, value
    return _key_of_object(value, kind)


def _keys(values: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple(map(_key, values))


def _key_of_array(array: Any, kind: type) -> Hashable:
    if array.dtype.hasobject or kind.__module__ not in ("numpy", "ml_dtypes"):
        return Identity(array)
    header = (array.shape, array.strides, array.flags.writeable)
    return kind, str(array.dtype), header, array.tobytes()


def _key_of_object(value: Any, kind: Any) -> Hashable:
    """That of an object of a class written in Python, by all its attributes."""
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(value, linen.Module):
        return kind, _keys(getattr(value, name) for name in kind.__dataclass_fields__)
    basis = tuple if issubclass(kind, tuple) else object
    if not all(base is basis or base is object or is_of_python(base) for base in kind.__mro__):
        return Identity(value)
    entries = _keys(tuple.__iter__(value)) if basis is tuple else ()
    return kind, entries, _key(attributes_of(value))
