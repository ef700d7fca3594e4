"""`Linearization`: where the blocks ``A_l ~ df/dz(z_{l-1}, x_l)`` of an iteration come from.

Newton's method takes the Jacobian itself. Anything cheaper is a quasi-Newton method with the same
solution: the residual is always that of the user's step, so an inexact block costs iterations,
never correctness. A new linearisation is one class with `blocks` and `bytes_per_step`, registered
as a pytree, and one line in `exact.LINEARIZATIONS` if it has a name.
"""

from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays.state import StateLayout
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.linear import Blocks


class Linearization(ABC):
    r"""A source of blocks $A_l \approx df/dz(z_{l-1}, x_l)$: the base class for your own.

    A subclass is a frozen dataclass, registered as a pytree: `jax.tree_util.register_static` if it
    has no arrays, else `jax.tree_util.register_dataclass`. It defines two methods:

    - ``blocks(chain, states)`` returns `Blocks` for all steps. ``states``: $z_0, ..., z_{L-1}$,
      an array ``[L, *batch, w]``, the leaves of each state flattened to a vector of w entries, in
      float32 or better. ``chain.evaluate(states)``: the step applied to all of them, of the same
      shape. ``chain.inputs``: the leaves ``[L, ...]`` of the inputs. ``chain.layout`` has the
      ``width`` w, ``batch_shape``, ``batch_size`` and ``dtype`` of the vectors. The chain may be a
      window of the user's, or the shard of one device.
    - ``bytes_per_step(step, layout)`` returns an integer: the bytes of the blocks of one step, for
      the whole batch. The window is chosen by it.

    No derivatives pass through the blocks. Gradients of a solution are exact with any blocks, but
    by default take them, too, and correct the result: see `Adjoint`.

    Example:
        >>> import dataclasses
        >>> @jax.tree_util.register_static
        ... @dataclasses.dataclass(frozen=True)
        ... class Differences(deeppcr.Linearization):
        ...     h: float = 1e-3
        ...     def blocks(self, chain, states):
        ...         change = chain.evaluate(states + self.h) - chain.evaluate(states)
        ...         return deeppcr.Diagonals(change / self.h)
        ...     def bytes_per_step(self, step, layout):
        ...         return layout.width * layout.batch_size * layout.dtype.itemsize
        >>> chain = deeppcr.Chain(lambda z, x: jnp.sin(z + x), jnp.linspace(0.0, 9.0, 100))
        >>> newton = deeppcr.Newton(linearize=Differences())
        >>> bool(deeppcr.solve(chain, jnp.array(0.5), method=newton).converged)
        True
    """

    @abstractmethod
    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """The blocks at these states."""

    @abstractmethod
    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """The bytes of the blocks of one step, for the whole batch."""

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """Whether the blocks are proven to be the whole derivative.

        Then the iteration is Newton's method, and an adjoint takes one solve. Wrong gradients
        follow if this is True and the blocks are not.
        """
        return False

    def traced(self, chain: TracedChain) -> "Linearization":
        """The same for this chain, with the functions in it traced.

        So the arrays that they close over are leaves, like those of the chain's own step.
        """
        return self

    @property
    def of_adjoint(self) -> "Linearization | None":
        """The blocks of an adjoint that asks for none itself; None for the exact ones."""
        return self

    def check(self, step: Step, length: int) -> None:  # noqa: B027
        """Raise a `ValueError` if it does not apply to a chain of ``length`` such steps."""


def constant(linearization: Linearization) -> Linearization:
    """The same, with its arrays as constants: the solution does not depend on them."""
    return jax.tree.map(lambda leaf: lax.stop_gradient(jnp.asarray(leaf)), linearization)
