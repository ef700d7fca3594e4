"""Rows of the tables: a program, what it is given, its depth, and in one line why."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import depth


def f(*shape: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    """An abstract array of floats."""
    return jax.ShapeDtypeStruct(shape, dtype)


def i(*shape: int, dtype: Any = "int32") -> jax.ShapeDtypeStruct:
    """An abstract array of integers."""
    return jax.ShapeDtypeStruct(shape, dtype)


def b(*shape: int) -> jax.ShapeDtypeStruct:
    """An abstract array of truth values."""
    return jax.ShapeDtypeStruct(shape, "bool")


def key() -> Any:
    """An abstract random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


def sines(x: Any, count: int) -> Any:
    """As deep as ``count`` says."""
    for _ in range(count):
        x = jnp.sin(x)
    return x


class Case(NamedTuple):
    """``fn(*args)`` has the ``expected`` depth, or one for every output: ``why`` adds it up."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    expected: int | tuple[int, ...]
    why: str = ""


def table(*rows: tuple) -> Any:
    """Each row (name, fn, args, expected), and why where that is short, as a case of its own."""
    cases = [Case(*row) for row in rows]
    assert len({case.name for case in cases}) == len(cases), "two cases have the same name"
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def check(case: Case, trip_counts: Any = None, exact: bool = True) -> depth.Cost:
    """The depth is as derived, exact, the latest output, and the sum of the critical path."""
    cost = depth.analyze(case.fn, *case.args, trip_counts=trip_counts)
    by_output = tuple(jax.tree.leaves(cost.by_output))
    expected = case.expected if isinstance(case.expected, tuple) else (case.expected,)
    got = by_output if isinstance(case.expected, tuple) else (cost.depth,)
    assert got == expected, f"{case.name}: {case.why}\n{cost}"
    assert cost.depth == max(by_output, default=0)
    assert cost.exact is exact, cost.unknown
    assert sum(row.depth for row in cost.critical_path) == cost.depth
    assert all(row.count > 0 and row.depth > 0 for row in cost.critical_path)
    assert all(type(value) is int for value in (cost.depth, cost.work, cost.bytes, *by_output))
    assert sum(row.work for row in cost.critical_path) <= cost.work
    assert sum(row.bytes for row in cost.critical_path) <= cost.bytes
    return cost
