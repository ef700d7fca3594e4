"""Unrolled loops of a GPU that compute each step once.

XLA's compiler for GPUs writes the results of all steps of a trip by one kernel, and computes them
in it from the state before the trip. A step that joins the entries of its state reads each of them
for each of its own, so the steps before it are computed again and again: exponentially in the
number of steps. Behind an optimisation barrier, results are only written, and steps are computed as
in a loop that returns its last state alone.
"""

# jax 0.10.2, compiled for an H200, 16 layers of 4 tanh units in a trip: at most 2 steps in a kernel
# for 15 of them; 16 steps of a GRU of 1 unit, which joins no entries, stay one kernel.

from collections.abc import Callable
from typing import Any

from jax import lax


def written_apart(body: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any, Any], Any]:
    """The body of a scan, whose results are written by kernels that do not compute them."""

    def apart(carry: Any, x: Any) -> tuple[Any, Any]:
        carry, results = body(carry, x)
        return carry, lax.optimization_barrier(results)

    return apart
