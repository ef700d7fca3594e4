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

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.lower.cpu import limits
from deeppcr.lower.rewrite import replacing
from deeppcr.lower.targets import target
from depth.jaxprs import Program, Replacement, called, interpret, names
from depth.primitives import primitive


def own_filters(program: Program, shared: Collection[Any]) -> frozenset[Any]:
    """The results of convolutions with filters of their own in each step.

    That is, filters that depend on other variables than the ``shared`` ones. Calls are entered.
    """
    if "conv_general_dilated" not in names(program):
        return frozenset()
    results: set[Any] = set()

    def differ(program: Program, own: Sequence[bool]) -> list[bool]:
        known = program.known(own)
        return interpret(program, known, program.outvars, rule, literal=lambda _: False)

    def rule(equation: Any, own: list[bool]) -> list[bool]:
        inner = called(equation) if primitive(equation).inlines else None
        if inner is not None:
            inside = Program.of(inner)
            return differ(inside, [False] * len(inside.constvars) + own)
        if _has_patches(equation) and own[1]:
            results.add(equation.outvars[0])
        return [any(own)] * len(equation.outvars)

    differ(program, [x not in shared for x in (*program.constvars, *program.invars)])
    return frozenset(results)


def as_products(results: frozenset[Any]) -> Replacement | None:
    """Replaces the convolutions with these ``results``, for `evaluate`; None if there are none."""
    if not results or target().launches:
        return None
    return replacing(lambda equation: not results.isdisjoint(equation.outvars), _of_patches)


def _has_patches(equation: Any) -> bool:
    if equation.primitive.name != "conv_general_dilated":
        return False
    params, (image, filters) = equation.params, (atom.aval for atom in equation.invars)
    slices = sum(filters.shape[axis] for axis in params["dimension_numbers"].rhs_spec[2:])
    is_empty = 0 in (*image.shape, *filters.shape, *equation.outvars[0].aval.shape)
    return params["batch_group_count"] == 1 and slices <= limits.MAX_SLICES and not is_empty


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
    axes = (result[0], *result[2:], result[1])
    return jnp.transpose(product, [axes.index(axis) for axis in range(out.ndim)])
