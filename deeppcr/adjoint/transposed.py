"""A linear function that is the transpose of a given one."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from deeppcr.arrays.avals import abstract, like
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
        own = lambda g: rule(known, g)  # noqa: E731
        try:
            found: Leaves = jax.linear_transpose(own, shapes)(x[1])[0]
        except Exception:  # a kernel or a while loop, which jax cannot transpose
            found = _push_by_units(own, x[1], shapes)
        return found

    transposed = LinearMap(
        lambda known, x: add(x[0], product(known, x)),
        lambda known, g: (g, rule(known, g)),
        product,
    )
    zeros = [jnp.zeros(y.shape, y.dtype) for y in shapes]
    pushed: Leaves = solved(transposed, known, (zeros, t))
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


def moving(leaves: Leaves, tangents: Sequence[Any]) -> tuple[list[bool], Leaves]:
    """Which leaves have tangents, as jax passes them to a rule, and these."""
    mask = [
        not isinstance(t, SymbolicZero | ad.Zero) and getattr(t, "dtype", None) != jax.dtypes.float0
        for t in tangents
    ]
    pairs = zip(partition(leaves, mask), partition(tangents, mask), strict=True)
    # Under jit a tangent may be a number, or weakly typed.
    return mask, [jnp.asarray(t, x.dtype) for x, t in pairs]
