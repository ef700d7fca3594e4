"""Nothing in the place of the Jacobian: Jacobi iteration, as in parallel decoding (Song et al., ICML 2021)."""

import dataclasses

import jax
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks, Zeros
from deeppcr.linearize.linearization import Linearization
from deeppcr.state import StateLayout
from deeppcr.step import Step


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Zero(Linearization):
    """``A_l = 0``: every state is the step applied to the one before it in the last iteration. No derivatives, no recurrence."""

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """See `Linearization`."""
        return Zeros.like(states)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return 0

    def __str__(self) -> str:
        return "zero"
