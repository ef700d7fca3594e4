"""The cost of a program before it runs: Newton's method is taken to turn as often as the planner expects."""

from collections.abc import Callable
from typing import Any

import depth
from deeppcr import fallback, loops
from deeppcr.adjoint import refine
from deeppcr.newton import rescue

ITERATING = loops.__file__  # where loops turn once an iteration
FINISHING = (
    rescue.__file__,
    refine.__file__,
)  # and where they go on step by step, if iterations have stopped too early
OVERFLOWING = (
    fallback.__file__
)  # and where it is done again step by step, if what was done in parallel is not finite


def further(iterations: int) -> int:
    """Turns of the loop whose end depends on data: the first iterations may be a loop of their own, which says how many."""
    return iterations - loops.ahead(iterations)


def analyze(
    run: Callable[..., Any], *arguments: Any, turns: int | None = None, rest: int | None = None
) -> depth.Cost:
    """`depth.analyze` of a program in which no product of blocks overflows.

    Args:
        run: a program.
        arguments: of it.
        turns: how often other loops turn that do not say it themselves; None if that is not known.
        rest: how often those that finish step by step; None for as often as the others.
    """
    found = depth.analyze(run, *arguments)
    usual = dict.fromkeys(FINISHING, turns if rest is None else rest) | {OVERFLOWING: 0}
    loops = {unknown.location for unknown in found.unknown if unknown.primitive == "while"}
    counts = {f"{loop.file}:{loop.line}": usual.get(loop.file, turns) for loop in loops}
    known = {loop: count for loop, count in counts.items() if count is not None}
    return depth.analyze(run, *arguments, trip_counts=known) if known else found


def cost(
    run: Callable[..., Any], arguments: tuple[Any, ...], iterations: Callable[[], int]
) -> depth.Cost | None:
    """The cost of ``run(*arguments)``.

    Args:
        run: a program.
        arguments: of it.
        iterations: tells how many Newton's method is expected to take, after which nothing is left to finish; it is called only
            if there is such a loop.

    Returns:
        The cost; None where another loop does not say how often it turns.
    """
    found = analyze(run, *arguments)
    if found.exact:
        return found
    if not all(unknown.location.file in (ITERATING, *FINISHING) for unknown in found.unknown):
        return None
    known = analyze(run, *arguments, turns=further(iterations()), rest=0)
    return known if known.exact else None
