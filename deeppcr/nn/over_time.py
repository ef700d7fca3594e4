"""A cell over a sequence: what the layers of `flax.nnx` and of `flax.linen` have in common."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.recurrent import flip_sequences
from jax import Array

from deeppcr.api import scan
from deeppcr.checks import describe

OPTIONS = ("return_carry", "time_major", "reverse", "keep_order")


def options_of(layer: Any, given: dict[str, Any]) -> list[bool]:
    """The `OPTIONS` of a call, of which those that are not ``given`` are those of the layer."""
    if unknown := given.keys() - set(OPTIONS):
        raise TypeError(f"{min(unknown)} is no argument; expected one of {', '.join(OPTIONS)}.")
    options = (given.get(name) for name in OPTIONS)
    pairs = zip(OPTIONS, options, strict=True)
    return [getattr(layer, name) if option is None else option for name, option in pairs]


def axes_of(inputs: Any, num_feature_axes: int, time_major: bool) -> tuple[int, tuple[int, ...]]:
    """The axis of time of ``[*batch, time, *features]`` (or ``time`` first), and the batch."""
    shape = list(jnp.shape(inputs))
    if len(shape) < num_feature_axes + 1:
        axes = "one axis" if num_feature_axes == 1 else f"{num_feature_axes} axes"
        raise ValueError(
            f"inputs has shape {shape}, expected an axis of time besides {axes} of features."
        )
    axis = 0 if time_major else len(shape) - num_feature_axes - 1
    del shape[axis]
    return axis, tuple(shape[: len(shape) - num_feature_axes])


def recur(
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    carry: Any,
    inputs: Any,
    axis: int,
    batch: tuple[int, ...],
    lengths: Any,
    return_carry: bool,
    reverse: bool,
    keep_order: bool,
    **options: Any,
) -> tuple[Any, Any, Any]:
    """Apply ``step((state, carry), x) -> ((state, carry), y)`` at every time.

    Args:
        step: the cell.
        state: what else it carries: the variables of a module.
        carry: the initial carry ``[*batch, ...]``.
        inputs: as the user gave them.
        axis: of time, in the inputs and in the outputs.
        batch: its shape.
        lengths: integers ``[*batch]``; None if every sequence is as long as the inputs.
        return_carry: whether the last carry is needed.
        reverse: read from the last valid entry to the first.
        keep_order: return the outputs of a reversed pass in the order of the inputs.
        **options: of `deeppcr.scan`.

    Returns:
        the state in the end, the last carry, and the outputs.
    """
    if lengths is not None:
        lengths = jnp.asarray(lengths)
        if lengths.shape != batch or not jnp.issubdtype(lengths.dtype, jnp.integer):
            raise ValueError(
                f"seq_lengths is {describe(lengths)}, expected integers of the shape of the "
                f"batch, {list(batch)}: the length of each sequence."
            )
        lengths = lengths.astype(int)
    chooses = return_carry and lengths is not None

    def flipped(x: Array, wanted: bool) -> Array:
        return flip_sequences(x, lengths, len(batch), True) if wanted else x

    def body(before: Any, x: Any) -> tuple[Any, Any]:
        after, y = step(before, x)
        return after, (after[1], y) if chooses else y

    xs = flipped(jnp.moveaxis(jnp.asarray(inputs), axis, 0), reverse)
    (state, last), ys = scan(body, (state, carry), xs, **options)
    if chooses:
        carries, ys = ys
        last = _last_valid(carry, carries, lengths)
    ys = jax.tree.map(lambda y: jnp.moveaxis(flipped(y, reverse and keep_order), 0, axis), ys)
    return state, last, ys


def _last_valid(initial: Any, carries: Any, lengths: Array) -> Any:
    """The carry after the last valid entry of each sequence; the initial one without any."""

    def chosen(path: Any, before: Any, after: Array) -> Array:
        before = jnp.asarray(before, after.dtype)
        if before.shape[: lengths.ndim] != lengths.shape:
            raise ValueError(
                f"the carry{jax.tree_util.keystr(path)} has shape {list(before.shape)}, expected "
                f"the axes of the batch first, {list(lengths.shape)}: with seq_lengths every "
                "sequence has a last carry of its own."
            )
        index = lengths.reshape(lengths.shape + (1,) * (before.ndim - lengths.ndim))
        found = jnp.take_along_axis(after, jnp.maximum(index - 1, 0)[None], axis=0)[0]
        return jnp.where(index > 0, found, before)

    return jax.tree_util.tree_map_with_path(chosen, initial, carries)


def batch_axes(carry: Any, batch: tuple[int, ...]) -> int:
    """The number of leading axes that all floating leaves of a carry share with the batch."""
    found = len(batch)
    for leaf in jax.tree.leaves(carry):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            while jnp.shape(leaf)[:found] != batch[:found]:
                found -= 1
    return found
