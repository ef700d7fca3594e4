"""`Linearization`: where the blocks ``A_l ~ df/dz(z_{l-1}, x_l)`` of an iteration come from.

Newton's method takes the Jacobian itself. Anything cheaper is a quasi-Newton method with the same
solution: the residual is always that of the user's step, so an inexact block costs iterations,
never correctness. A new linearisation is one class with `blocks`, registered as a pytree, and one
line in `choose.LINEARIZATIONS` if it has a name.
"""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks
from deeppcr.state import StateLayout
from deeppcr.step import Step


class Linearization(ABC):
    """A source of blocks: a frozen dataclass, registered as a pytree.

    ``states``: ``z_0 .. z_{L-1}`` as ``[L, *batch, w]``, of a chain, a window or a shard.
    """

    @abstractmethod
    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """The blocks at these states."""

    @abstractmethod
    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """The bytes of the blocks of one step, for the whole batch."""

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """Whether the blocks are proven to be the whole derivative.

        Then the iteration is Newton's method, and an adjoint takes one solve.
        """
        return False

    def check(self, step: Step, length: int) -> None:  # noqa: B027
        """Raise a `ValueError` if it does not apply to a chain of ``length`` such steps."""


def constant(linearization: Linearization) -> Linearization:
    """The same, with its arrays as constants: the solution does not depend on them."""
    return jax.tree.map(lambda leaf: lax.stop_gradient(jnp.asarray(leaf)), linearization)
