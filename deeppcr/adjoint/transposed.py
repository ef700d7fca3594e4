"""Linear functions for `jax.lax.custom_linear_solve`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.avals import abstract, like
from deeppcr.linear_system import linear_system
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
    def system(unknown: Any) -> Any:
        y, v = unknown
        left = [a - b for a, b in zip(y, push(v), strict=True)], v
        return scaled(left, one_of(known))

    def solve(_: Any, right: Any) -> Any:
        b, v = right
        return add(b, push(v)), v

    def transpose_solve(_: Any, right: Any) -> Any:
        g, by_t = right
        return g, add(by_t, rule(g))

    right = [jnp.zeros(y.shape, y.dtype) for y in shapes], t
    parts = linear_system(system, linear_in(right, right), solve, transpose_solve)
    found = lax.custom_linear_solve(*parts)
    pushed: Leaves = linear_in(found[0], found)
    return pushed


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


def zero_tangent(x: Array) -> Any:
    """The tangent of a result that is not differentiated."""
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def linear_in(tree: Any, others: Any) -> Any:
    """The same leaves, each a linear function of all ``others``, too, at no cost.

    `jax.lax.custom_linear_solve` transposes only if every right-hand side is linear in the
    tangents. The right-hand sides of its transpose are the cotangents of its solution. So both
    depend on all, and it can be transposed any number of times.
    """
    nothing = nothing_of(others)
    return jax.tree.map(lambda leaf: leaf + zeros_of(nothing, leaf), tree)


def nothing_of(tree: Any) -> Array:
    """An array without entries that depends on every floating leaf."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.concatenate([leaf.reshape(-1)[:0].real.astype(np.float32) for leaf in leaves])


def one_of(tree: Any) -> Array:
    """The number 1, as a function of every floating leaf.

    `jax.lax.custom_linear_solve` has second derivatives only if its system depends on everything
    that its solution depends on.
    """
    return 1 + lax.pad(nothing_of(tree), np.float32(0), [(0, 1, 0)])[0]


def scaled(tree: Any, one: Array) -> Any:
    """Every leaf times a number."""
    return jax.tree.map(lambda leaf: leaf * one.astype(leaf.dtype), tree)


def zeros_of(nothing: Array, like: Any) -> Array:
    """Zeros, shaped like ``like``, that depend on ``nothing``."""
    zero = jnp.zeros((), like.dtype)
    return lax.pad(nothing.astype(like.dtype), zero, [(0, like.size, 0)]).reshape(like.shape)
