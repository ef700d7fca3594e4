"""Convolutions whose filters differ from step to step, as products of patches.

All steps are evaluated at once by `jax.vmap`. It turns a convolution with a filter for each step
into one convolution with a feature group for each step, for which XLA has no fast code on CPUs. The
entries under each position of the filter, side by side, are the patches of the image. Their product
with the filter is the convolution, up to rounding, and that of all steps is one batched product.

A filter that all steps share stays in the convolution, which `jax.vmap` gives a larger batch.
"""

# jax 0.10.2, 2 cores, batch 8, all steps: gradients of filters 3 x 4 x 4 are 60 (256 steps) to 150
# times (1024 steps) faster, 360 times for 3 x 3 x 8 x 8 (64 steps), 42 for 31 x 4 x 4, 14 for
# 3 x 3 x 32 x 32 (4 steps); the convolutions themselves 6, 3, 0.6 and 0.9 times.

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.lower.targets import target
from deeppcr.programs.cut_first import apply
from depth.jaxprs import Program, Replacement, called, equations, interpret, rewritten
from depth.primitives import primitive

# Slices up to which patches are cut. Each is compiled by itself: 63 of them for a second.
MOST = 64


def own_filters(program: Program, shared: Collection[Any]) -> frozenset[Any]:
    """The results of convolutions with filters of their own in each step.

    That is, filters that depend on other variables than the ``shared`` ones. Calls are entered.
    """
    found: set[Any] = set()
    if not any(map(_has_patches, equations(program))):
        return frozenset()

    def rule(equation: Any, own: list[bool]) -> list[bool]:
        inner = called(equation) if primitive(equation).inlines else None
        if inner is not None:
            return _labels(inner, own, rule)
        if _has_patches(equation) and own[1]:
            found.add(equation.outvars[0])
        return [any(own)] * len(equation.outvars)

    known = {atom: atom not in shared for atom in (*program.constvars, *program.invars)}
    interpret(program, known, program.outvars, rule, literal=lambda _: False)
    return frozenset(found)


def as_products(results: Collection[Any]) -> Replacement | None:
    """Replaces the convolutions with these ``results``, for `evaluate`; None if there are none."""
    return partial(_product, results=results) if results and not target().launches else None


def _labels(inner: Any, own: Sequence[bool], rule: Callable[..., list[bool]]) -> list[bool]:
    """The labels of the results of a call; constants are shared."""
    program = Program.of(inner)
    known = dict.fromkeys(program.constvars, False) | dict(zip(program.invars, own, strict=True))
    return interpret(program, known, program.outvars, rule, literal=lambda _: False)


def _has_patches(equation: Any) -> bool:
    if equation.primitive.name != "conv_general_dilated":
        return False
    params, (image, filters) = equation.params, (atom.aval for atom in equation.invars)
    slices = sum(filters.shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:])
    is_empty = 0 in (*image.shape, *filters.shape, *equation.outvars[0].aval.shape)
    return params["batch_group_count"] == 1 and slices <= MOST and not is_empty


def _product(equation: Any, operands: list[Any], results: Collection[Any]) -> list[Any] | None:
    def is_wanted(each: Any) -> bool:
        return any(result in results for result in each.outvars)

    if is_wanted(equation):
        return [_of_patches(equation, *operands)]
    return rewritten(
        equation, operands, partial(apply, replace=partial(_product, results=results)), is_wanted
    )


def _of_patches(equation: Any, image: Array, filters: Array) -> Array:
    """The convolution as one product."""
    params, out = equation.params, equation.outvars[0].aval
    lhs, rhs, result = params["dimension_numbers"]
    groups, space = params["feature_group_count"], range(image.ndim - 2)
    image = jnp.transpose(image, (lhs[0], *lhs[2:], lhs[1]))  # [batch, *space, features]
    filters = jnp.transpose(filters, (*rhs[2:], rhs[1], rhs[0]))  # [*window, features, outputs]
    window, sizes = filters.shape[:-2], [out.shape[axis] for axis in result[2:]]
    edges = zip(params["padding"], params["lhs_dilation"], strict=True)
    inside = [(low, high, dilation - 1) for (low, high), dilation in edges]
    image = lax.pad(image, jnp.zeros((), image.dtype), [(0, 0, 0), *inside, (0, 0, 0)])
    for k in space:
        stride, apart = params["window_strides"][k], params["rhs_dilation"][k]
        span = (sizes[k] - 1) * stride + 1
        cuts = [
            lax.slice_in_dim(image, start, start + span, stride, axis=1 + k)
            for start in range(0, window[k] * apart, apart)
        ]
        image = jnp.stack(cuts, axis=1 + len(space) + k)
    # [batch, *space, *window, groups, features] and [*window, features, groups, outputs]
    patches = image.reshape((*image.shape[:-1], groups, -1))
    filters = filters.reshape((*filters.shape[:-1], groups, -1))
    contracted = [1 + len(space) + k for k in space] + [patches.ndim - 1], [*space, len(space)]
    product = lax.dot_general(
        patches,
        filters,
        (contracted, ([patches.ndim - 2], [filters.ndim - 2])),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )  # [groups, batch, *space, outputs]
    product = jnp.moveaxis(product, 0, -2)
    product = product.reshape((*product.shape[:-2], -1))  # [batch, *space, all outputs]
    order = [0] * out.ndim
    for k, axis in enumerate((result[0], *result[2:], result[1])):
        order[axis] = k
    return jnp.transpose(product, order)
