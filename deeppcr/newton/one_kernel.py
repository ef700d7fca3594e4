"""Newton's method as one kernel of a GPU, where the step and the options have one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from deeppcr.arrays.avals import like
from deeppcr.arrays.state import Leaves
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.linear import find_solver
from deeppcr.lower import CannotFuse, SolvedBelow, fused_solve, kernels_run
from deeppcr.solution import Result, Run, SolvedBy, Stats


def solved(solver: Any, chain: TracedChain, otherwise: Callable[[TracedChain], Run]) -> Run | None:
    """The run of a chain by one kernel; None if there is none. Other platforms run ``otherwise``.

    The kernel ignores ``rtol`` and ``atol``: it iterates to rounding level, and computes step by
    step what does not converge.

    Args:
        solver: a `NewtonSolver`.
        chain: what it solves.
        otherwise: solves the chain without a kernel.
    """
    options = solver.options
    is_plain = (
        solver.criterion.quadratic
        and solver.solver == find_solver("auto")
        and options.damping is None
        and options.on_failure == "sequential"
        and options.initial_guess == "apply"
        and not (options.record or options.progress)
    )
    step, axis = chain.step, chain.axis
    if not (kernels_run() and is_plain and axis == LOCAL and step.derivative is None):
        return None

    def leaves(*operands: Array) -> Leaves:
        rest = iter(operands)
        parts = [[next(rest) for _ in x] for x in (chain.initial, chain.inputs, chain.captured)]
        initial, inputs, captured = parts
        new = dataclasses.replace(chain, initial=initial, inputs=inputs, captured=captured)
        run = otherwise(new)
        return [*run.trajectory, run.stats.iterations, run.stats.prefix, run.stats.residual]

    try:
        *trajectory, iterations, prefix, residual = fused_solve(
            step.evaluated,
            chain.layout.batch_shape,
            SolvedBelow(solver.budget),
            chain.length,
            False,
            leaves,
            chain.initial,
            chain.inputs,
            chain.captured,
        )
    except CannotFuse:
        return None
    is_solved = prefix >= chain.length
    result = jnp.where(is_solved, Result.CONVERGED, Result.FINISHED_SEQUENTIALLY).astype(jnp.int32)
    stats, method = Stats(iterations, residual, prefix), jnp.int32(SolvedBy.NEWTON)
    # As those of other methods, for branches of one program.
    stats, result, method = like((stats, result, method), chain.initial)
    outputs = chain.outputs(chain.before(chain.initial, trajectory), trajectory)
    return Run(
        trajectory,
        outputs,
        stats,
        result,
        method,
        [z[-1] for z in trajectory],
    )
