"""Blocks on the diagonal of the Jacobian: ParaRNN (Danieli et al., 2025).

Where the Jacobian of the steps is block diagonal, this is Newton's method.
"""

import dataclasses

import jax
import numpy as np
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.checks import check_count
from deeppcr.linear import BlockDiagonals, Blocks
from deeppcr.linearize.jacobian import block_diagonals
from deeppcr.linearize.linearization import Linearization
from deeppcr.state import StateLayout
from deeppcr.step import Step
from deeppcr.structure import find_structure


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BlockDiagonal(Linearization):
    """$A_l$: the k x k blocks on the diagonal of df/dz. Newton's method if the step is such.

    The entries of a block are, whichever applies first:

    - a group of entries that influence each other, if the step's structure has such groups of at
      most k entries; then the blocks are exact
    - the i-th entries of all leaves, if the state has k leaves of equal shapes (h and c of an LSTM)
    - k neighbouring entries.

    The blocks take w k numbers per step, and the recurrence $w k^2$ operations per step and round.

    Attributes:
        size: k, integer >= 1, the number of entries of a block.

    Raises:
        ValueError: ``size`` is less than 1.
        TypeError: ``size`` is not an integer.

    Example:
        >>> step = lambda z, x: (jnp.tanh(0.5 * z[0] + x), 0.5 * (z[0] + z[1]))
        >>> chain = deeppcr.Chain(step, jnp.ones((100, 8)))
        >>> newton = deeppcr.Newton(linearize=deeppcr.BlockDiagonal(2))
        >>> z0 = jnp.zeros(8), jnp.zeros(8)
        >>> bool(deeppcr.solve(chain, z0, method=newton).converged)
        True

    References:
        F. Danieli et al., *ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large
        Language Models*, 2025.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("size", self.size, "the number of entries of a block")

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """See `Linearization`."""
        found = find_structure(chain.step, chain.layout).groups
        groups = self.groups(chain.step, chain.layout)
        return BlockDiagonals(block_diagonals(chain, states, groups, found), groups)

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        """The entries of each block, int32 [m, k]; -1 where one is smaller."""
        found = find_structure(step, layout).groups
        if found.shape[1] <= self.size:
            return found
        width, leaves = layout.width, layout.sizes
        if len(leaves) == self.size and len(set(leaves)) == 1:
            return np.arange(width, dtype=np.int32).reshape(self.size, -1).T
        size = min(self.size, width)
        padded = np.full(-(-width // size) * size, -1, np.int32)
        padded[:width] = np.arange(width)
        return padded.reshape(-1, size)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        count, size = self.groups(step, layout).shape
        return count * size**2 * layout.batch_size * layout.dtype.itemsize

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """See `Linearization`."""
        structure = find_structure(step, layout)
        return structure.separate and structure.groups.shape[1] <= self.size

    def __str__(self) -> str:
        return f"{self.size} x {self.size} blocks"
