"""How arrays lie in the memory of a GPU, so that the threads of a block read neighbours.

With an example in each thread: ``[steps, entries, threads]``. With a block of threads for each
example: ``[steps, examples, entries]``.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from deeppcr.fused.entries import table_of
from deeppcr.fused.operations import repeated
from deeppcr.fused.step import LANES, Axes, FusedStep, own_shape


@dataclasses.dataclass(frozen=True)
class Layout:
    """How an operand lies in memory: ``[steps, blocks, entries]`` or ``[steps, entries, lanes]``.

    Attributes:
        shape: of the table of an example.
        has_examples: whether each example has entries of its own.
        lanes: whether the examples are side by side.
        is_bool: it is passed as int32.
    """

    shape: tuple[int, ...]
    has_examples: bool
    lanes: bool
    is_bool: bool = False

    def read(self, ref: Any, block: Any, *step: Any) -> np.ndarray:
        """The table of a step, of one example or of a block of them."""
        entries = [ref[self._index(block, k, *step)] for k in range(math.prod(self.shape))]
        if self.is_bool:
            entries = [entry != np.int32(0) for entry in entries]
        return table_of(entries, self.shape)

    def write(self, ref: Any, block: Any, table: np.ndarray, *step: Any) -> None:
        """Write the table of a step."""
        for k, entry in enumerate(table.ravel()):
            ref[self._index(block, k, *step)] = repeated(entry, self.threads)

    @property
    def threads(self) -> tuple[int, ...]:
        """The shape of an entry of each example of a block."""
        return (LANES,) if self.lanes else ()

    def memory(self, step: FusedStep) -> tuple[int, ...]:
        """The shape of the array, without steps."""
        size = math.prod(self.shape)
        if not self.has_examples:
            return (size,)
        return (size, step.threads) if self.lanes else (step.count, size)

    def _index(self, block: Any, k: Any, *step: Any) -> tuple[Any, ...]:
        from jax.experimental import pallas as pl

        if not self.has_examples:
            return (*step, k)
        return (*step, k, pl.ds(block * LANES, LANES)) if self.lanes else (*step, block, k)


def arranged(x: Any, axes: Axes, step: FusedStep, steps: int) -> tuple[Any, Layout]:
    """An operand as it lies in memory; ``steps`` is 1 if it has the axis of the chain, else 0."""
    is_bool = x.dtype == bool
    x = x.astype(jnp.int32) if is_bool else x
    front, shape = x.shape[:steps], own_shape(x.shape[steps:], axes)
    layout = Layout(shape, any(axis is not None for axis in axes), step.lanes, is_bool)
    if not layout.has_examples:
        return x.reshape((*front, math.prod(shape))), layout
    missing = tuple(steps + k for k, axis in enumerate(axes) if axis is None)
    batch = [size for size in step.batch_shape if size > 1]
    # One transpose, which is none at all where the examples are last already.
    x = x.transpose(_order(axes, x.ndim, steps, step.lanes))
    shape = tuple(n for k, n in enumerate(shape) if k not in axes)
    if step.lanes:
        at = tuple(len(shape) + k for k in missing)
        x = jnp.broadcast_to(jnp.expand_dims(x, at), (*front, *shape, *batch))
        x = x.reshape((*front, -1, step.count))
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -step.count % LANES)]), layout
    x = jnp.broadcast_to(jnp.expand_dims(x, missing), (*front, *batch, *shape))
    return x.reshape((*front, step.count, -1)), layout


def restored(y: Any, axes: Axes, step: FusedStep, shape: tuple[int, ...]) -> Any:
    """A result ``[.., *shape]`` with examples on ``axes``, from how it lies in memory."""
    steps = y.ndim - (2 if axes else 1)
    y = y[..., : step.count] if axes and step.lanes else y
    order = _order(axes, steps + len(shape), steps, step.lanes)
    full = (*y.shape[:steps], *shape)
    return y.reshape([full[k] for k in order]).transpose(np.argsort(order))


def _order(axes: Sequence[int | None], rank: int, steps: int, lanes: bool) -> list[int]:
    """The axes of an array in the order of memory; the first ``steps`` are not of an example."""
    batch = [steps + axis for axis in axes if axis is not None]
    own = [axis for axis in range(steps, rank) if axis not in batch]
    return [*range(steps), *(own + batch if lanes else batch + own)]
