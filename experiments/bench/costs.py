"""The cost of a program before it runs; loops of unknown length are found by their scope."""

import re
from collections.abc import Callable
from typing import Any

import jax

import depth
from deeppcr import loops
from deeppcr.lower import ahead
from depth.analysis import analyze_jaxpr, analyze_loops


def is_fallback(name: str) -> bool:
    """Whether a loop completes what another one has not achieved, by its name."""
    return any(in_scope(name, each) for each in (loops.FALLBACK, loops.REPAIR, loops.CORRECTION))


def in_scope(name: str, scope: str) -> bool:
    """Whether the name of a loop has a scope in it, in a jaxpr or in a compiled program.

    Example:
        >>> in_scope("jit(f)/jvp(newton iteration, 9 trips expected)/while", "newton iteration")
        True
    """
    return re.search(rf"(^|[/(]){re.escape(scope)}($|[,/)])", name) is not None


def further(iterations: int) -> int:
    """Trips of the loop whose end depends on data, after the first iterations of known number."""
    return iterations - ahead(iterations)


def analyze(
    run: Callable[..., Any], *arguments: Any, trips: int | None = None, rest: int | None = None
) -> depth.Cost:
    """`depth.analyze` of a program, if nothing overflows.

    Args:
        run: a program.
        arguments: of it.
        trips: iterations, and trips of all loops of unknown length but those that are expected to
            make one or none, such as a trust region; None for what is expected.
        rest: trips of the sequential fallbacks; None for as many as the others.
    """
    jaxpr = jax.make_jaxpr(run)(*arguments)
    found, unproven = analyze_loops(jaxpr)
    few = {x.key: x.expected.trips for x in unproven if x.expected and x.expected.trips <= 1}
    few |= dict.fromkeys((loops.CORRECTION, loops.REPAIR), 0)
    known = {loop.key: few.get(loop.key, trips) for loop in unproven}
    if loops.FALLBACK in known:
        known[loops.FALLBACK] = trips if rest is None else rest
    given = {key: count for key, count in known.items() if count is not None}
    return analyze_jaxpr(jaxpr, trip_counts=given) if given else found
