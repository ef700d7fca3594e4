"""The full Jacobian of every step.

DeepPCR (Danieli et al., NeurIPS 2023) and DEER (Lim et al., ICLR 2024).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks, Matrices
from deeppcr.linearize.jacobian import differentiable, pushed
from deeppcr.linearize.linearization import Linearization
from deeppcr.rewrites.columns import columns
from deeppcr.state import Leaves, StateLayout
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

        def one(state: Array, inputs: Leaves) -> Array:
            return jnp.moveaxis(columns(pushed(chain, state, inputs), state), 0, -1)

        with differentiable(chain.step):
            derivatives = jax.vmap(one)(states, chain.inputs)
        by_rows = chain.step.has_custom_vjp
        return Matrices(jnp.swapaxes(derivatives, -1, -2) if by_rows else derivatives)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return layout.width**2 * layout.batch_size * layout.dtype.itemsize

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """See `Linearization`."""
        return find_structure(step, layout).separate

    def __str__(self) -> str:
        return "dense"
