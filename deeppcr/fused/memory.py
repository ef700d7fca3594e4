"""How arrays lie in the memory of a GPU, so that the threads of a block read neighbours.

With an example in each thread: ``[steps, entries, threads]``. With a block of threads for each
example: ``[steps, examples, entries]``.
"""

import dataclasses
import math
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
        indices = [(*step, *self._index(block, k)) for k in range(math.prod(self.shape))]
        entries = [ref[index] for index in indices]
        if self.is_bool:
            entries = [entry != np.int32(0) for entry in entries]
        return table_of(entries, self.shape)

    def write(self, ref: Any, block: Any, step: Any, table: np.ndarray) -> None:
        """Write the table of a step."""
        for k, entry in enumerate(table.ravel()):
            ref[(step, *self._index(block, k))] = repeated(entry, self.threads)

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

    def _index(self, block: Any, k: int) -> tuple[Any, ...]:
        from jax.experimental import pallas as pl

        if not self.has_examples:
            return (k,)
        return (k, pl.ds(block * LANES, LANES)) if self.lanes else (block, k)


def arranged(x: Any, axes: Axes, step: FusedStep, steps: int) -> tuple[Any, Layout]:
    """An operand as it lies in memory; ``steps`` is 1 if its first axis is the chain, else 0."""
    is_bool = x.dtype == bool
    x = x.astype(jnp.int32) if is_bool else x
    front, shape = x.shape[:steps], own_shape(x.shape[steps:], axes)
    own = [axis for axis in axes if axis is not None]
    layout = Layout(shape, bool(own), step.lanes, is_bool)
    if not own:
        return x.reshape((*front, math.prod(shape))), layout
    x = jnp.moveaxis(x, [steps + axis for axis in own], range(steps, steps + len(own)))
    missing = tuple(steps + k for k, axis in enumerate(axes) if axis is None)
    x = jnp.expand_dims(x, missing)
    batch = [size for size in step.batch_shape if size > 1]
    x = jnp.broadcast_to(x, (*front, *batch, *x.shape[steps + len(batch) :]))
    x = x.reshape((*front, step.count, -1))
    if step.lanes:
        x = jnp.swapaxes(x, -1, -2)
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -step.count % LANES)])
    return x, layout
