"""Tangents and cotangents of functions, and functions that are the transpose of a given one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.partition import partition
from deeppcr.arrays.state import Leaves, add
from deeppcr.linear.linear_map import LinearMap, solved


def transposed_by(
    rule: Callable[[Leaves, Leaves], Leaves], t: Leaves, like: Leaves, known: Leaves
) -> Leaves:
    """``R^T t`` for a linear function ``rule: g -> R g``; its own transpose is ``rule`` itself.

    Args:
        rule: ``(known, g) -> R g``, from leaves shaped like ``like`` to leaves shaped like ``t``.
        t: the tangents to push forwards.
        like: the shapes and dtypes of the results.
        known: the arrays that the rule depends on, besides ``g``.
    """
    shapes = list(map(abstract, like))

    def product(known: Leaves, x: tuple[Leaves, Leaves]) -> Leaves:
        found: Leaves = jax.linear_transpose(partial(rule, known), shapes)(x[1])[0]
        return found

    transposed = LinearMap(
        lambda known, x: add(x[0], product(known, x)),
        lambda known, g: (g, rule(known, g)),
        product,
    )
    zeros = [jnp.zeros(y.shape, y.dtype) for y in shapes]
    pushed: Leaves = solved(transposed, known, (zeros, t))
    return pushed


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
