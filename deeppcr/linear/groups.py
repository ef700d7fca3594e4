"""Small matrices on groups of entries: the state decouples into m recurrences of width k.

``A_l`` couples the entries of one group with each other and with no others. A product of blocks
costs m k^3 instead of w^3 = m^3 k^3. Once the entries of a group are neighbours, the groups are one
more batch axis of full k x k matrices. A parallel solver regroups the vectors of all steps at once.

``split`` takes ``[.., w]`` to ``[.., m, k]``, group after group, and ``merge`` takes it back. Both
are permutations, after padding to m k entries. If the entries of each group are neighbours, a
reshape is enough. If equal parts of a state are paired entry by entry, as is frequent, a transpose
is enough, which XLA fuses into the product that follows.

Any other permutation is a gather, about as fast as a copy. JAX would transpose it to a scatter. Yet
the transpose of a permutation is its inverse, again a gather: see `deeppcr.linear.linear_map`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.linear.blocks import Blocks, Matrices
from deeppcr.linear.linear_map import LinearMap, solved
from deeppcr.lower import Use

PADDING = -1  # in a row of a group that is shorter


@dataclasses.dataclass(frozen=True)
class Groups:
    """Group g has the entries ``rows[g]`` of the state; rows are padded with -1 to one length.

    Hashable.
    """

    rows: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(groups: "np.ndarray | Sequence[Sequence[int]] | Groups") -> "Groups":
        """From int ``[m, k]``, checked: every entry 0 .. w-1 is in one group."""
        if isinstance(groups, Groups):
            return groups
        rows = np.asarray(groups)
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
            raise ValueError(
                f"groups has shape {list(rows.shape)} and dtype {rows.dtype}, "
                "expected integers [m, k]."
            )
        entries = np.sort(rows[rows != PADDING])
        if not np.array_equal(entries, np.arange(len(entries))):
            raise ValueError(
                f"groups has the entries {_shown(entries)}, expected each of 0 .. w-1 once, "
                f"and {PADDING} for none."
            )
        return Groups(tuple(map(tuple, rows.tolist())))

    @property
    def count(self) -> int:
        """The number of groups, m."""
        return len(self.rows)

    @property
    def size(self) -> int:
        """The size of the largest group, k."""
        return len(self.rows[0]) if self.rows else 0

    @cached_property
    def width(self) -> int:
        """The number of entries, w."""
        return int(self.filled.sum())

    @cached_property
    def filled(self) -> np.ndarray:
        """Where a group has an entry, bool ``[m, k]``."""
        return np.array(self.rows, np.int32).reshape(self.count, self.size) != PADDING

    @cached_property
    def order(self) -> np.ndarray:
        """The permutation: for each index, the entry of the padded vector, int ``[m k]``."""
        order = np.array(self.rows, np.int32).reshape(-1)
        padding = order == PADDING
        order[padding] = self.width + np.arange(padding.sum())
        return order

    @cached_property
    def paired(self) -> bool:
        """Whether group g is the g-th entry of each of k equal parts of the state.

        So it is for a state of k leaves of equal sizes.
        """
        if self.width == 0 or not self.filled.all():
            return False
        return np.array_equal(
            self.order, np.arange(self.width).reshape(self.size, -1).T.reshape(-1)
        )

    def split(self, y: Array) -> Array:
        """``[.., w]`` to ``[.., m, k]``, with zeros where a group is shorter."""
        # A sequential solution takes 1.0 to 1.5 times as long as with neighbours if the entries are
        # paired, and 1.5 to 3 times if they have to be gathered (jax 0.10.2, 2 cores).
        if self.paired:
            return jnp.swapaxes(y.reshape(*y.shape[:-1], self.size, self.count), -1, -2)
        padding = len(self.order) - self.width
        if padding:
            y = lax.pad(y, jnp.zeros((), y.dtype), [*[(0, 0, 0)] * (y.ndim - 1), (0, padding, 0)])
        return _permute(y, self.order).reshape(*y.shape[:-1], self.count, self.size)

    def merge(self, y: Array) -> Array:
        """``[.., m, k]`` back to ``[.., w]``."""
        if self.paired:
            return jnp.swapaxes(y, -1, -2).reshape(*y.shape[:-2], self.width)
        y = y.reshape(*y.shape[:-2], self.count * self.size)
        return _permute(y, np.argsort(self.order))[..., : self.width]


def _permute(y: Array, order: np.ndarray) -> Array:
    """``y[..., order]``, a permutation of the last axis, whose transpose is a gather, too."""
    if np.array_equal(order, np.arange(len(order))):
        return y
    # A scatter takes 5 to 20 times as long as this gather on CPU (jax 0.10.2).
    inverse = np.argsort(order)
    gather = LinearMap(
        lambda _, x: _take(x[0], order),
        lambda _, g: (_take(g, inverse), ()),
        lambda _, x: jnp.zeros_like(x[0]),
    )
    return solved(gather, [], (y, ()))


def _take(y: Array, order: np.ndarray) -> Array:
    return jnp.take(y, order, axis=-1, mode="clip")  # no index is out of bounds


def _shown(entries: np.ndarray) -> str:
    shown = ", ".join(map(str, entries[:8]))
    return f"{shown}, .. ({len(entries)} of them)" if len(entries) > 8 else shown


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=["groups"])
@dataclasses.dataclass(frozen=True)
class BlockDiagonals(Blocks):
    """Small matrices on groups of entries, which do not influence each other.

    Attributes:
        matrix: ``[L, *batch, m, k, k]``, of a floating dtype. ``matrix[..., g, i, j]`` maps entry
            ``groups[g, j]`` of a state to entry ``groups[g, i]`` of the next.
        groups: integers ``[m, k]``, every entry of the state once, -1 where a group is shorter. The
            rows and columns of ``matrix`` at a -1 are ignored; they may be NaN.

    Raises:
        ValueError: ``groups`` are no integers ``[m, k]``, or an entry is missing or repeated.

    Example:
        >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> blocks = deeppcr.BlockDiagonals(jnp.tile(swap, (3, 2, 1, 1)), [[0, 2], [1, 3]])
        >>> start = jnp.arange(4.0)
        >>> deeppcr.solve_bidiagonal(blocks, jnp.zeros((3, 4)), initial=start)[0]
        Array([2., 3., 0., 1.], dtype=float32)
    """

    matrix: Array
    groups: Groups

    def __init__(
        self, matrix: Array, groups: np.ndarray | Sequence[Sequence[int]] | Groups
    ) -> None:
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "groups", Groups.of(groups))

    @property
    def vector_shape(self) -> tuple[int, ...]:
        return (*self.matrix.shape[:-3], self.groups.width)

    @property
    def block_size(self) -> int:
        return self.groups.size

    def apply(self, y: Array, use: Use = "derivative") -> Array:
        # Regrouping each step, in the cache, beats regrouping the whole chain beforehand, which
        # takes 1.3 to 2.7 times as long (jax 0.10.2, 2 cores, 16 to 128 pairs, batch 1 and 8).
        use = use if use == "step" else "derivative"
        return self.groups.merge(self._matrices.apply(self.groups.split(y), use))

    def compose(self, earlier: Self) -> Self:
        return dataclasses.replace(self, matrix=self._matrices.compose(earlier._matrices).matrix)

    def transpose(self) -> Self:
        return dataclasses.replace(self, matrix=jnp.swapaxes(self.matrix, -1, -2))

    def to_struct_of_arrays(self, b: Array) -> tuple[Blocks, Array, Callable[[Array], Array]]:
        blocks, vectors, restore = self._matrices.to_struct_of_arrays(self.groups.split(b))
        return blocks, vectors, lambda y: self.groups.merge(restore(y))

    @property
    def _matrices(self) -> Matrices:
        """The groups as a batch axis, with zeros for padding, since 0 * NaN is NaN."""
        filled = self.groups.filled
        if filled.all():
            return Matrices(self.matrix)
        used = jnp.broadcast_to(filled[:, :, None] & filled[:, None, :], self.matrix.shape)
        return Matrices(jnp.where(used, self.matrix, jnp.zeros_like(self.matrix)))
