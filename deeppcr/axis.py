"""The chain axis: operations that couple the steps of a chain; axis 0 of arrays is the chain.

Most work on a chain is independent for each step. The rest is here: the state before a step, the
number of states from the start that have converged, maxima and sums along the chain, and sequential
work. Here all steps are on one device; `deeppcr.sharding` has the same over several.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.lower import loop

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class ChainAxis:
    """All steps on one device. A ``backwards`` recurrence starts at the end of the arrays."""

    backwards: bool = False
    is_sharded: ClassVar[bool] = False

    @property
    def size(self) -> int:
        """The number of shards."""
        return 1

    @property
    def rank(self) -> int | Array:
        """The number of shards before this one."""
        return 0

    @property
    def reversed(self) -> Self:
        """The same axis for a recurrence in the other direction."""
        return dataclasses.replace(self, backwards=not self.backwards)

    def forwards(self, length: int) -> "ChainAxis":
        """The axis of ``length`` steps after `flipped` has reordered arrays along the chain."""
        return dataclasses.replace(self, backwards=False)

    def flipped(self, tree: Any) -> Any:
        """Arrays of a backwards recurrence in the order of its steps, and back."""
        return jax.tree.map(lambda x: jnp.flip(x, 0), tree)

    def in_order(self, arrays: list[Array]) -> list[Array]:
        """Arrays in memory order, reordered along the chain, and back."""
        return arrays

    def total(self, length: int) -> int:
        """The number of steps in all shards, if this one has ``length``."""
        return length

    def before(self, entry: Array, states: Array) -> Array:
        """The state before each step; ``entry`` before the first step of the chain."""
        entry = jnp.broadcast_to(entry, states.shape)
        return shifted(entry, states, 0, self.backwards)

    def index(self, length: int) -> Array:
        """The index of each of ``length`` steps in the whole chain, from 0: int32."""
        index = lax.iota(jnp.int32, length)
        return length - 1 - index if self.backwards else index

    def indices(self, shape: tuple[int, ...]) -> Array:
        """The index of the step of each entry of an array of this shape: int32."""
        return lax.broadcast_in_dim(self.index(shape[0]), shape, (0,))

    def survey(self, values: Sequence[Array], true: Sequence[Array]) -> tuple[Any, Any]:
        """The largest of all entries of each of ``values``, and how far each of ``true`` holds.

        In one reduction, however many there are: on a GPU one or two kernels.

        Args:
            values: ``[L, ...]``, at least 0.
            true: bool, of the same shape.

        Returns:
            the maxima, and the numbers of steps from the start with all entries true: int32.
        """
        shape = (*values, *true)[0].shape
        index, end = self.indices(shape), jnp.int32(self.total(shape[0]))
        first_false = [jnp.where(holds, end, index) for holds in true]
        least = [jnp.zeros((), x.dtype) for x in values], [end] * len(true)
        return lax.reduce(
            (list(values), first_false),
            least,
            _larger_and_smaller,  # one function, whose program jax keeps
            tuple(range(len(shape))),
        )

    def last(self, states: Array) -> Array:
        """The last state of the chain."""
        return states[self._end]

    def set_first(self, x: Array, entry: Array) -> Array:
        """``x`` with ``entry`` at the first step of the chain."""
        return x.at[self._start].set(entry)

    def of_first(self, tree: Any) -> Any:
        """The value that the first shard has."""
        return tree

    def largest(self, x: Array) -> Array:
        """Entry by entry, the maximum over the shards."""
        return x

    def mean(self, x: Array) -> Array:
        """Entry by entry, the mean over the shards."""
        return x

    def cummax(self, x: Array) -> Array:
        """The running maximum along the chain."""
        return lax.cummax(x, axis=0, reverse=self.backwards)

    def cumsum(self, x: Array, axis: int = 0) -> Array:
        """The running sum along the chain, which is on ``axis``."""
        return lax.cumsum(x, axis=axis, reverse=self.backwards)

    def sequentially(
        self, work: Callable[[Any, Any], tuple[Any, Any]], entry: Any, arrays: Any
    ) -> tuple[Any, Any]:
        """Run ``work(entry, arrays) -> (exit, new)`` shard after shard, from the exit before.

        Args:
            work: the work on one shard, without communication.
            entry: the entry of the first shard, a pytree.
            arrays: those of the shard; ``new`` has the same structure, shapes and dtypes.
                None if there are none before.

        Returns:
            the exit of the last shard, and each shard's ``new``.
        """
        return work(entry, arrays)

    @property
    def scan(self) -> Callable[..., tuple[Any, Any]]:
        """`deeppcr.lower.loop` along the chain, in the direction of the recurrence."""
        return partial(loop, reverse=self.backwards)

    def each(self, f: Callable[..., T], parts: int) -> Callable[..., T]:
        """``f(*parts, shared)``; ``parts`` and the result carry the chain, ``shared`` does not."""
        return f

    @property
    def _start(self) -> int:
        """The index of the first step in the arrays."""
        return -1 if self.backwards else 0

    @property
    def _end(self) -> int:
        """The index of the last step in the arrays."""
        return 0 if self.backwards else -1

    def _last(self, tree: Any) -> Any:
        """The entry of the shard's last step."""
        return jax.tree.map(lambda leaf: leaf[self._end], tree)


def shifted(entry: Array, states: Array, axis: int, backwards: bool = False) -> Array:
    """``states`` moved by one along an axis, with those of ``entry``, of the same shape, before."""
    # Not a concatenation, which a GPU's compiler does not fuse with what follows.
    edges = [(0, 0, 0)] * states.ndim
    edges[axis] = (-1, 1, 0) if backwards else (1, -1, 0)
    rest = lax.pad(states, jnp.zeros((), states.dtype), edges)
    index = lax.broadcasted_iota(jnp.int32, states.shape, axis % states.ndim)
    first = lax.eq(index, np.int32(states.shape[axis] - 1 if backwards else 0))
    return lax.select(first, entry, rest)


def _larger_and_smaller(one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """The combination of two elements in `ChainAxis.survey`."""
    return jax.tree.map(lax.max, one[0], other[0]), jax.tree.map(lax.min, one[1], other[1])


LOCAL = ChainAxis()
