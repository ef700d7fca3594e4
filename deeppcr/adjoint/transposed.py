"""Linear functions for `jax.lax.custom_linear_solve`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.avals import abstract, like
from deeppcr.linear_system import Solve, linear_system
from deeppcr.partition import partition
from deeppcr.state import Leaves, add


def transposed_by(
    rule: Callable[[Leaves], Leaves], t: Leaves, like: Leaves, known: Leaves
) -> Leaves:
    """``R^T t`` for a linear function ``rule: g -> R g``; its own transpose is ``rule`` itself.

    Args:
        rule: from leaves shaped like ``like`` to leaves shaped like ``t``.
        t: the tangents to push forwards.
        like: the shapes and dtypes of the results.
        known: the arrays that the rule depends on, besides its argument.
    """
    shapes = list(map(abstract, like))

    def push(t: Leaves) -> Leaves:
        try:
            found: Leaves = jax.linear_transpose(rule, shapes)(t)[0]
        except Exception:  # a kernel or a while loop, which jax cannot transpose
            found = _push_by_units(rule, t, shapes)
        return found

    # [ I  -R^T ] [ y ]   [ 0 ]
    # [ 0    I  ] [ v ] = [ t ], whose transpose has R in the place of R^T.
    found = lax.custom_linear_solve(
        *tangent_system(
            lambda y, v: push(v),
            lambda _, right: (add(right[0], push(right[1])), right[1]),
            lambda _, right: (right[0], add(right[1], rule(right[0]))),
            ([jnp.zeros(y.shape, y.dtype) for y in shapes], t),
            known,
        )
    )
    pushed: Leaves = linear_in(found[0], found)
    return pushed


def tangent_system(
    pushed: Callable[[Leaves, Any], Leaves],
    solve: Solve,
    transpose_solve: Solve | None,
    right: tuple[Leaves, Any],
    known: Any,
) -> tuple[Any, ...]:
    """The arguments for `jax.lax.custom_linear_solve` of ``t - pushed(t, v) = 0`` for given ``v``.

    With them ``t`` is differentiable to every order.

    Args:
        pushed: linear in both.
        solve: ``_, (b, v) -> (t, v)`` of ``t - pushed(t, v) = b``.
        transpose_solve: its transpose; None if there is none.
        right: zeros, shaped like ``t``, and ``v``.
        known: the arrays that these functions depend on.
    """

    def system(unknown: Any) -> Any:
        t, v = unknown
        left = [a - b for a, b in zip(t, pushed(t, v), strict=True)]
        # Second derivatives need a system that depends on all that its solution depends on.
        one = 1 + lax.pad(_nothing_of(known), np.float32(0), [(0, 1, 0)])[0]
        return jax.tree.map(lambda leaf: leaf * one.astype(leaf.dtype), (left, v))

    return linear_system(system, linear_in(right, right), solve, transpose_solve)


def _push_by_units(rule: Callable[[Leaves], Leaves], t: Leaves, shapes: Leaves) -> Leaves:
    """``R^T t``, entry by entry: the product of ``t`` with R applied to a unit vector."""
    results = []
    for index, shape in enumerate(shapes):

        def entry(unit: Array, index: int = index, shape: Any = shape) -> Array:
            units = [like(jnp.zeros(other.shape, other.dtype), other) for other in shapes]
            units[index] = like(unit.reshape(shape.shape), shape)
            products = [
                jnp.vdot(a.conj(), b, precision="highest")
                for a, b in zip(rule(units), t, strict=True)
            ]
            return sum(products[1:], products[0]).astype(shape.dtype)

        size = int(np.prod(shape.shape))
        results.append(lax.map(entry, jnp.eye(size, dtype=shape.dtype)).reshape(shape.shape))
    return results


def moving(leaves: Leaves, tangents: Sequence[Any]) -> tuple[list[bool], Leaves]:
    """Which leaves have tangents, as jax passes them to a rule, and these."""
    mask = [
        not isinstance(t, SymbolicZero | ad.Zero) and getattr(t, "dtype", None) != jax.dtypes.float0
        for t in tangents
    ]
    pairs = zip(partition(leaves, mask), partition(tangents, mask), strict=True)
    # Under jit a tangent may be a number, or weakly typed.
    return mask, [jnp.asarray(t, x.dtype) for x, t in pairs]


def linear_in(tree: Any, others: Any) -> Any:
    """The same leaves, each a linear function of all ``others``, too, at no cost.

    `jax.lax.custom_linear_solve` transposes only if every right-hand side is linear in the
    tangents. The right-hand sides of its transpose are the cotangents of its solution. So both
    depend on all, and it can be transposed any number of times.
    """
    nothing = _nothing_of(others)
    return jax.tree.map(lambda leaf: leaf + _zeros_of(nothing, leaf), tree)


def _nothing_of(tree: Any) -> Array:
    """An array without entries that depends on every floating leaf."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.concatenate([leaf.reshape(-1)[:0].real.astype(np.float32) for leaf in leaves])


def _zeros_of(nothing: Array, like: Any) -> Array:
    """Zeros, shaped like ``like``, that depend on ``nothing``."""
    zero = jnp.zeros((), like.dtype)
    return lax.pad(nothing.astype(like.dtype), zero, [(0, like.size, 0)]).reshape(like.shape)
