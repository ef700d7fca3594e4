"""Blocks with entries of limited size.

Where a step amplifies differences, products of its derivatives along the chain overflow long before
the iteration is near the solution. Blocks whose entries are limited keep them bounded (diagonal
blocks, limit 1), and are exact wherever the step does not amplify.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.checks import describe
from deeppcr.linear import Blocks
from deeppcr.linearize.exact import Exact, find_linearization
from deeppcr.linearize.linearization import Linearization
from deeppcr.state import StateLayout
from deeppcr.step import Step


@partial(jax.tree_util.register_dataclass, data_fields=["linearize"], meta_fields=["limit"])
@dataclasses.dataclass(frozen=True)
class Clipped(Linearization):
    """$A_l$: the blocks of another linearisation, their entries clipped to [-limit, limit].

    For chains whose steps amplify differences here and there, such as Metropolis chains: products
    of diagonal blocks that are clipped to [-1, 1] never grow. Where nothing is clipped the blocks
    are those of ``linearize``. Gradients are not affected: by default an adjoint takes the blocks
    as they are without clipping.

    Attributes:
        linearize: the blocks to clip, as in `Newton`.
        limit: float > 0, the largest absolute value of an entry (dimensionless, if all entries of
            the state have the same units).

    Raises:
        TypeError: ``limit`` is not a real number.
        ValueError: ``limit`` is not positive, or ``linearize`` is unknown.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.sin(2 * z + x), jnp.linspace(0.0, 9.0, 100))
        >>> newton = deeppcr.Newton(linearize=deeppcr.Clipped("diagonal", 1.0))
        >>> bool(deeppcr.solve(chain, jnp.array(0.5), method=newton).converged)
        True

    References:
        Newton's method on Metropolis chains: D. M. Zoltowski et al., *Parallelizing MCMC Across the
        Sequence Length*, NeurIPS 2025.
    """

    linearize: str | Linearization = "auto"
    limit: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "linearize", find_linearization(self.linearize) or Exact())
        if isinstance(self.limit, bool) or not isinstance(self.limit, int | float):
            raise TypeError(f"limit is {describe(self.limit)}, expected a real number > 0.")
        if not 0 < self.limit < math.inf:
            raise ValueError(f"limit is {self.limit}, expected a finite number > 0.")

    @property
    def _inside(self) -> Linearization:
        assert isinstance(self.linearize, Linearization)
        return self.linearize

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """See `Linearization`."""
        blocks = self._inside.blocks(chain, states)
        clipped: Blocks = jax.tree.map(lambda x: jnp.clip(x, -self.limit, self.limit), blocks)
        return clipped

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return self._inside.bytes_per_step(step, layout)

    def check(self, step: Step, length: int) -> None:
        """See `Linearization`."""
        self._inside.check(step, length)

    def traced(self, chain: TracedChain) -> "Clipped":
        """See `Linearization`."""
        return dataclasses.replace(self, linearize=self._inside.traced(chain))

    @property
    def kept(self) -> "Clipped | None":
        """See `Linearization`."""
        inside = self._inside.kept
        return dataclasses.replace(self, linearize=inside) if inside else None

    @property
    def of_adjoint(self) -> Linearization | None:
        """See `Linearization`."""
        return self._inside.of_adjoint

    def __str__(self) -> str:
        return f"{self.linearize}, clipped to {self.limit:g}"
