"""Tangents and cotangents of functions."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.arrays.partition import partition
from deeppcr.arrays.state import Leaves


def pullback(f: Callable[..., Leaves], *primals: Leaves) -> Callable[[Leaves], tuple[Leaves, ...]]:
    """``lam -> J^T lam`` for the derivative J of ``f``, a part for each of the primals.

    `jax.vjp`, which linearises equation by equation, takes twice as long to trace (jax 0.10, 0.12).
    """
    return jax.linear_transpose(lambda *t: jax.jvp(f, primals, t)[1], *primals)


def moving(leaves: Leaves, tangents: Sequence[Any]) -> tuple[list[bool], Leaves]:
    """Which leaves have tangents, as jax passes them to a rule, and these."""
    mask = [
        not isinstance(t, SymbolicZero | ad.Zero) and getattr(t, "dtype", None) != jax.dtypes.float0
        for t in tangents
    ]
    pairs = zip(partition(leaves, mask), partition(tangents, mask), strict=True)
    # Under jit a tangent may be a number, or weakly typed.
    return mask, [jnp.asarray(t, x.dtype) for x, t in pairs]
