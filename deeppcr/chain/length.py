"""The length of a chain, from what a user gave."""

import operator
from typing import Any

import jax
import numpy as np
from jax import export

from deeppcr.checks import describe, no_array


def chain_length(inputs: Any, length: int | None, name: str) -> int:
    """L, from the arrays in ``inputs`` and from ``length``, which must agree."""
    if length is not None and not export.is_symbolic_dim(length):
        try:
            length = operator.index(length)
        except TypeError:
            raise TypeError(
                f"length is {describe(length)}, expected an integer that is known before tracing."
            ) from None
        if length < 0:
            raise ValueError(f"length is {length}, expected 0 or more.")
    lengths: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
        where, shape = name + jax.tree_util.keystr(path), np.shape(leaf)
        kind = getattr(getattr(leaf, "dtype", None), "kind", "")
        if isinstance(leaf, str | bytes) or kind in tuple("OSUMm"):  # strings, objects, dates
            expected = "an array of numbers with one entry per step on axis 0"
            raise no_array(where, leaf, expected)
        if not shape:
            what = "a scalar" if np.isscalar(leaf) or hasattr(leaf, "shape") else describe(leaf)
            is_list = isinstance(inputs, list | tuple) and all(map(np.isscalar, inputs))
            raise ValueError(
                f"{where} is {what}, "
                "expected an array with one entry per step on axis 0"
                + (f": jnp.asarray({name}) is one." if is_list else ".")
            )
        lengths[where] = shape[0]
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{leaf}: {n}" for leaf, n in lengths.items())
        raise ValueError(
            f"the leaves of {name} differ in length along axis 0: {shown}; "
            "expected one entry per step in each."
        )
    if lengths:
        (of_arrays,) = set(lengths.values())
        if length is not None and length != of_arrays:
            raise ValueError(
                f"length is {length}, but {name} has {of_arrays} entries along axis 0."
            )
        return of_arrays
    if length is None:
        raise ValueError(f"{name} has no arrays, so length is needed: the number of steps.")
    return length
