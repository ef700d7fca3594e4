"""Unrolled loops of a GPU that compute each step once.

XLA's compiler for GPUs writes the results of all steps of a trip by one kernel, and computes them
in it from the state before the trip. A step that joins the entries of its state reads each of them
for each of its own, so the steps before it are computed again and again: exponentially in the
number of steps. Behind an optimisation barrier, results are only written, and steps are computed as
in a loop that returns its last state alone.
"""

# jax 0.10.2, compiled for an H200, 16 layers of 4 tanh units in a trip: at most 2 steps in a kernel
# for 15 of them; 16 steps of a GRU of 1 unit, which joins no entries, stay one kernel.

from jax import lax

from deeppcr.arrays.state import Leaves
from deeppcr.lower.in_order import Loop, Operands
from depth.jaxprs import bind, interpret


def written_apart(loop: Loop, operands: Operands) -> tuple[Leaves, Leaves]:
    """The results of a loop, which are written by kernels that do not compute them."""
    if loop.unroll == 1:
        return loop.scan(operands)

    def step(constants: Leaves, carry: Leaves, x: Leaves) -> Leaves:
        known = loop.known(constants, carry, x)
        found = interpret(loop.program, known, loop.program.outvars, bind)
        return [*found[: loop.states], *lax.optimization_barrier(found[loop.states :])]

    loop, operands = loop.retraced(operands, step)
    return loop.scan(operands)
