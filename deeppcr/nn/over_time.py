"""A cell over a sequence: what the layers of `flax.nnx` and of `flax.linen` have in common."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.api import scan
from deeppcr.checks import describe


@dataclasses.dataclass(frozen=True)
class Sequences:
    """The layout of a batch of sequences, and the direction in which they are read.

    Attributes:
        time_axis: the axis of time in the inputs and in the outputs, >= 0.
        batch: the shape of the batch.
        lengths: integers ``[*batch]``, or None if every sequence is as long as the inputs.
        reverse: read from the last valid entry to the first.
        keep_order: return the outputs of a reversed pass in the order of the inputs.
    """

    time_axis: int
    batch: tuple[int, ...]
    lengths: Array | None
    reverse: bool
    keep_order: bool

    @classmethod
    def of(
        cls,
        inputs: Any,
        num_feature_axes: int,
        lengths: Any,
        time_major: bool,
        reverse: bool,
        keep_order: bool,
    ) -> "Sequences":
        """Check inputs ``[*batch, time, *features]``, or ``[time, *batch, *features]``."""
        shape = list(jnp.shape(inputs))
        if len(shape) < num_feature_axes + 1:
            axes = "one axis" if num_feature_axes == 1 else f"{num_feature_axes} axes"
            raise ValueError(
                f"inputs has shape {shape}, expected an axis of time besides {axes} of features."
            )
        time_axis = 0 if time_major else len(shape) - num_feature_axes - 1
        batch = tuple(shape[: len(shape) - num_feature_axes])
        batch = batch[:time_axis] + batch[time_axis + 1 :]
        if lengths is not None:
            lengths = jnp.asarray(lengths)
            if lengths.shape != batch or not jnp.issubdtype(lengths.dtype, jnp.integer):
                raise ValueError(
                    f"seq_lengths is {describe(lengths)}, expected integers of the shape of the "
                    f"batch, {list(batch)}: the length of each sequence."
                )
        return cls(time_axis, batch, lengths, reverse, keep_order)

    def shape_of_entry(self, inputs: Any) -> tuple[int, ...]:
        """The shape of the inputs at one time: ``[*batch, *features]``."""
        shape = jnp.shape(inputs)
        return tuple(shape[: self.time_axis] + shape[self.time_axis + 1 :])

    def by_time(self, inputs: Any) -> Array:
        """The inputs ``[time, *batch, *features]``, in the order in which the cell reads them."""
        moved = jnp.moveaxis(jnp.asarray(inputs), self.time_axis, 0)
        return self._flipped(moved) if self.reverse else moved

    def returned(self, outputs: Any) -> Any:
        """Outputs ``[time, *batch, ...]`` with the axes, and in the order, that the user wants."""

        def moved(leaf: Array) -> Array:
            flipped = self._flipped(leaf) if self.reverse and self.keep_order else leaf
            return jnp.moveaxis(flipped, 0, self.time_axis)

        return jax.tree.map(moved, outputs)

    def last(self, initial: Any, carries: Any) -> Any:
        """The carry after the last valid entry of each sequence, of all carries ``[time, ...]``.

        It is the initial one for a sequence of length 0.
        """
        lengths = self.lengths
        assert lengths is not None

        def chosen(path: Any, before: Any, after: Array) -> Array:
            before = jnp.asarray(before, after.dtype)
            if before.shape[: len(self.batch)] != self.batch:
                raise ValueError(
                    f"the carry{jax.tree_util.keystr(path)} has shape {list(before.shape)}, "
                    f"expected the axes of the batch first, {list(self.batch)}: with seq_lengths "
                    "every sequence has a last carry of its own."
                )
            index = _over(lengths, before)
            found = jnp.take_along_axis(after, jnp.maximum(index - 1, 0)[None], axis=0)[0]
            return jnp.where(index > 0, found, before)

        return jax.tree_util.tree_map_with_path(chosen, initial, carries)

    def _flipped(self, leaf: Array) -> Array:
        """``[time, *batch, ...]`` with the valid entries of each sequence in reverse order."""
        if self.lengths is None:
            return jnp.flip(leaf, 0)
        times = jnp.arange(leaf.shape[0], dtype=self.lengths.dtype)
        times = times.reshape((-1, *(1,) * len(self.batch)))
        # Modulo the number of times, so the padding stays at the end, in reverse order as well.
        index = (self.lengths[None] - 1 - times) % leaf.shape[0]
        return jnp.take_along_axis(leaf, _over(index, leaf), axis=0)


def recur(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    carry: Any,
    inputs: Any,
    sequences: Sequences,
    all_carries: bool,
    **options: Any,
) -> tuple[Any, Any, Any]:
    """Apply ``step((state, carry), x) -> ((state, carry), y)`` at every time.

    Args:
        step: the cell.
        state: what else it carries: the variables of a module.
        carry: the initial carry ``[*batch, ...]``.
        inputs: as the user gave them.
        sequences: their layout.
        all_carries: whether the last carry is chosen among those of all times, by length.
        **options: of `deeppcr.scan`.

    Returns:
        the state in the end, the last carry, and the outputs.
    """

    def body(before: Any, x: Any) -> tuple[Any, Any]:
        after, y = step(before, x)
        return after, (after[1], y) if all_carries else y

    xs = sequences.by_time(inputs)
    (state, last), ys = scan(body, (state, carry), xs, **options)
    if all_carries:
        carries, ys = ys
        last = sequences.last(carry, carries)
    return state, last, sequences.returned(ys)


def batch_axes(carry: Any, batch: tuple[int, ...]) -> int:
    """The number of leading axes that all floating leaves of a carry share with the batch."""
    found = len(batch)
    for leaf in jax.tree.leaves(carry):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            shared = (a == b for a, b in zip(jnp.shape(leaf), batch, strict=False))
            found = min(
                found, next((i for i, same in enumerate(shared) if not same), jnp.ndim(leaf))
            )
    return found


def _over(values: Array, leaf: Array) -> Array:
    """``values`` with axes of size 1 behind, as many as ``leaf`` has more."""
    return values.reshape(values.shape + (1,) * (leaf.ndim - values.ndim))
