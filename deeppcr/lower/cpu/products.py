"""Products as a CPU runs them fast, in loops and in gradients: rewritings with the same values.

- **Swapped operands.** ``(a b)^T = b^T a^T``. jax writes the gradient of a weight as the transpose
  of a product. XLA computes that product in one order of its axes and copies it into the other,
  which takes as much memory again as the weights of all steps.
- **Matrices transposed before the loop.** XLA's libraries rearrange a matrix in every product with
  few rows whose terms lie along its last axis, as they do in the derivative of ``h @ w``,
  ``d @ w.T``. A large matrix that is the same in all steps is transposed once.
- **Small products as sums.** XLA compiles the body of a loop to a few kernels, and a matrix product
  is always one of its own: for a state of a few entries the calls cost more than the arithmetic,
  and a body with a product is never compiled to one function. ``sum_k a_k * b_k`` is part of the
  operations around it.
- **Products with vectors**, in loops that are one function. For a product of two matrices XLA calls
  a library, which such a loop cannot; for one with a vector it writes plain loops. So a product
  with each row or column of the smaller matrix takes its place. It takes up to twice the time of
  the library, and is written if the loop still gains.
- **Convolutions** whose filters differ from step to step are products of patches.

In the gradients of the arrays of a chain (`plain_gradients`):

- **Sums over steps** are the gradients of shared arrays. If the state has a batch axis of size 1,
  such a sum is over the first axis of ``[L, 1, w]``. Of a product, XLA computes it by scalar code;
  a sum over the first axis of ``[L, w]`` is vector code: 14 times faster for L = 16384, w = 32 (jax
  0.10.2, 2 cores).
- **Outer products.** The gradient of weights of its own that a step has is, for each step, a sum of
  outer products over the examples of a batch: one product for all steps, ``[L, b, n] x [L, b, m] ->
  [L, n, m]``. XLA calls a library for each of its L pieces, however small. Written term by term it
  is one kernel, if the terms are few (`OUTER_PRODUCTS`).
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain, filterfalse
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.lower.cpu import limits
from deeppcr.lower.products import (
    BY_ROWS,
    ENTRY_BY_ENTRY,
    IN_FUNCTION,
    IN_LOOP,
    OUTER_PRODUCTS,
    Sizes,
    as_sum,
    as_sum_in_loop,
    is_real_product,
    is_small,
    products_of,
    sizes_along,
)
from deeppcr.lower.steps import Loop, Operands
from deeppcr.lower.variants import target
from deeppcr.programs.cut_first import CUTS, apply, evaluate, replacing
from deeppcr.programs.dependence import follow
from depth.counts import matrices, other_axes, size
from depth.jaxprs import (
    Program,
    Replacement,
    bind,
    entered,
    equations,
    is_literal,
    names,
    rewritten,
    run,
)

# -- swapped operands ------------------------------------------------------------------------------


def is_transpose(equation: Any) -> bool:
    """Whether an equation is a transpose, which may be that of a product."""
    return str(equation.primitive.name) == "transpose"


def reads_of(program: Any) -> Counter[Any]:
    """How often each variable of a program is read, its results included."""
    atoms = chain(program.outvars, *(equation.invars for equation in program.eqns))
    return Counter(filterfalse(is_literal, atoms))


# jax 0.10.2, 2 cores, the gradient of 256 tanh layers with 128 x 128 weights of their own, batch 1:
# half the time, and no memory besides that of the result.
def swapped(program: Program) -> Program:
    """The same program; its products that nothing but a transpose reads have swapped operands."""
    products = {x.outvars[0]: x for x in products_of(program.eqns)}
    reads = reads_of(program)

    def replaced(equation: Any) -> Any:
        product = products.get(equation.invars[0]) if is_transpose(equation) else None
        is_alone = product is not None and reads[equation.invars[0]] == 1
        return _swapped(product, equation) if is_alone else equation

    return program._replace(eqns=list(map(replaced, program.eqns)))


def _swapped(product: Any, transpose: Any) -> Any:
    """The product of swapped operands; the transpose itself if it moves other axes."""
    contracted, batch = product.params["dimension_numbers"]
    pieces, ends = len(batch[0]), product.outvars[0].aval.ndim
    columns = product.invars[1].aval.ndim - pieces - len(contracted[1])
    middle = ends - columns
    axes = (*range(pieces), *range(middle, ends), *range(pieces, middle))
    precision = product.params["precision"]
    is_plain = precision is None or isinstance(precision, tuple)
    is_sharded = product.params["out_sharding"] is not None
    if tuple(transpose.params["permutation"]) != axes or not is_plain or is_sharded:
        return transpose
    params = product.params | {
        "dimension_numbers": (contracted[::-1], batch[::-1]),
        "precision": precision and precision[::-1],
    }
    return product.replace(invars=product.invars[::-1], outvars=transpose.outvars, params=params)


# -- matrices transposed before the loop -----------------------------------------------------------


# 2 cores, d [B, 4n] @ w.T, n = 64 to 512: jax 0.12.0: 0.33 to 0.5 of the time for B = 4, 0.6 to 0.7
# for 16, 0.9 to 1 for 64; for B = 1 and in narrower products nothing (1.1). jax 0.10.2 is alike.
def transposed_first(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The loop with matrices that stay the same transposed before it."""
    program = loop.program
    values = dict(zip(program.constvars, operands.constants, strict=True))
    products = products_of(program.eqns)
    by_rows = {x.outvars[0]: x.invars[1] for x in products if _reads_rows(x, values)}
    transposed = {matrix: values[matrix].T for matrix in dict.fromkeys(by_rows.values())}
    if not transposed:
        return loop, operands

    def by_columns(equation: Any, operands: list[Any]) -> list[Any] | None:
        if by_rows.keys().isdisjoint(equation.outvars):
            return None
        (axes, _), batch = equation.params["dimension_numbers"]
        params = equation.params | {"dimension_numbers": ((axes, (0,)), batch)}
        return [lax.dot_general_p.bind(operands[0], transposed[equation.invars[1]], **params)]

    rule = partial(bind, replace=by_columns)
    return loop.retraced(operands, partial(run, program, rule=rule))


