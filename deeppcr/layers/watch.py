"""Watching a mutable object during a call: detecting changes, and undoing them."""

import collections
import types
from typing import Any

import numpy as np

from deeppcr.layers.objects import read_slots, slots_of

_MISSING = object()


class Watched:
    """One mutable object, and a copy of its contents.

    Args:
        name: its name in messages.
        target: a dict, list, deque, set, array of numpy, variable of a closure, or class; of any
            other object, its slots.
        keys: of a dict, to watch these alone.
    """

    def __init__(self, name: str, target: Any, keys: tuple[str, ...] | None = None):
        self.name, self.target, self._keys = name, target, keys
        self._before = self._read()

    @property
    def is_data(self) -> bool:
        """Whether it holds values, not only code."""
        parts = self._before.values()
        if isinstance(self.target, type | types.CellType) or (self._keys is not None and not parts):
            return False
        return not parts or not all(callable(x) or isinstance(x, types.ModuleType) for x in parts)

    def changes(self) -> list[str]:
        """The names of the entries that have changed."""
        before, now = self._before, self._read()
        if len(before) == len(now) and all(map(_same, before, now)):
            return [self._path(key) for key in before if not _same(before[key], now[key])]
        keys = dict.fromkeys((*before, *now))
        odd = [k for k in keys if not _same(before.get(k, _MISSING), now.get(k, _MISSING))]
        return [self._path(key) for key in odd] or [self.name]  # in another order

    def restore(self) -> None:
        """Restore its contents."""
        if self.changes():
            self._write(self._before)

    def _path(self, key: Any) -> str:
        is_whole = isinstance(self.target, set | types.CellType | np.ndarray)
        return self.name if is_whole else path_of(self.name, key)

    def _read(self) -> dict[Any, Any]:
        target: Any = self.target
        if self._keys is not None:
            return {key: target[key] for key in self._keys if key in target}
        if isinstance(target, dict):
            return dict(_basis(target).items(target))
        if isinstance(target, list | collections.deque):
            return dict(enumerate(_basis(target).__iter__(target)))
        if isinstance(target, set):
            return {id(item): item for item in set.__iter__(target)}
        if isinstance(target, types.CellType):
            try:
                return {"": target.cell_contents}
            except ValueError:  # it has no value yet
                return {}
        if isinstance(target, type):
            return dict(vars(target))
        if isinstance(target, np.ndarray):
            header = (target.dtype.str, target.shape, target.strides, target.flags.writeable)
            return {"entries": target.tobytes(), "header": repr(header).encode()}
        return read_slots(target)

    def _write(self, before: dict[Any, Any]) -> None:
        target: Any = self.target
        gone = [key for key in self._read() if key not in before]
        if isinstance(target, dict):
            basis = _basis(target)
            for key in gone if self._keys is not None else list(basis.keys(target)):
                basis.__delitem__(target, key)
            for key, item in before.items():
                basis.__setitem__(target, key, item)
        elif isinstance(target, list | collections.deque):
            _basis(target).clear(target)
            _basis(target).extend(target, before.values())
        elif isinstance(target, set):
            set.clear(target)
            set.update(target, before.values())
        elif isinstance(target, types.CellType):
            if before:
                target.cell_contents = before[""]
            else:
                del target.cell_contents
        elif isinstance(target, type):
            for key in gone:
                type.__delattr__(target, key)
            for key, item in before.items():
                if vars(target).get(key, _MISSING) is not item:
                    type.__setattr__(target, key, item)
        elif isinstance(target, np.ndarray):
            target[...] = np.frombuffer(before["entries"], target.dtype).reshape(target.shape)
        else:
            kind: Any = type(target)
            slots = slots_of(kind)
            for key in gone:
                slots[key].__delete__(target)
            for key, item in before.items():
                slots[key].__set__(target, item)


def path_of(name: str, key: Any) -> str:
    """The name in messages of an attribute or entry of a named object."""
    if isinstance(key, str) and key.isidentifier():
        return f"{name}.{key}"
    return f"{name}[{key!r}]" if isinstance(key, int | str) else name


def _same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and type(old) in (int, bytes) and old == new)


def _basis(value: Any) -> Any:
    """The builtin class of a container, or that it derives from."""
    kinds = (collections.OrderedDict, dict, list, collections.deque)
    return next(kind for kind in kinds if isinstance(value, kind))
