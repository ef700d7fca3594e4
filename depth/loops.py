"""Names of loops, and expected numbers of trips.

A loop is named by the innermost `jax.named_scope` around it. Where the number of trips depends on
data, a program may prove nothing, while the library that made it knows what to expect: `named_loop`
writes the expectation into the scope. Scopes are part of every equation, so they survive
`jax.jit`, `jax.vmap`, derivatives and `jax.shard_map`, and this package need not know the library.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from depth.jaxprs import Location, location

_EXPECTED = re.compile(r"(.+), (\d+) trips? expected by ([^,]+?)(?:, (\d+) in front)?")
_TRANSFORMATION = re.compile(r"\w*\(|\)")  # "jvp(vmap(name))" is "name"


@dataclass(frozen=True)
class Expected:
    """A loop whose number of trips is expected, not proven: an entry of ``Cost.expected``.

    Attributes:
        name: The name of the loop.
        trips: The number of trips.
        by: Who expects it: the library that made the loop.

    Example:
        >>> str(depth.Expected("newton iteration", 9, "deeppcr"))
        'newton iteration: 9 trips, expected by deeppcr'
    """

    name: str
    trips: int
    by: str

    def __str__(self) -> str:
        trips = "1 trip" if self.trips == 1 else f"{self.trips} trips"
        return f"{self.name}: {trips}, expected by {self.by}"


class WhileLoop(NamedTuple):
    """A while loop, by its source line and the names of the scopes around it.

    Attributes:
        location: The source line.
        path: The names, joined by "/"; "" if there are none.
        expected: The expected number of trips, if there is one.
        before: The number of these trips that a loop of known length has made in front of it.
    """

    location: Location
    path: str
    expected: Expected | None = None
    before: int = 0

    @property
    def name(self) -> str:
        """Its own name."""
        return self.path.rpartition("/")[2]

    @property
    def key(self) -> str:
        """Its key in ``trip_counts``: its name, or its source line."""
        return self.name or self._line

    @property
    def _line(self) -> str:
        return f"{os.path.basename(self.location.file)}:{self.location.line}"

    def is_named(self, key: str) -> bool:
        """Whether ``key`` is its own name, or the last names of its path."""
        return bool(self.path) and f"/{self.path}".endswith(f"/{_plain(key)}")

    def has(self, key: str) -> bool:
        """Whether ``key`` is its name, or its source line, as ``file.py:12``."""
        line = f"/{self.location.file}:{self.location.line}"
        return self.is_named(key) or line.endswith(f"/{key}")

    def __str__(self) -> str:
        return f"{self.name!r} ({self._line})" if self.path else self._line


@contextmanager
def named_loop(name: str, trips: int | None, by: str, before: int = 0) -> Iterator[None]:
    """A scope for one loop, as `jax.named_scope`, with the number of trips that is expected.

    Args:
        name: The name of the loop.
        trips: The expected number of trips; None if nothing is expected.
        by: The name of the library that expects it.
        before: The number of these trips that a loop of known length, in the same scope, makes in
            front of the loop whose end depends on data.

    Example:
        >>> def halve(x):
        ...     with depth.loops.named_loop("halving", 10, by="me"):
        ...         return jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
        >>> cost = depth.analyze(halve, jax.ShapeDtypeStruct((), "float32"))
        >>> cost.work, cost.expected  # ten trips of two operations, and the last comparison
        (21, (Expected(name='halving', trips=10, by='me'),))
    """
    if trips is not None:
        front = f", {before} in front" if before else ""
        name = f"{name}, {trips} trip{'' if trips == 1 else 's'} expected by {by}{front}"
    with jax.named_scope(name):
        yield


def while_loop(equation: Any, caller: Location) -> WhileLoop:
    """The loop that an equation is: jax prints its scopes as "jvp(model)/newton iteration"."""
    where = location(equation, caller)
    *outer, own = _plain(str(equation.source_info.name_stack)).split("/")
    if not (found := _EXPECTED.fullmatch(own)):
        return WhileLoop(where, "/".join([*outer, own]))
    name, trips, by, before = found.groups()
    expected = Expected(name, int(trips), by)
    return WhileLoop(where, "/".join([*outer, name]), expected, int(before or 0))


def _plain(scopes: str) -> str:
    """Names without the transformations around them."""
    return _TRANSFORMATION.sub("", scopes)
