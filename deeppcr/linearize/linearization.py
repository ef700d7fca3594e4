"""`Linearization`: where the blocks ``A_l ~ df/dz(z_{l-1}, x_l)`` of an iteration come from.

Newton's method takes the Jacobian itself. Anything cheaper is a quasi-Newton method with the same
solution: the residual is always that of the user's step, so an inexact block costs iterations,
never correctness. A new linearisation is one class with `blocks` and `bytes_per_step`, registered
as a pytree, and one line in `exact.LINEARIZATIONS` if it has a name.

Here are the parts of the Jacobian. `Dense`, all of it, is DeepPCR (Danieli et al., NeurIPS 2023)
and DEER (Lim et al., ICLR 2024), `BlockDiagonal` is ParaRNN (Danieli et al., 2025), `Diagonal`
quasi-DEER (Gonzalez et al., NeurIPS 2024). Where the Jacobian has no other entries, each is
Newton's method.
"""

import dataclasses
from abc import ABC, abstractmethod

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays import Leaves, StateLayout
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.checks import check_count
from deeppcr.linear import BlockDiagonals, Blocks, Diagonals, Matrices
from deeppcr.linearize.jacobian import (
    block_diagonals,
    by_rows,
    columns,
    derivative,
    diagonals,
    differentiable,
    probed_diagonals,
)
from deeppcr.structure import find_structure


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

        Raises:
            ValueError: it does not apply to this chain.
        """
        return self

    @property
    def of_adjoint(self) -> "Linearization | None":
        """The blocks of an adjoint that asks for none itself; None for the exact ones."""
        return self


def constant(linearization: Linearization) -> Linearization:
    """The same, with its arrays as constants: the solution does not depend on them."""
    return jax.tree.map(lambda leaf: lax.stop_gradient(jnp.asarray(leaf)), linearization)


# By default the diagonal is exact if it takes at most this many derivatives of a step.
MAX_DERIVATIVES = 64
PROBES = 16


class JacobianPart(Linearization):
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
class Dense(JacobianPart):
    """``A_l = df/dz``, w x w for each batch element.

    It costs w derivatives of every step, and w^3 log L for the recurrence. If batch elements
    interact, a block is the sum of the derivatives of one element with respect to all of them.
    """

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        def one(state: Array, inputs: Leaves) -> Array:
            return jnp.moveaxis(columns(derivative(chain, state, inputs), state), 0, -1)

        with differentiable(chain.step):
            derivatives = jax.vmap(one)(states, chain.inputs)
        return Matrices(by_rows(chain, derivatives))

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        return np.arange(layout.width, dtype=np.int32)[None]

    def __str__(self) -> str:
        return "dense"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Diagonal(JacobianPart):
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
        structure = find_structure(chain.step, chain.layout)
        needed, probes = structure.groups.shape[1], self.probes
        if probes is None:
            probes = 0 if needed <= MAX_DERIVATIVES else PROBES
        if 0 < probes < needed:
            return Diagonals(probed_diagonals(chain, states, probes))
        return Diagonals(diagonals(chain, states, structure.groups))

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        return np.arange(layout.width, dtype=np.int32)[:, None]

    def __str__(self) -> str:
        return "diagonal" if not self.probes else f"diagonal, by {self.probes} probes"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BlockDiagonal(JacobianPart):
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
        structure = find_structure(chain.step, chain.layout)
        groups = self.groups(chain.step, chain.layout)
        return BlockDiagonals(block_diagonals(chain, states, groups, structure.groups), groups)

    def groups(self, step: Step, layout: StateLayout) -> np.ndarray:
        structure = find_structure(step, layout)
        if structure.groups.shape[1] <= self.size:
            return structure.groups
        width, leaves = layout.width, layout.sizes
        if len(leaves) == self.size and len(set(leaves)) == 1:
            return np.arange(width, dtype=np.int32).reshape(self.size, -1).T
        size = min(self.size, width)
        padded = np.full(-(-width // size) * size, -1, np.int32)
        padded[:width] = np.arange(width)
        return padded.reshape(-1, size)

    def __str__(self) -> str:
        return f"{self.size} x {self.size} blocks"
