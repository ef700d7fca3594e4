"""The cost of a program before it runs: Newton's method is taken to turn as often as the planner expects."""

from collections.abc import Callable
from typing import Any

import depth
from deeppcr.newton import ahead, iteration, rescue

NEWTON = iteration.__file__  # of its loop
FINISHING = rescue.__file__  # of the loop that goes on step by step where Newton's method has stopped


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
    loops = {unknown.location for unknown in found.unknown}
    if not all(where.file in (NEWTON, FINISHING) for where in loops):
        return None
    count = iterations()
    turns = {NEWTON: count - ahead(count), FINISHING: 0}  # the first ones may be a loop of their own, which does say so
    known = depth.analyze(run, *arguments, trip_counts={f"{where.file}:{where.line}": turns[where.file] for where in loops})
    return known if known.exact else None
