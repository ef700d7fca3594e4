"""Checks that many arguments share."""

import operator
from collections.abc import Iterable
from typing import Any


def check_count(
    name: str, value: Any, meaning: str, least: int = 1, optional: bool = False
) -> None:
    """Raise unless ``value`` is an integer >= ``least``, or None if ``optional``."""
    if optional and value is None:
        return
    expected = f"expected {meaning}: an integer >= {least}" + (", or None." if optional else ".")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, {expected}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}, {expected}")
    if number < least:
        raise ValueError(f"{name} is {value!r}, {expected}")


def check_name(name: str, value: Any, known: Iterable[str], objects: str) -> None:
    """Raise unless ``value`` is one of the ``known`` names.

    ``objects`` says in words which objects are accepted besides; the caller has checked for them.
    """
    names = list(known)
    expected = f"expected {objects} or one of the names {names}."
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, {expected}")
    if value not in names:
        raise ValueError(f"{name} is {value!r}, {expected}")
