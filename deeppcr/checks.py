"""Checks of common arguments, and the description of values in messages and printed tables."""

import dataclasses
import difflib
import functools
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
PRINTED = (str, bytes, bool, int, float, complex, np.generic, type(None), type(...))
COLUMNS = 80  # of a printed line
LONGEST = 80  # characters of a value that is printed in full
ENTRIES = 3  # of a list that are described, before "..."


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
        raise TypeError(f"{name} is {describe(value)}, {expected}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value}, {expected}")
    if number < least:
        raise ValueError(f"{name} is {number}, {expected}")


def check_name(name: str, value: Any, known: Iterable[str], objects: str) -> None:
    """Raise unless ``value`` is one of the ``known`` names.

    ``objects`` describes the other accepted objects, for which the caller has checked.
    """
    names = list(known)
    if not isinstance(value, str) or value not in names:
        error = ValueError if isinstance(value, str) else TypeError
        raise error(
            f"{name} is {describe(value)}, expected {objects} or one of the names {names}"
            f"{did_you_mean(value, names)}"
        )


def check_type(name: str, value: Any, accepted: Any, expected: str) -> None:
    """Raise unless ``value`` is of the ``accepted`` types; `Callable` is one of them."""
    if not isinstance(value, accepted):
        raise TypeError(f"{name} is {describe(value)}, expected {expected}.")


def check_tolerance(name: str, value: Any, optional: bool = False) -> None:
    """Raise unless ``value`` is a number >= 0, or None if ``optional``."""
    if optional and value is None:
        return
    expected = "expected a number >= 0" + (", or None." if optional else ".")
    if not (isinstance(value, Real) or getattr(value, "shape", None) == ()):
        raise TypeError(f"{name} is {describe(value)}, {expected}")
    if not value >= 0:
        raise ValueError(f"{name} is {value}, {expected}")


def leaves_as_arrays(name: str, tree: Any) -> list[Any]:
    """The leaves of a pytree as arrays; an error names the leaf that is not one."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        try:
            found.append(jnp.asarray(leaf))
        except (TypeError, ValueError):
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is {describe(leaf)}, "
                "expected an array or a number."
            ) from None
    return found


def unknown_keyword(function: Callable[..., Any], unknown: Iterable[str]) -> TypeError:
    """Python's error for an unknown keyword, with the closest known one.

    Functions call it that take ``**unknown: Never``: Python itself suggests names from 3.13 on.
    """
    name = function.__qualname__.removesuffix(".__init__")
    parameters = list(inspect.signature(function).parameters.values())
    known = [each.name for each in parameters if each.kind in KEYWORDS and each.name != "self"]
    odd = next(iter(unknown))
    return TypeError(
        f"{name}() got an unexpected keyword argument {odd!r}, expected one of {known}"
        f"{did_you_mean(odd, known)}"
    )


def suggests_keywords(kind: type[T]) -> type[T]:
    """The same dataclass, whose constructor raises `unknown_keyword`."""
    construct, names = kind.__init__, {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]

    @functools.wraps(construct)
    def checked(self: T, *arguments: Any, **options: Any) -> None:
        if unknown := options.keys() - names:
            raise unknown_keyword(construct, unknown)
        construct(self, *arguments, **options)

    kind.__init__ = checked  # type: ignore[method-assign,assignment]
    return kind


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """The end of a message on an unknown name: the closest known one, or a full stop."""
    if not isinstance(value, str):
        return "."
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(value.lower(), names, 1)
    return f"; did you mean {names[near[0]]!r}?" if near else "."


def describe(value: Any, depth: int = 2) -> str:
    """A value for a message: an array by its dtype and shape, never by its entries.

    Strings and numbers are printed, functions and classes by name, entries of lists and options of
    dataclasses down to a ``depth``, other objects by their type.
    """
    if isinstance(value, PRINTED):
        text = repr(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__} (did you mean {value.__name__}{_brackets(value)}?)"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list | tuple | dict):
        return f"{kind} of {len(value)}" + (f" ({_entries(value, depth - 1)})" if depth else "")
    if dataclasses.is_dataclass(value):
        return f"{kind}({_options(value, depth - 1) if depth else '...'})"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return kind


def _brackets(kind: type) -> str:
    """The brackets of a call that makes an instance: with dots if it needs arguments."""
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return "(...)"
    return "()"


def _entries(value: Any, depth: int) -> str:
    """The first entries of a list, a tuple or a dictionary."""
    if isinstance(value, dict):
        found = [f"{describe(k, 0)}: {describe(v, depth)}" for k, v in value.items()]
    else:
        found = [describe(entry, depth) for entry in value[:ENTRIES]]
    return ", ".join([*found[:ENTRIES], *(["..."] if len(value) > ENTRIES else [])])


def _options(value: Any, depth: int) -> str:
    """The fields of a dataclass that differ from their defaults."""
    options = ((field, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return ", ".join(
        f"{field.name}={describe(option, depth)}"
        for field, option in options
        if field.repr and describe(option) != describe(field.default)
    )


def folded(text: str, indent: int) -> str:
    """The text, whose long lines go on in the next one, indented."""
    fold = textwrap.TextWrapper(
        COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False
    ).fill
    return "\n".join(map(fold, text.splitlines()))