def _reads_rows(equation: Any, constants: Collection[Any]) -> bool:
    """Whether a product multiplies few rows by the transpose of one of these large matrices."""
    matrix = equation.invars[1]
    if is_literal(matrix) or matrix not in constants or size(matrix) < limits.LARGE_MATRIX:
        return False
    (_, axes), (_, batch) = equation.params["dimension_numbers"]
    is_by_rows = matrix.aval.ndim == 2 and not batch and tuple(axes) == (1,)
    return is_by_rows and matrices(equation)[1] in limits.ROWS_OF_TRANSPOSED


# -- small products as sums ------------------------------------------------------------------------


# jax 0.10.2, 2 cores, a GRU in `jax.lax.scan`: 5.7 times faster for n = 2, 1.5 for 4, 1.2 for 8
# with a batch of 8; 0.9, 1.7, 1.0 alone. Beyond a few thousand multiplications the product wins.
def small_products(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The loop with its small products as sums, and with slices first (`cut_first`)."""
    program = loop.program
    if CUTS.isdisjoint(names(program)) and not any(map(is_small_product, equations(program))):
        return loop, operands
    return loop.retraced(operands, partial(apply, program, replace=write_out))


def is_small_product(equation: Any) -> bool:
    """Whether an equation is a product that `write_out` writes out."""
    if not is_real_product(equation):
        return False
    shape, sizes = equation.outvars[0].aval.shape, Sizes.of(equation)
    row = shape[-1] if shape else 1
    fills_no_vectors = (
        limits.VECTOR_ENTRIES // 2 < row < limits.LONG_ROW and row % limits.VECTOR_ENTRIES
    )
    # XLA writes a loop that LLVM vectorises of a product with one vector, and calls no library.
    is_of_vector = sizes.pieces == 1 and min(sizes.rows, sizes.columns) == 1
    if is_of_vector:
        matrix = int(sizes.rows == 1)
        terms = equation.params["dimension_numbers"][0][matrix]
        if equation.invars[matrix].aval.ndim - 1 in terms:
            return is_small(sizes, BY_ROWS)
    return is_small(sizes, ENTRY_BY_ENTRY if fills_no_vectors or is_of_vector else IN_LOOP)


# For `evaluate`: the results of an equation of a loop body that is or contains a small product.
write_out = replacing(is_small_product, as_sum_in_loop)


# -- products with vectors -------------------------------------------------------------------------


def product(equation: Any, left: Array, right: Array) -> Array:
    """A product, term by term or vector by vector."""
    sizes = Sizes.of(equation)
    if is_small(sizes, IN_FUNCTION):
        return as_sum(equation, left, right)
    if _vectors(sizes) == 1:
        return bind(equation, [left, right])[0]
    ((left_in,), (right_in,)), (left_batch, right_batch) = equation.params["dimension_numbers"]
    a, on_left = _matrix(left, left_in, left_batch)
    b, on_right = _matrix(right, right_in, right_batch)
    options = {name: equation.params[name] for name in ("precision", "preferred_element_type")}

    def dot(a: Array, b: Array, on_left: int, on_right: int) -> Array:
        return lax.dot_general(a, b, (((on_left,), (on_right,)), ((), ())), **options)

    def times(a: Array, b: Array) -> Array:  # [rows, columns]
        if sizes.rows <= sizes.columns:
            return jnp.stack([dot(x, b, 0, on_right) for x in _slices(a, 1 - on_left)])
        return jnp.stack([dot(a, x, on_left, 0) for x in _slices(b, 1 - on_right)], 1)

    products = jnp.stack(list(map(times, a, b))) if left_batch else times(a, b)
    return products.reshape(equation.outvars[0].aval.shape)


def _slices(x: Array, axis: int) -> list[Array]:
    """An array along an axis, one after another."""
    return [lax.index_in_dim(x, k, axis, keepdims=False) for k in range(x.shape[axis])]


def _matrix(x: Array, inner: int, batch: Sequence[int]) -> tuple[Array, int]:
    """A matrix of the free axes and the terms, and the axis of the terms.

    The product of the batch axes is in front, if there are any. Where the terms come first, they
    stay there: XLA would transpose the matrix in every trip.
    """
    free = other_axes(x.ndim, [inner], batch)
    is_first = bool(free) and inner < free[0]
    groups = [[inner], free] if is_first else [free, [inner]]
    if batch:
        groups.insert(0, list(batch))
    shape = [math.prod(sizes_along(x, group)) for group in groups]
    return x.transpose(list(chain(*groups))).reshape(shape), 0 if is_first else 1


def is_possible(equation: Any) -> bool:
    """Whether a loop of one function may have a product, and that of its derivative, and gains."""
    axes = len(equation.params["dimension_numbers"][0][0])
    if not is_real_product(equation) or axes > 1:
        return False
    sizes = Sizes.of(equation)
    if axes == 0 and not is_small(sizes, IN_FUNCTION):  # an outer product
        return False
    if not 0 < sizes.multiplications <= limits.MAX_MULTIPLICATIONS:
        return False
    derivative = sizes._replace(columns=sizes.terms, terms=sizes.columns)
    return _vectors(sizes) == 1 or (_is_of_few(sizes) and _is_of_few(derivative))


def parts(sizes: Sizes) -> int:
    """The terms or the vectors of a product, as it is computed."""
    return sizes.terms if is_small(sizes, IN_FUNCTION) else _vectors(sizes)


def multiplications(sizes: Sizes) -> int:
    """Of a product of matrices; 0 if one is a vector."""
    return sizes.multiplications if _vectors(sizes) > 1 else 0


def _is_of_few(sizes: Sizes) -> bool:
    """Whether a product of matrices is one of few terms or of few, short vectors."""
    if is_small(sizes, IN_FUNCTION):
        return True
    by_rows = sizes.rows <= sizes.columns <= limits.MAX_ROW
    by_columns = sizes.columns <= limits.MAX_COLUMNS and sizes.rows <= limits.MAX_ROWS
    return (by_rows or by_columns) and _vectors(sizes) <= limits.MAX_VECTORS


def _vectors(sizes: Sizes) -> int:
    """The vectors of the smaller matrix of a product; 1 if it is one."""
    return sizes.pieces * min(sizes.rows, sizes.columns)


# -- convolutions ----------------------------------------------------------------------------------


def own_filters(program: Program, shared: Collection[Any]) -> frozenset[Any]:
    """The results of convolutions with filters of their own in each step.

    That is, filters that depend on other variables than the ``shared`` ones. Calls are entered.
    """
    if "conv_general_dilated" not in names(program):
        return frozenset()
    results: set[Any] = set()

    def note(equation: Any, differ: list[int]) -> None:
        if _has_patches(equation) and differ[1]:
            results.add(equation.outvars[0])

    variables = [*program.constvars, *program.invars]
    differ = [x not in shared for x in variables]
    follow(program._replace(constvars=[], invars=variables), differ, note)
    return frozenset(results)


# jax 0.10.2, 2 cores, batch 8, all steps: gradients of filters 3 x 4 x 4 are 60 (256 steps) to 150
# times (1024 steps) faster, 360 times for 3 x 3 x 8 x 8 (64 steps), 42 for 31 x 4 x 4, 14 for
# 3 x 3 x 32 x 32 (4 steps); the convolutions themselves 6, 3, 0.6 and 0.9 times. The patches of
# `jax.lax.conv_general_dilated_patches` take 6 to 20 times as long, as they are a convolution.
def as_products(results: frozenset[Any]) -> Replacement | None:
    """Replaces the convolutions with these ``results``, for `evaluate`; None if there are none."""
    if not results or target().launches:
        return None
    return replacing(lambda equation: not results.isdisjoint(equation.outvars), _of_patches)


def _has_patches(equation: Any) -> bool:
    if equation.primitive.name != "conv_general_dilated":
        return False
    window = equation.params["dimension_numbers"].rhs_spec[2:]
    slices = sum(sizes_along(equation.invars[1].aval, window))
    is_empty = 0 in map(size, (*equation.invars, *equation.outvars))
    return (
        equation.params["batch_group_count"] == 1 and slices <= limits.MAX_SLICES and not is_empty
    )


def _of_patches(equation: Any, image: Array, filters: Array) -> Array:
    """The convolution as one product."""
    params = equation.params
    lhs, rhs, result = params["dimension_numbers"]
    groups, space = params["feature_group_count"], range(image.ndim - 2)
    image = jnp.transpose(image, (lhs[0], *lhs[2:], lhs[1]))  # [batch, *space, features]
    filters = jnp.transpose(filters, (*rhs[2:], rhs[1], rhs[0]))  # [*window, features, outputs]
    window = filters.shape[:-2]
    sizes = sizes_along(equation.outvars[0].aval, result[2:])
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
    return jnp.transpose(product, np.argsort(axes).tolist())


# -- gradients of arrays ---------------------------------------------------------------------------


def plain_gradients(closed: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of a closed program, such as that of `jax.vjp`, rewritten; see this module."""
    program, values = entered(closed, operands)
    program = swapped(program)
    return evaluate(program, values, program.outvars, _replace)


def _replace(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The results of what is rewritten, or of a call of a function that contains it."""
    for is_of_kind, write in REWRITES:
        if is_of_kind(equation):
            return [write(equation, *operands)]
    return rewritten(equation, operands, plain_gradients, _is_rewritten)


def _is_rewritten(equation: Any) -> bool:
    return is_transpose(equation) or any(is_of_kind(equation) for is_of_kind, _ in REWRITES)


def _is_odd_sum(equation: Any) -> bool:
    """Whether an equation is a sum that keeps axes of size 1."""
    is_sum = equation.primitive.name == "reduce_sum" and equation.params["axes"]
    return bool(is_sum and _ones(equation))


def _ones(equation: Any) -> list[int]:
    """The axes of size 1 that a sum keeps."""
    shape = equation.invars[0].aval.shape
    return [axis for axis in other_axes(len(shape), equation.params["axes"]) if shape[axis] == 1]


def _plain_sum(equation: Any, x: Array) -> Array:
    """The result of such a sum of ``x``."""
    ones = _ones(equation)
    rest = other_axes(x.ndim, ones)
    total = lax.reduce_sum(lax.squeeze(x, ones), list(map(rest.index, equation.params["axes"])))
    return total.reshape(equation.outvars[0].aval.shape)


def _is_few_outer_products(equation: Any) -> bool:
    """Whether an equation is a batch of sums of a few outer products."""
    if not is_real_product(equation):
        return False
    (axes, _), _ = equation.params["dimension_numbers"]
    sizes = Sizes.of(equation)
    return len(axes) == 1 and min(sizes.rows, sizes.columns) > 1 and is_small(sizes, OUTER_PRODUCTS)


REWRITES: tuple[tuple[Callable[[Any], bool], Callable[..., Array]], ...] = (
    (_is_odd_sum, _plain_sum),
    (_is_few_outer_products, as_sum),
)
