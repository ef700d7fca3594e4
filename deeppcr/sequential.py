"""The sequential program as a method: `jax.lax.scan`."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from deeppcr.chain import TracedChain
from deeppcr.checks import suggests_keywords
from deeppcr.progress import Progress, check_progress
from deeppcr.ran import Ran
from deeppcr.rewrites.small_products import write_out
from deeppcr.solution import Result, Run, Stats
from deeppcr.state import Leaves
from depth.jaxprs import Replacement


@jax.tree_util.register_static
@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Sequential:
    """The sequential program: a loop over the steps, as in `jax.lax.scan`.

    Attributes:
        unroll: integer >= 1, the number of steps per trip of the loop, and of that of its
            derivative by "autodiff".
        progress: True, to print "sequential: 20 of 20 steps" to stderr when all steps are done. Or
            a function, which is called instead, once, as ``progress(0, L, 0.0)``: see
            `Newton`. None: nothing.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + x, jnp.array([2.0, 5.0, 4.0]))
        >>> method = deeppcr.Sequential(unroll=3)
        >>> deeppcr.solve(chain, jnp.array(0.0), method=method).value
        Array(11., dtype=float32)
    """

    unroll: int = 1
    progress: Progress = None

    def __post_init__(self) -> None:
        check_progress(self.progress)

    def bind(self, chain: TracedChain, asked: TracedChain) -> "Sequential":
        """The solver of a chain; it needs nothing but the chain."""
        return self

    def sharded(self, along: P, replicated: P) -> "Sequential":
        """How its arrays are sharded: it has none."""
        return self

    def solve(self, chain: TracedChain) -> Run:
        """All states, one after another."""
        trajectory, outputs = run_sequentially(chain, chain.initial, write_out, self.unroll)
        stats = Stats.of_sequential(chain.total, chain.layout.dtype, chain.mapped)
        converged = jnp.full(chain.mapped, Result.CONVERGED, jnp.int32)
        return Run(trajectory, outputs, stats, converged, Ran.sequential(chain.mapped))


def run_sequentially(
    chain: TracedChain, initial: Leaves, replace: Replacement | None, unroll: int = 1
) -> tuple[Leaves, Leaves]:
    """The states and the outputs of all steps; ``replace`` as in `deeppcr.rewrites.evaluate`."""
    # Most often the state itself is the output: written once, it costs half.
    same = chain.step.outputs_in_state

    def body(state: Leaves, inputs: Leaves) -> tuple[Leaves, tuple[Leaves, Leaves]]:
        state, outputs = chain.step.with_outputs(state, inputs, chain.captured, replace)
        return state, (state, [y for y, leaf in zip(outputs, same, strict=True) if leaf is None])

    _, (trajectory, own) = chain.axis.scan(body, initial, chain.inputs, chain.length, unroll)
    rest = iter(own)
    return trajectory, [next(rest) if leaf is None else trajectory[leaf] for leaf in same]
