"""The attributes of Python objects, read from where Python keeps them: no method of their classes is called."""

import functools
import sys
import types
from typing import Any


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, whatever its class says of them; None if it has no dict."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def attributes_of(value: Any) -> dict[str, Any]:
    """All attributes of an object, those in slots too."""
    kind: Any = type(value)
    return (instance_dict(value) or {}) | read_slots(value, slots_of(kind))


@functools.lru_cache(1024)
def slots_of(kind: type) -> dict[str, types.MemberDescriptorType]:
    """The slots of a class."""
    found = {}
    for base in kind.__mro__:
        if is_of_python(base):
            found.update(
                {
                    f"{key}": slot
                    for key, slot in vars(base).items()
                    if isinstance(slot, types.MemberDescriptorType)
                }
            )
    return found


@functools.lru_cache(1024)
def is_of_python(kind: type) -> bool:
    """Whether a class was written in Python, so that its objects keep their state in attributes."""
    heap, immutable = kind.__flags__ & (1 << 9), kind.__flags__ & (1 << 8)
    if kind.__module__ in sys.builtin_module_names:
        return False
    source = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return (
        bool(heap)
        and not immutable
        and not (isinstance(source, str) and source.endswith((".so", ".pyd")))
    )


def read_slots(value: Any, slots: dict[str, types.MemberDescriptorType]) -> dict[str, Any]:
    """The slots that have a value."""
    found = {}
    for key, slot in slots.items():
        try:
            found[key] = slot.__get__(value)
        except AttributeError:
            continue
    return found
