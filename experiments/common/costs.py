"""The cost of a program before it runs: Newton's method is taken to turn as often as the planner expects."""

from collections.abc import Callable
from typing import Any

import depth
from deeppcr import loops
from deeppcr.adjoint import refine
from deeppcr.newton import rescue

ITERATING = loops.__file__  # where loops turn once an iteration
FINISHING = (rescue.__file__, refine.__file__)  # and where they go on step by step, if iterations have stopped too early


def further(iterations: int) -> int:
    """Turns of the loop whose end depends on data: the first iterations may be a loop of their own, which says how many."""
    return iterations - loops.ahead(iterations)


def cost(run: Callable[..., Any], arguments: tuple[Any, ...], iterations: Callable[[], int]) -> depth.Cost | None:
    """The cost of ``run(*arguments)``.

    Args:
        run: a program.
        arguments: of it.
        iterations: tells how many Newton's method is expected to take, after which nothing is left to finish; it is called only
            if there is such a loop.

    Returns:
        The cost; None where another loop does not say how often it turns.
    """
    found = depth.analyze(run, *arguments)
    if found.exact:
        return found
    found_at = {unknown.location for unknown in found.unknown}
    if not all(where.file in (ITERATING, *FINISHING) for where in found_at):
        return None
    count = iterations()
    turns = dict.fromkeys(FINISHING, 0) | {ITERATING: further(count)}
    known = depth.analyze(run, *arguments, trip_counts={f"{where.file}:{where.line}": turns[where.file] for where in found_at})
    return known if known.exact else None
