"""Progress of a solve: how far it has come, reported to the user while it runs.

Newton's method reports each iteration. The sequential program is one loop without a host in it, so
it is reported when it has ended, as is the sequential fallback: see `report_end`.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.solution import Result, Run, SolvedBy

Function = Callable[[Any, Any, Any], None]
Progress = bool | Function | None
"""True: print a line to stderr. A function of iteration, prefix and residual. None, False: nothing.
"""
EXPECTED = "a function of iteration, prefix and residual, True, or None"


@dataclasses.dataclass(frozen=True)
class Reporter:
    """Tells the user about the iterations of one chain.

    Attributes:
        progress: True, or the user's function.
        length: L.
    """

    progress: bool | Function
    length: int

    def __call__(self, iteration: Array, prefix: Array, residual: Array) -> None:
        """After an iteration: the number of states that have converged, the residual.

        Below 0 it is none: the step has been applied to the initial trajectory.
        """
        if iteration < 0:
            return
        done = min(int(prefix), self.length)  # there may be steps that only fill up a shard
        counts = f"{done} of {self.length} steps"
        line = f"iteration {int(iteration)}: {counts}, residual {float(residual):.0e}"
        _tell(self.progress, line, int(iteration), done, float(residual))


def report_end(progress: Progress, length: Any, run: Run) -> None:
    """Report the end of a sequential program, or of a sequential fallback.

    ``length``: L, which may be symbolic.
    """
    if not progress:
        return

    def tell(method: Array, result: Array, iterations: Array, length: Array, *_: Array) -> None:
        if int(method) == SolvedBy.NEWTON and int(result) != Result.FINISHED_SEQUENTIALLY:
            return
        line = f"sequential: {int(length)} of {int(length)} steps"
        _tell(progress, line, int(iterations), int(length), 0.0)

    # Once the last state is known.
    last = [leaf.reshape(-1)[:1] for leaf in run.last if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    numbers = run.method, run.result, run.stats.iterations, jnp.asarray(length, jnp.int32)
    jax.debug.callback(tell, *numbers, *last)


def _tell(progress: bool | Function, line: str, *numbers: int | float) -> None:
    """Call the user's function with the numbers, or print the line."""
    if callable(progress):
        progress(*numbers)
    else:
        print(line, file=sys.stderr, flush=True)
