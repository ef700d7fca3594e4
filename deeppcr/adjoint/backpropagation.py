"""Backpropagation: products of the step's derivative with a vector, one step after another."""

import dataclasses
from functools import partial

import jax

from deeppcr.adjoint.moves import pullback
from deeppcr.adjoint.one_kernel import by_kernel, by_steps
from deeppcr.arrays.state import Leaves, add
from deeppcr.chain.chain import TracedChain
from deeppcr.lower import even_chunk, steps_in_cache
from depth.counts import nbytes

FEW = 8  # chunks that gain less than a loop in a loop takes to compile
WRITTEN = 2  # of so many results of a step, one is an array of a chunk; others are kept, or fused


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Backpropagation:
    """An `AdjointSolver` that needs no Jacobian blocks: `deeppcr.lower.loop` of linear steps.

    Attributes:
        at_once: whether the gradients of arrays are those of many steps at once, which takes less
            time where products are large; else each step adds to them, which compiles faster.
        keeps: whether the loop of the states keeps what the derivative reads.
        unroll: the number of steps per trip of its loops, an integer >= 1.
    """

    at_once: bool = True
    keeps: bool = False
    unroll: int = 1

    def of_part(self, chain: TracedChain) -> "Backpropagation":
        """See `AdjointSolver`."""
        return self

    def chunk(self, chain: TracedChain) -> int:
        """See `AdjointSolver`: on a CPU the steps whose values fit into the cache, else all.

        All, too, if the inputs of a step are larger than its values, as weights of its own are: a
        chunk is a copy of its inputs.
        """
        results = chain.step.bytes_of_results // WRITTEN
        inputs = sum(map(nbytes, chain.step.jaxpr.invars[chain.step.states :]))
        most = steps_in_cache(results, chain.captured)
        if inputs >= results or chain.length <= FEW * most:
            return chain.length
        return even_chunk(chain.length, most)

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `AdjointSolver`."""

        def body(t: Leaves, at: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, b_l = at
            step = partial(chain.step, inputs=inputs, captured=chain.captured)
            pushed = jax.jvp(step, (state,), (t,))[1]
            t = add(b_l, pushed)
            return t, t

        steps = states, chain.inputs, b
        return chain.axis.scan(body, enter, steps, unroll=self.unroll, linear=True)[1]

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `AdjointSolver`."""
        if pulled := by_kernel(by_steps, chain, states, g, enter):
            return pulled

        def body(mu: Leaves, at: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, g_l = at
            lam = add(g_l, mu)
            step = partial(chain.step, inputs=inputs, captured=chain.captured)
            return pullback(step, state)(lam)[0], lam

        scan = chain.axis.reversed.scan
        steps = states, chain.inputs, g
        mu, lam = scan(body, enter, steps, unroll=self.unroll, linear=True)
        return lam, mu
