"""``Newton(fused=True)``: a solve as one kernel of a GPU."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.arrays import Leaves, like
from deeppcr.chain.chain import TracedChain
from deeppcr.lower import (
    CannotFuse,
    FusedSolve,
    SolvedBelow,
    fused_solve,
    is_for_gpus,
)
from deeppcr.newton.convergence import NewtonCriterion
from deeppcr.sequential import fused_step
from deeppcr.solution import Result, Run, SolvedBy, Stats


def solved(solver: Any, chain: TracedChain, otherwise: Callable[[TracedChain], Run]) -> Run:
    """The run of a chain by one kernel. Other platforms run ``otherwise``.

    The kernel iterates to rounding level, whatever the tolerance, and computes step by step what
    does not converge.

    Args:
        solver: a `NewtonSolver`.
        chain: what it solves.
        otherwise: solves the chain without a kernel.

    Raises:
        CannotFuse: there is no kernel; the message says why.
    """
    try:
        kernel = _kernel_of(solver, chain)
    except CannotFuse as error:
        raise CannotFuse(
            f"fused=True, but this chain cannot be solved by one kernel: {error}. Use fused=False."
        ) from None
    if not is_for_gpus():
        return otherwise(chain)

    tree = jax.tree.structure((chain.initial, chain.inputs, chain.captured))

    def leaves(*operands: Array) -> Leaves:
        initial, inputs, captured = jax.tree.unflatten(tree, operands)
        new = dataclasses.replace(chain, initial=initial, inputs=inputs, captured=captured)
        run = otherwise(new)
        return [*run.trajectory, run.stats.iterations, run.stats.prefix, run.stats.residual]

    *trajectory, iterations, prefix, residual = fused_solve(
        kernel, leaves, chain.initial, chain.inputs, chain.captured
    )
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


def _kernel_of(solver: Any, chain: TracedChain) -> FusedSolve:
    budget = solver.method.max_iterations
    kernel = FusedSolve(fused_step(chain), chain.length, False, SolvedBelow(budget))
    if not isinstance(solver.criterion, NewtonCriterion):
        raise CannotFuse("the step has a derivative of its own, by jax.custom_jvp or custom_vjp")
    return kernel
