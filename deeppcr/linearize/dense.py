"""The full Jacobian of every step.

DeepPCR (Danieli et al., NeurIPS 2023) and DEER (Lim et al., ICLR 2024).
"""

import dataclasses

import jax
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks, Matrices
from deeppcr.linearize.jacobian import matrices
from deeppcr.linearize.linearization import Linearization
from deeppcr.state import StateLayout
from deeppcr.step import Step
from deeppcr.structure import find_structure


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Dense(Linearization):
    """``A_l = df/dz``, w x w for each batch element.

    It costs w derivatives of every step, and w^3 log L for the recurrence.
    """

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """See `Linearization`.

        If batch elements interact, a block is the sum of the derivatives of one element with
        respect to all of them.
        """
        return Matrices(matrices(chain, states))

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return layout.width**2 * layout.batch_size * layout.dtype.itemsize

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """See `Linearization`."""
        return find_structure(step, layout).separate

    def __str__(self) -> str:
        return "dense"
