"""`Adjoint(checkpoint=m)`: a chain in segments of m steps, of which only the starts are kept.

The gradient solves each segment again, from the last to the first, and then knows its states. So
``L / m`` states are kept between the passes, and the working memory is that of m steps: with m near
the square root of L, both are. The states are those that a chain in one piece has, to rounding.

References: A. Griewank, A. Walther, *Algorithm 799: revolve*, ACM Transactions on Mathematical
Software 26, 2000, for the case of one level.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.adjoint import Adjoint
from deeppcr.arrays import Leaves
from deeppcr.chain.chain import TracedChain, in_float32
from deeppcr.chain.eager import compiled_once
from deeppcr.checks import describe
from deeppcr.choose import MethodOption
from deeppcr.newton.method import is_number
from deeppcr.sequential import in_segments
from deeppcr.solution import Run, Stats, last_of
from deeppcr.solving.primitive import bind_problem
from deeppcr.solving.problem import Problem


def solve_in_segments(chain: TracedChain, method: MethodOption, adjoint: Adjoint) -> Run:
    """Solve the segments of a chain one after another; differentiated, each is solved again.

    Args:
        chain: on one device.
        method: for every segment.
        adjoint: with ``checkpoint``.

    Raises:
        ValueError: an option is for the chain as a whole.
    """
    if chain.axis.size > 1:
        raise ValueError(
            f"adjoint is {describe(adjoint)} for a chain on {chain.axis.size} devices, expected "
            "checkpoint=None: each device keeps the states of its own shard only."
        )
    guess, atol = getattr(method, "initial_guess", ""), getattr(method, "atol", 0.0)
    for name, value, is_right, expected in (
        ("initial_guess", guess, isinstance(guess, str), "a name"),
        ("atol", atol, is_number(atol), "one number for all steps"),
        ("record", record := getattr(method, "record", False), not record, "False"),
    ):
        if not is_right:
            raise ValueError(
                f"{name} is {describe(value)}, expected {expected} with Adjoint(checkpoint=...), "
                "which solves one segment after another."
            )
    method = dataclasses.replace(method, progress=None)  # the chain as a whole reports its end
    run: Callable[..., Run] = _run
    if in_float32(chain) is chain:  # else Newton's method traces the function again
        chain = dataclasses.replace(chain, function=None, adapt=None)
        run = partial(compiled_once, _run)
    leaves, tree = jax.tree.flatten((chain, method, adjoint))
    return run(tree, leaves)


def _run(tree: Any, leaves: Leaves) -> Run:
    chain, method, adjoint = jax.tree.unflatten(tree, leaves)
    # Without another option, a segment has the derivative that "auto" takes for it.
    is_plain = adjoint == Adjoint(checkpoint=adjoint.checkpoint)
    inside = None if is_plain else dataclasses.replace(adjoint, checkpoint=None)

    def segment(steps: TracedChain, before: tuple[Leaves, Run], start: Array) -> Any:
        state, so_far = before
        steps = dataclasses.replace(steps, initial=state)
        bind, tree = bind_problem(Problem.of(steps, steps, method, inside))
        run: Run = jax.tree.unflatten(tree, bind())
        last = run.last or list(map(last_of, run.trajectory))
        return (last, _joined(so_far, run, start)), (run.trajectory, run.outputs)

    none = Run.of_sequential(dataclasses.replace(chain, length=0), [], [], [])
    (state, run), (states, outputs) = in_segments(
        segment, chain, (chain.initial, none), adjoint.checkpoint
    )
    return dataclasses.replace(run, trajectory=states, outputs=outputs, last=state)


def _joined(before: Run, now: Run, done: Array) -> Run:
    """The description of a run of ``done`` steps and of the next ones."""
    first, second = before.stats, now.stats
    prefix = first.prefix + jnp.where(first.prefix == done, second.prefix, 0)
    residual = jnp.maximum(first.residual, second.residual.astype(first.residual.dtype))
    stats = Stats(first.iterations + second.iterations, residual, prefix)
    return Run([], [], stats, jnp.maximum(before.result, now.result), now.method)
