"""The sequential program itself, as a method: `jax.lax.scan`."""

import dataclasses

import jax.numpy as jnp
from jax import lax

from deeppcr.chain import Leaves, Steps
from deeppcr.solution import Result, Run, Stats


@dataclasses.dataclass(frozen=True)
class Sequential:
    """Step after step, as `jax.lax.scan` does it. ``unroll``: how many steps a turn of the loop takes."""

    unroll: int = 1

    def run(self, steps: Steps, initial: Leaves, length: int) -> Run:
        """Run the chain of ``length`` steps from ``initial``."""

        def body(state: Leaves, inputs: Leaves) -> tuple[Leaves, tuple[Leaves, Leaves]]:
            state, outputs = steps.step.with_outputs(state, inputs, steps.captured)
            return state, (state, outputs)

        _, (trajectory, outputs) = lax.scan(body, initial, steps.inputs, length, unroll=self.unroll)
        stats = Stats(jnp.int32(0), jnp.zeros((), steps.layout.dtype), jnp.int32(length))
        return Run(trajectory, outputs, stats, jnp.int32(Result.CONVERGED))
