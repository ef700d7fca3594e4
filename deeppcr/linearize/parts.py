"""Parts of the Jacobian: all of it, blocks on its diagonal, or the diagonal alone.

`Dense` is DeepPCR (Danieli et al., NeurIPS 2023) and DEER (Lim et al., ICLR 2024), `BlockDiagonal`
is ParaRNN (Danieli et al., 2025), `Diagonal` quasi-DEER (Gonzalez et al., NeurIPS 2024). Where the
Jacobian has no other entries, each is Newton's method.
"""

import dataclasses
from abc import abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.arrays.state import Leaves, StateLayout
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.checks import check_count
from deeppcr.linear import BlockDiagonals, Blocks, Diagonals, Matrices
from deeppcr.linearize.columns import columns
from deeppcr.linearize.jacobian import (
    block_diagonals,
    by_rows,
    derivative,
    diagonals,
    differentiable,
    probed_diagonals,
)
from deeppcr.linearize.linearization import Linearization
from deeppcr.structure import find_structure

# By default the diagonal is exact if it takes at most this many derivatives of a step.
MAX_DERIVATIVES = 64
PROBES = 16


class Part(Linearization):
    """The entries of the Jacobian inside of groups of entries."""

    @abstractmethod
    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        """The entries of each block, int32 ``[m, k]``; -1 where one is smaller."""

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        count, size = self.groups(step, layout).shape
        return count * size**2 * layout.batch_size * layout.dtype.itemsize

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        structure = find_structure(step, layout)
        size = self.groups(step, layout).shape[1]
        return structure.separate and structure.groups.shape[1] <= size


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Dense(Part):
    """``A_l = df/dz``, w x w for each batch element.

    It costs w derivatives of every step, and w^3 log L for the recurrence. If batch elements
    interact, a block is the sum of the derivatives of one element with respect to all of them.
    """

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        def one(state: Array, inputs: Leaves) -> Array:
            linear = derivative(chain, state, inputs)
            return jnp.moveaxis(columns(linear, state), 0, -1)

        with differentiable(chain.step):
            found = jax.vmap(one)(states, chain.inputs)
        return Matrices(by_rows(chain, found))

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        return np.arange(layout.width, dtype=np.int32)[None]

    def __str__(self) -> str:
        return "dense"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Diagonal(Part):
    """$A_l = diag(df/dz)$: quasi-DEER. Newton's method if the step is elementwise.

    The blocks take w numbers per step.

    Attributes:
        probes: integer >= 0, the number of random probes that estimate the diagonal, each of which
            costs one derivative of the step; 0: the exact diagonal. None: exact if that takes at
            most 64 derivatives of a step, else 16 probes.

    Raises:
        ValueError: ``probes`` is negative.
        TypeError: ``probes`` is not an integer.

    Example:
        >>> w = 0.1 * jnp.ones((8, 8)) + 0.5 * jnp.eye(8)
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z @ w + x), jnp.ones((100, 8)))
        >>> newton = deeppcr.Newton(linearize=deeppcr.Diagonal())
        >>> bool(deeppcr.solve(chain, jnp.zeros(8), method=newton).converged)
        True

    References:
        X. Gonzalez et al., *Towards Scalable and Stable Parallelization of Nonlinear RNNs*, NeurIPS
        2024. The estimate: M. F. Hutchinson, Communications in Statistics 18, 1989.
    """

    probes: int | None = None

    def __post_init__(self) -> None:
        check_count(
            "probes", self.probes, "number of random probes; 0 for none", least=0, optional=True
        )

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        found = find_structure(chain.step, chain.layout).groups
        needed, probes = found.shape[1], self.probes
        if probes is None:
            probes = 0 if needed <= MAX_DERIVATIVES else PROBES
        if 0 < probes < needed:
            return Diagonals(probed_diagonals(chain, states, probes))
        return Diagonals(diagonals(chain, states, found))

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        return np.arange(layout.width, dtype=np.int32)[:, None]

    def __str__(self) -> str:
        return "diagonal" if not self.probes else f"diagonal, by {self.probes} probes"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BlockDiagonal(Part):
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
        check_count("size", self.size, "number of entries of a block")

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        found = find_structure(chain.step, chain.layout).groups
        groups = self.groups(chain.step, chain.layout)
        return BlockDiagonals(block_diagonals(chain, states, groups, found), groups)

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
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

    def __str__(self) -> str:
        return f"{self.size} x {self.size} blocks"
