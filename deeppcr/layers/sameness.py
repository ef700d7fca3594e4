"""Whether two values are the same to every program: stricter than ``==``, to which 1 is True and 0.0 is -0.0.

No class outside of Python, numpy and jax is asked: its ``==`` may leave out what a layer reads. Its objects are compared by
what they consist of, if they are values (of a class that defines ``==``), and are the same only if identical, if they are not.
"""

import collections
import functools
import sys
import types
from typing import Any

import jax
import numpy as np

from deeppcr.layers.objects import instance_dict, is_of_python, read_slots, slots_of

_PLAIN = (bool, int, str, bytes, range, type(None), np.dtype)
_NUMBERS = (float, complex)
_DICTS = (dict, collections.OrderedDict, types.MappingProxyType)
_TREES = jax.tree_util.PyTreeDef


def same(a: Any, b: Any) -> bool:
    """Whether a program could not tell ``a`` from ``b``. What cannot be compared is not the same."""
    try:
        return _same(a, b, ())
    except Exception:  # a foreign descriptor may raise what it likes
        return False


class Structure:
    """The structure of a pytree, compared by `same`."""

    def __init__(self, tree: Any):
        self.tree = tree

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Structure) and same(self.tree, other.tree))

    def unflatten(self, leaves: Any) -> Any:
        """The pytree with these leaves."""
        return jax.tree.unflatten(self.tree, leaves)

    def __repr__(self) -> str:
        return repr(self.tree)

    def __hash__(self) -> int:
        return hash((self.tree.num_leaves, self.tree.num_nodes))


def _same(a: Any, b: Any, within: tuple[tuple[int, int], ...]) -> bool:
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind in _PLAIN:
        return bool(a == b)
    if kind in _NUMBERS:
        return repr(a) == repr(b)
    if (id(a), id(b)) in within:
        return False
    within = (*within, (id(a), id(b)))
    if isinstance(a, np.generic) and kind.__module__ in ("numpy", "ml_dtypes"):
        return a.dtype == b.dtype and not a.dtype.hasobject and a.tobytes() == b.tobytes()
    if kind is np.ndarray:
        return _header(a) == _header(b) and not a.dtype.hasobject and a.tobytes() == b.tobytes()
    if kind is slice:
        return _all((a.start, a.stop, a.step), (b.start, b.stop, b.step), within)
    if kind in (tuple, list, set, frozenset):  # sets in the order in which a loop over them runs
        return _all(a, b, within)
    if kind in _DICTS:
        return _all(a, b, within) and _all(a.values(), b.values(), within)
    if kind is collections.defaultdict:
        return (
            a.default_factory is b.default_factory
            and _all(a, b, within)
            and _all(a.values(), b.values(), within)
        )
    if kind in (functools.partial, jax.tree_util.Partial):
        return _all(
            (a.func, a.args, a.keywords, vars(a)), (b.func, b.args, b.keywords, vars(b)), within
        )
    if kind is types.MethodType:
        return a.__func__ is b.__func__ and a.__self__ is b.__self__
    if kind is _TREES:
        return _all((a.node_data(), a.children()), (b.node_data(), b.children()), within)
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib"):
        return not isinstance(a, jax.Array) and _has_equality(kind) and bool(a == b)
    return _same_object(a, b, kind, within)


def _same_object(a: Any, b: Any, kind: type, within: tuple[tuple[int, int], ...]) -> bool:
    """Objects of classes written in Python, with all their attributes."""
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(a, linen.Module):
        names = list(kind.__dataclass_fields__)  # type: ignore[attr-defined]
        return _all(
            [getattr(a, name) for name in names], [getattr(b, name) for name in names], within
        )
    basis = tuple if issubclass(kind, tuple) else object
    if not _has_equality(kind) or not all(
        base is basis or base is object or is_of_python(base) for base in kind.__mro__
    ):
        return False
    if basis is tuple and not _all(tuple.__iter__(a), tuple.__iter__(b), within):
        return False
    slots = slots_of(kind)
    return _same(instance_dict(a), instance_dict(b), within) and _same(
        read_slots(a, slots), read_slots(b, slots), within
    )


def _all(a: Any, b: Any, within: tuple[tuple[int, int], ...]) -> bool:
    a, b = list(a), list(b)
    return len(a) == len(b) and all(
        x is y or _same(x, y, within) for x, y in zip(a, b, strict=True)
    )


def _has_equality(kind: Any) -> bool:
    """Whether objects of a class may be equal without being identical."""
    return kind.__eq__ is not object.__eq__


def _header(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.strides, array.flags.writeable
