"""`Linearization`: where the blocks ``A_l ~ df/dz(z_{l-1}, x_l)`` of an iteration come from.

Newton's method takes the Jacobian itself. Anything cheaper makes a quasi-Newton method with the same solution: the residual is
always that of the user's step, so what a block leaves out costs iterations and never correctness (DESIGN: "the residual is the
judge"). A new linearisation is one class here, registered as a pytree, with `blocks`; and one line in `choose.LINEARIZATIONS` if
it is to have a name.
"""

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.chain import Steps
from deeppcr.linear import Blocks
from deeppcr.state import StateLayout
from deeppcr.step import Step


class Linearization(ABC):
    """A way to make the blocks: a frozen dataclass, registered as a pytree.

    ``states``: ``z_0 .. z_{L-1}`` as ``[L, *batch, w]``, all steps of a chain or a stretch of it.
    """

    @abstractmethod
    def blocks(self, steps: Steps, states: Array) -> Blocks:
        """The blocks at these states."""

    @abstractmethod
    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """The memory that the blocks of one step take, for all examples."""

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """Whether it is proven that the blocks are the whole derivative: Newton's method, and an adjoint of one solve."""
        return False

    def check(self, step: Step, length: int) -> None:  # noqa: B027
        """Raise a `ValueError` where it does not suit a chain of ``length`` such steps."""

    @property
    def fresh(self) -> "Linearization":
        """The same where states do not change from iteration to iteration: without what is only remembered."""
        return self

    def begin(self, steps: Steps, states: Array) -> Any:
        """What is remembered from iteration to iteration, before the first: a pytree of arrays with the chain on axis 0."""
        return ()

    def next(
        self, steps: Steps, states: Array, memory: Any, iteration: Array
    ) -> tuple[Blocks, Any]:
        """The blocks of an iteration, counted from 0, and what to remember."""
        return self.blocks(steps, states), memory


def constant(linearization: Linearization) -> Linearization:
    """The same, with no derivatives with respect to its arrays: they have no influence on the answer."""
    return jax.tree.map(lambda leaf: lax.stop_gradient(jnp.asarray(leaf)), linearization)
