"""Whether a step returns a state like the one that it takes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.arrays.avals import abstract, varying_axes
from deeppcr.checks import describe


def check_same_structure(before: Any, after: Any) -> None:
    """Raise unless the step returns a state of the structure that it takes."""
    old: Any = jax.tree.structure(before)
    new: Any = jax.tree.structure(after)
    if old != new:
        raise TypeError(
            f"the step changes the structure of the state: it takes {old} and returns {new}; "
            "expected the same structure. A step that returns (carry, y) is one for deeppcr.scan."
        )


def check_same_state(before: Any, returned: Sequence[Any]) -> None:
    """Raise unless the ``returned`` leaves have the shapes and dtypes of the state ``before``.

    Weakly typed ones may have less than these dtypes.
    """
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(before), returned, strict=True):
        name = f"state{jax.tree_util.keystr(path)}"
        if a.shape != b.shape or not _fits(a, b):
            remedy = f" Give the initial state dtype {b.dtype}, or cast what the step returns."
            raise TypeError(
                f"the step changes {name} from {describe(a)} "
                f"to {describe(b)}; expected the same shape and dtype at every step."
                + (remedy if a.shape == b.shape else "")
            )
        _check_varies(name, a, b)


def with_type_of(before: Any, after: Any) -> Any:
    """The leaf ``after`` in the dtype of ``before``, not weakly typed; unchanged ones remain so."""
    is_same = before.dtype == after.dtype and not is_weak(after)
    if after is before or is_same or not _fits(before, after):
        return after
    return after.astype(before.dtype)


def _fits(before: Any, after: Any) -> bool:
    return before.dtype == after.dtype or (is_weak(after) and _rank(after) <= _rank(before))


def _check_varies(name: str, before: Any, after: Any) -> None:
    """Raise unless two arrays vary over the same axes of `jax.shard_map`."""
    old, new = varying_axes(before), varying_axes(after)
    if old == new:
        return
    shown = [", ".join(map(repr, sorted(axes))) or "none" for axes in (old, new)]
    cast = f"jax.lax.pcast(..., {tuple(sorted(old ^ new))}, to='varying')"
    target = "what the step returns" if old - new else "the initial state"
    raise TypeError(
        f"the step changes over which axes of jax.shard_map {name} varies, "
        f"{describe(before)}: over {shown[0]} before, over {shown[1]} after it; expected the same "
        f"axes at every step. Apply {cast} to this part of {target}."
    )


def promote(before: Any, after: Any) -> Any:
    """A leaf of the state, promoted if it is weakly typed and the step returns a wider dtype."""
    if is_weak(before) and before.dtype != after.dtype and _rank(before) <= _rank(after):
        return abstract(before, dtype=after.dtype)
    return before


def is_weak(x: Any) -> bool:
    """Whether an array is weakly typed, as Python numbers are."""
    return bool(getattr(x, "weak_type", False))  # random keys have none


def with_weak_type(x: Any, weak: bool) -> Any:
    """The array, weakly typed or not."""
    if is_weak(x) == weak:
        return x
    return lax.convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=weak, sharding=None)


def _rank(x: Any) -> int:
    """The rank of the kind of a dtype: lower ranks are promoted to higher ones."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    ranks = [rank for rank, kind in enumerate(kinds) if jnp.issubdtype(x.dtype, kind)]
    return ranks[0] if ranks else -1
