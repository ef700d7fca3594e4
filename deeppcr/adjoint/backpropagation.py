"""Backpropagation: products of the step's derivative with a vector, one step after another."""

import dataclasses
import math
from functools import partial

import jax

from deeppcr.adjoint.solver import even_chunk, steps_in_cache
from deeppcr.axis import ChainAxis
from deeppcr.chain import TracedChain
from deeppcr.platforms import platform
from deeppcr.state import Leaves, add
from depth.jaxprs import equations


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Backpropagation:
    """An `AdjointSolver` that needs no Jacobian blocks."""

    def chunk(self, chain: TracedChain) -> int:
        """See `AdjointSolver`: on a CPU the steps whose values fit into the cache, else all."""
        if platform() != "cpu":
            return chain.length
        made = (atom.aval for each in equations(chain.step.jaxpr) for atom in each.outvars)
        each = sum(math.prod(x.shape) * x.dtype.itemsize for x in made if hasattr(x, "dtype"))
        return even_chunk(chain.length, steps_in_cache(chain, each))

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `AdjointSolver`."""

        def body(t: Leaves, at: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, b_l = at
            step = partial(chain.step, inputs=inputs, captured=chain.captured)
            pushed = jax.jvp(step, (state,), (t,))[1]
            t = add(b_l, pushed)
            return t, t

        t: Leaves = chain.axis.scan(body, enter, (states, chain.inputs, b))[1]
        return t

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `AdjointSolver`."""

        def body(mu: Leaves, step: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, g_l = step
            lam = add(g_l, mu)
            _, pull = jax.vjp(partial(chain.step, inputs=inputs, captured=chain.captured), state)
            return pull(lam)[0], lam

        mu, lam = chain.axis.reversed.scan(body, enter, (states, chain.inputs, g))
        return lam, mu

    def on_shard(self, axis: ChainAxis) -> "Backpropagation":
        """See `AdjointSolver`."""
        return self
