"""Watching mutable objects during a call: what was changed, by name; and putting it back as it was."""

import collections
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from deeppcr.layers.objects import read_slots

_MISSING = object()


class Watched:
    """One mutable object, and what was in it.

    Attributes:
        name: what to call it in messages.
        target: the object.
    """

    def __init__(
        self,
        name: str,
        target: Any,
        read: Callable[[], dict[Any, Any]],
        write: Callable[[dict[Any, Any]], None],
    ):
        self.name, self.target, self._read, self._write = name, target, read, write
        self._before = read()

    @property
    def is_state(self) -> bool:
        """Whether it is there to be changed, as code and what code names mostly is not."""
        if isinstance(self.target, type | types.FunctionType | types.CellType):
            return False
        return not all(
            callable(part) or isinstance(part, types.ModuleType) for part in self._before.values()
        )

    def changes(self) -> Iterator[tuple[str, Any, Any, Any]]:
        """What is not what it was: the name, where in the object, and its value before and now."""
        before, now = self._before, self._read()
        for key in dict.fromkeys((*before, *now)):
            old, new = before.get(key, _MISSING), now.get(key, _MISSING)
            if old is not new and not (type(old) is bytes and old == new):
                yield self.name, key, old, new
        if (
            isinstance(self.target, dict)
            and before.keys() == now.keys()
            and any(a is not b for a, b in zip(before, now, strict=True))
        ):
            yield self.name, "order", None, None

    def restore(self) -> None:
        """Put back what was in it."""
        self._write(self._before)


def of_dict(name: str, value: dict[Any, Any]) -> Watched:
    """A dict, of any class of Python's own or derived from one."""
    kind = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict

    def write(before: dict[Any, Any]) -> None:
        kind.clear(value)
        for key, item in before.items():
            kind.__setitem__(value, key, item)

    return Watched(name, value, lambda: dict(kind.items(value)), write)


def of_sequence(name: str, value: Any) -> Watched:
    """A list or a deque."""
    kind: Any = list if isinstance(value, list) else collections.deque

    def write(before: dict[Any, Any]) -> None:
        kind.clear(value)
        kind.extend(value, before.values())

    return Watched(name, value, lambda: dict(enumerate(kind.__iter__(value))), write)


def of_set(name: str, value: set[Any]) -> Watched:
    """A set."""

    def write(before: dict[Any, Any]) -> None:
        set.clear(value)
        set.update(value, before.values())

    return Watched(name, value, lambda: {id(item): item for item in set.__iter__(value)}, write)


def of_cell(name: str, value: types.CellType) -> Watched:
    """A variable that functions close over."""

    def read() -> dict[Any, Any]:
        try:
            return {"": value.cell_contents}
        except ValueError:  # it has no value yet
            return {}

    def write(before: dict[Any, Any]) -> None:
        if before:
            value.cell_contents = before[""]
        elif read():
            del value.cell_contents

    return Watched(name, value, read, write)


def of_names(name: str, space: dict[str, Any], names: Any) -> Watched:
    """A few names of a module."""

    def write(before: dict[Any, Any]) -> None:
        for key in names:
            if key in before:
                space[key] = before[key]
            else:
                space.pop(key, None)

    return Watched(name, space, lambda: {key: space[key] for key in names if key in space}, write)


def of_slots(name: str, value: Any, slots: dict[str, types.MemberDescriptorType]) -> Watched:
    """Attributes in slots."""

    def write(before: dict[Any, Any]) -> None:
        now = read_slots(value, slots)
        for key, slot in slots.items():
            if key in before:
                slot.__set__(value, before[key])
            elif key in now:
                slot.__delete__(value)

    return Watched(name, value, lambda: read_slots(value, slots), write)


def of_class(name: str, value: type) -> Watched:
    """The attributes of a class."""

    def write(before: dict[Any, Any]) -> None:
        for key in dict.fromkeys((*before, *vars(value))):
            if key not in before:
                type.__delattr__(value, key)
            elif vars(value).get(key, _MISSING) is not before[key]:
                type.__setattr__(value, key, before[key])

    return Watched(name, value, lambda: dict(vars(value)), write)


def of_function(name: str, value: types.FunctionType) -> Watched:
    """The code and the defaults of a function."""

    def read() -> dict[Any, Any]:
        return {
            "__code__": value.__code__,
            "__defaults__": value.__defaults__,
            "__kwdefaults__": value.__kwdefaults__,
        }

    def write(before: dict[Any, Any]) -> None:
        for key, item in before.items():
            if getattr(value, key) is not item:
                setattr(value, key, item)

    return Watched(name, value, read, write)


def of_array(name: str, value: np.ndarray[Any, Any]) -> Watched:
    """An array of numpy: its entries and what its header says."""

    def read() -> dict[Any, Any]:
        header = (value.dtype.str, value.shape, value.strides, value.flags.writeable)
        return {"entries": value.tobytes(), "header": repr(header).encode()}

    def write(before: dict[Any, Any]) -> None:
        if value.tobytes() != before["entries"]:
            value[...] = np.frombuffer(before["entries"], value.dtype).reshape(value.shape)

    return Watched(name, value, read, write)


def path_of(name: str, key: Any, target: Any = None) -> str:
    """How to call an attribute or an entry of what has a name."""
    if isinstance(target, types.CellType | np.ndarray):
        return name
    if isinstance(key, str) and key.isidentifier():
        return f"{name}.{key}"
    return (
        f"{name}[{key!r}]" if isinstance(key, int | str) and not isinstance(target, set) else name
    )
