"""Whether two values are the same to every program: stricter than ``==``, to which 1 is True and 0.0 is -0.0."""

import dataclasses
import types
from typing import Any

import jax
import numpy as np


def same(a: Any, b: Any) -> bool:
    """Whether a program could not tell ``a`` from ``b``. What cannot be compared is not the same."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    try:
        return _same(a, b)
    except Exception:  # a foreign == may raise what it likes
        return False


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float | complex | np.inexact):
        return repr(a) == repr(b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.dtype != object and a.tobytes() == b.tobytes()
    if isinstance(a, jax.Array):
        return False  # not the same object
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict | types.MappingProxyType):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if dataclasses.is_dataclass(a) and type(a).__eq__ is not object.__eq__:
        return all(same(getattr(a, entry.name), getattr(b, entry.name)) for entry in dataclasses.fields(a) if entry.compare)
    return bool(a == b)
