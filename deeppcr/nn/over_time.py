"""A cell over a sequence: what the layers of `flax.nnx` and of `flax.linen` have in common."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.linen.recurrent import flip_sequences
from jax import Array

from deeppcr import scan
from deeppcr.extend import describe

LAYER_OPTIONS = ("return_carry", "time_major", "reverse", "keep_order")


def recur(
    layer: Any,
    options: dict[str, Any],
    inputs: Any,
    carry: Any,
    first: Callable[[tuple[int, ...]], Any],
    lengths: Any,
    step: Callable[[Any, Any], tuple[Any, Any]],
    state: Any,
    couples: bool = False,
) -> tuple[Any, Any]:
    """Apply ``step((state, carry), x) -> ((state, carry), y)`` at every time.

    Args:
        layer: with a ``cell``, the `LAYER_OPTIONS`, and ``unroll``, ``method`` and ``adjoint``.
        options: the `LAYER_OPTIONS` of this call; None for those of the layer.
        inputs: ``[*batch, time, *features]``, or ``time`` first.
        carry: the initial carry ``[*batch, ...]``; None for ``first``.
        first: a function that makes it, of the shape of the inputs at one time.
        lengths: integers ``[*batch]``; None if every sequence is as long as the inputs.
        step: the cell.
        state: what else it carries: the variables of a module.
        couples: whether the state couples the examples of a batch.

    Returns:
        the state in the end, and the outputs: with ``return_carry`` the last carry and these.
    """
    if unknown := options.keys() - set(LAYER_OPTIONS):
        raise TypeError(
            f"{min(unknown)} is no argument; expected one of {', '.join(LAYER_OPTIONS)}."
        )

    def option(name: str) -> Any:
        value = options.get(name)
        return getattr(layer, name) if value is None else value

    return_carry = option("return_carry")
    reverse = option("reverse")
    restores = reverse and option("keep_order")
    shape = list(jnp.shape(inputs))
    features = layer.cell.num_feature_axes
    if len(shape) < features + 1:
        axes = "one axis" if features == 1 else f"{features} axes"
        raise ValueError(
            f"inputs has shape {shape}, expected an axis of time besides {axes} of features."
        )
    is_known = type(layer.cell).__module__.startswith(("flax.", "deeppcr."))
    width = getattr(layer.cell, "in_features", None) if is_known else None
    if width not in (None, shape[-1]):
        raise ValueError(f"inputs has shape {shape}, expected {width} features.")
    axis = 0 if option("time_major") else len(shape) - features - 1
    del shape[axis]
    batch = tuple(shape[: len(shape) - features])
    if lengths is not None:
        lengths = jnp.asarray(lengths)
        if lengths.shape != batch or not jnp.issubdtype(lengths.dtype, jnp.integer):
            raise ValueError(
                f"seq_lengths is {describe(lengths)}, expected integers of the shape of the "
                f"batch, {list(batch)}: the length of each sequence."
            )
        lengths = lengths.astype(int)
    chooses = return_carry and lengths is not None
    carry = first(tuple(shape)) if carry is None else carry

    def flipped(x: Array, wanted: bool) -> Array:
        return flip_sequences(x, lengths, len(batch), True) if wanted else x

    def body(before: Any, x: Any) -> tuple[Any, Any]:
        after, y = step(before, x)
        return after, (after[1], y) if chooses else y

    xs = flipped(jnp.moveaxis(jnp.asarray(inputs), axis, 0), reverse)
    (state, last), ys = scan(
        body,
        (state, carry),
        xs,
        unroll=layer.unroll,
        method=layer.method,
        adjoint=layer.adjoint,
        batch_ndim=0 if couples else _batch_axes(carry, batch),
    )
    if chooses:
        carries, ys = ys
        last = _last_valid(carry, carries, lengths)
    ys = jax.tree.map(lambda y: jnp.moveaxis(flipped(y, restores), 0, axis), ys)
    return state, (last, ys) if return_carry else ys


def _last_valid(initial: Any, carries: Any, lengths: Array) -> Any:
    """The carry after the last valid entry of each sequence; the initial one without any."""

    def of_leaf(path: Any, before: Any, after: Array) -> Array:
        before = jnp.asarray(before, after.dtype)
        if before.shape[: lengths.ndim] != lengths.shape:
            raise ValueError(
                f"the carry{jax.tree_util.keystr(path)} has shape {list(before.shape)}, expected "
                f"the axes of the batch first, {list(lengths.shape)}: with seq_lengths every "
                "sequence has a last carry of its own."
            )
        index = lengths.reshape(lengths.shape + (1,) * (before.ndim - lengths.ndim))
        last = jnp.take_along_axis(after, jnp.maximum(index - 1, 0)[None], axis=0)[0]
        return jnp.where(index > 0, last, before)

    return jax.tree_util.tree_map_with_path(of_leaf, initial, carries)


def _batch_axes(carry: Any, batch: tuple[int, ...]) -> int:
    """The number of leading axes that all floating leaves of a carry share with the batch."""
    count = len(batch)
    for leaf in jax.tree.leaves(carry):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            while jnp.shape(leaf)[:count] != batch[:count]:
                count -= 1
    return count
