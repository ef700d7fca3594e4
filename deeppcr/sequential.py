"""The sequential program itself, as a method: `jax.lax.scan`."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jax import lax

from deeppcr.chain import Problem, Steps
from deeppcr.rewrites.small_products import write_out
from deeppcr.solution import Operands, Result, Run, Solve, Stats
from deeppcr.state import Leaves
from depth.jaxprs import Replacement


def every_step(
    steps: Steps, initial: Leaves, replace: Replacement | None, unroll: int = 1
) -> tuple[Leaves, Leaves]:
    """The states and the outputs of all steps, one after another; ``replace`` as in `deeppcr.jaxprs.evaluate`."""
    same = (
        steps.step.outputs_in_state
    )  # most often the state itself is the output: written once, it costs half

    def body(state: Leaves, inputs: Leaves) -> tuple[Leaves, tuple[Leaves, Leaves]]:
        state, outputs = steps.step.with_outputs(state, inputs, steps.captured, replace)
        return state, (state, [y for y, leaf in zip(outputs, same, strict=True) if leaf is None])

    def run(entry: Leaves, _: Any) -> tuple[Leaves, tuple[Leaves, Leaves]]:
        left: tuple[Leaves, tuple[Leaves, Leaves]] = lax.scan(
            body, entry, steps.inputs, steps.length, unroll=unroll
        )
        return left

    _, (trajectory, own) = steps.across.in_turn(run, initial, None)
    rest = iter(own)
    return trajectory, [next(rest) if leaf is None else trajectory[leaf] for leaf in same]


@dataclasses.dataclass(frozen=True)
class Sequential:
    """Step after step, as `jax.lax.scan` does it. ``unroll``: how many steps a turn of the loop takes."""

    unroll: int = 1

    def bind(self, problem: Problem) -> tuple[Solve, Operands]:
        """What solves the chain, and the arrays that it needs beside the chain's own: none."""

        def run(steps: Steps, initial: Leaves, _: Operands) -> Run:
            return self._run(steps, initial)

        return run, Operands()

    def _run(self, steps: Steps, initial: Leaves) -> Run:
        trajectory, outputs = every_step(steps, initial, write_out, self.unroll)
        return Run(
            trajectory,
            outputs,
            Stats.of_sequential(steps.total, steps.layout.dtype),
            jnp.int32(Result.CONVERGED),
        )
