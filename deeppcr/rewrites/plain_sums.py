"""Sums over steps, without the axes of size 1 that they keep.

The gradient of a shared array is a sum over steps. If the state has a batch axis of size 1, this is
a sum over the first axis of ``[L, 1, w]``. On a CPU, XLA computes such a sum of a product by scalar
code; a sum over the first axis of ``[L, w]`` is vector code.
"""

# jax 0.10.2, 2 cores: 14 times faster for L = 16384, w = 32.

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax

from deeppcr.rewrites.cut_first import apply
from depth.jaxprs import rewritten


def with_plain_sums(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, a function of arrays, with its sums over arrays without axes of size 1."""

    def g(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        results = apply(closed, jax.tree.leaves(arguments), _plain)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return g


def _plain(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The result of a sum that keeps axes of size 1, or of a call of a function with such a sum.

    Else None.
    """
    if not _is_odd(equation):
        return rewritten(equation, operands, partial(apply, replace=_plain), _is_odd)
    (x,), axes = operands, equation.params["axes"]
    ones = [axis for axis in range(x.ndim) if axis not in axes and x.shape[axis] == 1]
    left = [axis for axis in range(x.ndim) if axis not in ones]
    total = lax.reduce_sum(lax.squeeze(x, ones), [left.index(axis) for axis in axes])
    return [total.reshape(equation.outvars[0].aval.shape)]


def _is_odd(equation: Any) -> bool:
    if equation.primitive.name != "reduce_sum":
        return False
    shape, axes = equation.invars[0].aval.shape, equation.params["axes"]
    return bool(axes) and any(size == 1 for axis, size in enumerate(shape) if axis not in axes)
