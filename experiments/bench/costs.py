"""The cost of a program before it runs; loops of unknown length are found by their scope."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

import depth
from deeppcr import loops
from depth.analysis import analyze_jaxpr
from depth.jaxprs import inside, location, without_constants


def is_fallback(name: str) -> bool:
    """Whether a loop is a sequential fallback, by its name."""
    return in_scope(name, loops.FALLBACK) or in_scope(name, loops.OVERFLOW)


def in_scope(name: str, scope: str) -> bool:
    """Whether the name of a loop has a scope in it, in a jaxpr or in a compiled program.

    Example:
        >>> in_scope("jit(f)/jvp(newton iteration)/while", "newton iteration")
        True
    """
    return re.search(rf"(^|[/(]){re.escape(scope)}($|[/)])", name) is not None


def further(iterations: int) -> int:
    """Trips of the loop whose end depends on data, after the first iterations of known number."""
    return iterations - loops.ahead(iterations)


def analyze(
    run: Callable[..., Any], *arguments: Any, trips: int | None = None, rest: int | None = None
) -> depth.Cost:
    """`depth.analyze` of a program, if nothing overflows.

    Args:
        run: a program.
        arguments: of it.
        trips: of the loops over iterations, and of all others of unknown length; None if unknown.
        rest: trips of the sequential fallbacks; None for as many as the others.
    """
    jaxpr = jax.make_jaxpr(run)(*arguments)
    found = analyze_jaxpr(jaxpr)
    unknown = {one.location for one in found.unknown if one.primitive == "while"}
    if not unknown:
        return found
    known: dict[str, int] = {}
    for loop in _loops(without_constants(jaxpr), set()):
        where, name, count = location(loop), str(loop.source_info.name_stack), trips
        if in_scope(name, loops.OVERFLOW):
            count = 0
        elif in_scope(name, loops.FALLBACK) and rest is not None:
            count = rest
        if where in unknown and count is not None:
            known[f"{where.file}:{where.line}"] = count
    return analyze_jaxpr(jaxpr, trip_counts=known) if known else found


def _loops(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """The while loops of a program, including inner ones, each once."""
    if id(jaxpr) in seen:
        return
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            yield equation
        for inner in inside(equation):
            yield from _loops(inner, seen)
