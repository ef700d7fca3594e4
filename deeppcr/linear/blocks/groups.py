"""A partition of the entries of a state into groups, and the permutation of vectors for it.

``split`` takes ``[.., w]`` to ``[.., m, k]``, group after group, and ``merge`` takes it back. Both
are permutations, after padding to m k entries. If the entries of each group are neighbours, a
reshape is enough. If equal parts of a state are paired entry by entry, as is frequent, a transpose
is enough, which XLA fuses into the product that follows.

Any other permutation is a gather, about as fast as a copy. JAX would transpose it to a scatter. Yet
the transpose of a permutation is its inverse, again a gather. So the permuted vector is written as
the solution of a linear system, "its inverse permutation is the vector", with
`jax.lax.custom_linear_solve`.
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.linear_system import linear_system

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
        return Groups(tuple(tuple(row) for row in rows.tolist()))

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
    system = linear_system(
        lambda y: _take(y, inverse), y, lambda _, y: _take(y, order), lambda _, y: _take(y, inverse)
    )
    permuted: Array = lax.custom_linear_solve(*system)
    return permuted


def _take(y: Array, order: np.ndarray) -> Array:
    return jnp.take(y, order, axis=-1, mode="clip")  # no index is out of bounds


def _shown(entries: np.ndarray) -> str:
    shown = ", ".join(map(str, entries[:8]))
    return f"{shown}, .. ({len(entries)} of them)" if len(entries) > 8 else shown
