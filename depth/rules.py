"""What one equation costs: every primitive has a class, and a class says depth, work and how the equation runs.

The depth rules are those published by google-deepmind/serial_depth: inputs and constants 0, moving data 0, elementwise 1, a
reduction or a cumulative operation over N elements ceil(log2 N), a product with K contracted elements 1 + ceil(log2 K).
What those leave open follows by analogy and is said here, class by class.  Casts and iota count 1, a select among n choices
ceil(log2 n).  An axis of size 0 or 1 needs no reduction; an elementwise operation counts 1 whatever its size.

Work is the number of arithmetic operations: one for each element of an elementwise result, two for each product and addition
of a contraction, one for each combination of a reduction.  Operations that `control` enters (loops, branches, calls) are not
listed here.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

Count = Callable[[Any], int]


class Rule(NamedTuple):
    """The class of a primitive: its depth and work as functions of the equation."""

    kind: str
    depth: Count
    work: Count
    bound: str = ""  # why the depth is a lower bound only; "" where it is exact


def ceil_log2(n: int) -> int:
    """The depth of a balanced tree over ``n`` leaves: ceil(log2 n), and 0 for no leaf and for one."""
    return max(int(n) - 1, 0).bit_length()


def shape(atom: Any) -> tuple[int, ...]:
    """The shape of an operand or a result; () for what has none, as a token."""
    return tuple(getattr(atom.aval, "shape", ()))


def size(atom: Any) -> int:
    """The number of elements of an operand or a result."""
    return prod(shape(atom))


def nbytes(atom: Any) -> int:
    """The bytes of an operand or a result; 0 for what holds no data."""
    dtype = getattr(atom.aval, "dtype", None)
    return size(atom) * getattr(dtype, "itemsize", 0)


def traffic(equation: Any) -> int:
    """The bytes of all operands and results, each once."""
    return sum(map(nbytes, equation.invars)) + sum(map(nbytes, equation.outvars))


def results(equation: Any) -> int:
    """The elements of the largest result."""
    return max(map(size, equation.outvars), default=0)


def elements(equation: Any) -> int:
    """The elements of the largest operand or result."""
    return max(map(size, (*equation.invars, *equation.outvars)), default=0)


def constant(value: int) -> Count:
    """The same for every equation."""
    return lambda equation: value


# -- reductions -----------------------------------------------------------------------------------------------------------------


def reduced(equation: Any) -> int:
    """How many elements each element of the result is reduced from."""
    axes = equation.params.get("axes", equation.params.get("dimensions"))
    return prod(shape(equation.invars[0])[axis] for axis in axes)


def _reduction_work(equation: Any) -> int:
    operand, result = equation.invars[0], equation.outvars[0]
    return max(size(operand) - size(result), 0)


def _along(equation: Any) -> int:
    """The length of the one axis that the primitive works along; the last where it does not name it."""
    params = equation.params
    axis = next(
        (
            params[name]
            for name in ("axis", "dimension", "reduction_dimension", "operand_axis")
            if name in params
        ),
        -1,
    )
    extent = shape(equation.invars[0])
    return extent[axis] if extent else 1


def window(equation: Any) -> int:
    """The elements of a window."""
    return prod(equation.params["window_dimensions"])


def overlap(equation: Any) -> int:
    """How many windows an element can lie in."""
    sizes, strides = equation.params["window_dimensions"], equation.params["window_strides"]
    return prod(-(-width // stride) for width, stride in zip(sizes, strides, strict=True))


def _collisions(equation: Any) -> int:
    """How many updates, with the operand's own element, can fall on one element of a scatter's result."""
    if equation.params.get("unique_indices"):
        return 2
    return prod(shape(equation.invars[1])[:-1]) + 1


# -- products -------------------------------------------------------------------------------------------------------------------


def _contracted(equation: Any) -> int:
    (axes, _), _ = equation.params["dimension_numbers"]
    return prod(shape(equation.invars[0])[axis] for axis in axes)


def _ragged(equation: Any) -> int:
    (axes, _), _ = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return prod(shape(equation.invars[0])[axis] for axis in axes)


def _convolved(equation: Any) -> int:
    """The elements of the kernel that make one element of the result."""
    kernel = shape(equation.invars[1])
    return prod(kernel[axis] for axis in equation.params["dimension_numbers"].rhs_spec[1:])


def _transformed(equation: Any) -> int:
    return prod(equation.params["fft_lengths"])


def _order(equation: Any) -> int:
    """The order n of the last matrix axis of the first operand."""
    return shape(equation.invars[0])[-1]


def _systems(equation: Any) -> int:
    return prod(shape(equation.invars[0])[:-2])


def _columns(equation: Any) -> int:
    """The number of columns that are eliminated one after another."""
    return min(shape(equation.invars[0])[-2:])


def _matrix_work(factor: int) -> Count:
    """``factor`` times m n min(m, n) for each matrix."""
    return lambda equation: (
        factor * size(equation.invars[0]) * min(shape(equation.invars[0])[-2:], default=1)
    )


# -- collectives ----------------------------------------------------------------------------------------------------------------


def _axes(equation: Any) -> Iterator[Any]:
    """What a collective reduces over: names of axes, and, inside a vmap, positions."""
    names = next(
        (
            equation.params[name]
            for name in ("axes", "axis_name", "axis_names")
            if name in equation.params
        ),
        (),
    )
    yield from names if isinstance(names, (tuple, list)) else (names,)


class Unbound(Exception):
    """A collective over an axis whose size is not known."""


def devices(equation: Any, axis_sizes: dict[str, int]) -> int:
    """The number of devices, and of elements of each, that a collective reduces over."""
    if groups := equation.params.get("axis_index_groups"):
        return len(groups[0])
    if isinstance(equation.params.get("axis_size"), int):
        return equation.params["axis_size"]
    if unbound := [
        axis for axis in _axes(equation) if not isinstance(axis, int) and axis not in axis_sizes
    ]:
        raise Unbound(f"the size of axis {unbound[0]!r} is not known here")
    extent = shape(equation.invars[0])
    return prod(
        extent[axis] if isinstance(axis, int) else axis_sizes[axis] for axis in _axes(equation)
    )


# -- the table ------------------------------------------------------------------------------------------------------------------

RULES: dict[str, Rule] = {}


def classify(names: str, kind: str, depth: Count, work: Count, bound: str = "") -> None:
    """Give all primitives in ``names``, separated by blanks, one rule. A name can have one class only."""
    for name in names.split():
        if name in RULES:
            raise ValueError(f"the primitive {name!r} has a class already: {RULES[name].kind}")
        RULES[name] = Rule(kind, depth, work, bound)


classify(
    """
    after_all all_gather all_gather_done all_gather_invariant all_gather_reduced all_gather_reduced_start all_gather_start
    all_to_all all_to_all_done all_to_all_start axis_index bcoo_extract bcoo_fromdense bcoo_todense bcoo_transpose bcsr_extract
    bcsr_fromdense bcsr_todense bitcast_convert_type broadcast_in_dim broadcast_to concatenate coo_fromdense coo_todense copy
    create_linear create_token csr_fromdense csr_todense custom_lin dce_sink device_put dim_as_value dimension_size
    dynamic_slice dynamic_update_slice empty empty2 from_edtype gather get_global global_array_to_host_local_array
    host_local_array_to_global_array inspect_sharding iota_2x32_shape layout_constraint lu_pivots_to_permutation masked_load
    multiple_of name num_programs optimization_barrier pad pbroadcast pbroadcast_done pbroadcast_dynamic pbroadcast_start pin
    platform_index ppermute ppermute_done ppermute_start precv preduced program_id program_order psend psum_done pvary
    ragged_all_to_all random_clone random_unwrap random_wrap reduce_scatter_done reduced_vary_cast reduced_vary_cast_p relayout
    reshape reshard rev scatter shard_alike sharding_constraint slice split squeeze stack stop_gradient tie tile to_edtype
    todense transpose unpin unreachable unstack vary_unreduced_cast vary_unreduced_cast_p with_memory_space_constraint
    xla_metadata_value zeros_like
    """,
    "move",
    constant(0),
    constant(0),
)
classify(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex conj
    convert_element_type cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a
    igammac imag integer_pow iota is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne neg
    nextafter not one_minus_square or polygamma polynomial population_count pow real reciprocal reduce_precision
    regularized_incomplete_beta rem round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt
    square sub tan tanh xor zeta
    """,
    "elementwise",
    constant(1),
    results,
)
# A generator of random bits is taken as one elementwise operation on a counter.
classify(
    """
    philox2x32 philox4x32 random_bits random_fold_in random_seed random_split rng_bit_generator rng_uniform threefry2x32
    threefry4x32
    """,
    "random",
    constant(1),
    results,
)
classify("select_n", "elementwise", lambda equation: ceil_log2(len(equation.invars) - 1), results)
classify(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor",
    "reduction",
    lambda equation: ceil_log2(reduced(equation)),
    _reduction_work,
)
classify(
    "cumlogsumexp cummax cummin cumprod cumsum",
    "scan",
    lambda equation: ceil_log2(_along(equation)),
    results,
)
classify(
    "reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add",
    "window",
    lambda equation: ceil_log2(window(equation)),
    lambda equation: results(equation) * max(window(equation) - 1, 0),
)
# The element of each window is selected, then what falls on one element is added up.
classify(
    "select_and_scatter_add",
    "window",
    lambda equation: ceil_log2(window(equation)) + ceil_log2(overlap(equation)),
    lambda equation: size(equation.invars[0]) * window(equation),
)
# All updates could fall on one element: a reduction over them and the operand's own.
classify(
    "scatter-add scatter-max scatter-min scatter-mul scatter-sub",
    "scatter",
    lambda equation: ceil_log2(_collisions(equation)),
    lambda equation: size(equation.invars[-1]),
)
# As the selection of the k largest, sorting is taken as a tree over the axis.
classify(
    "approx_top_k sort top_k",
    "sort",
    lambda equation: ceil_log2(_along(equation)),
    lambda equation: size(equation.invars[0]) * ceil_log2(_along(equation)),
)


def contraction(name: str, contracted: Count) -> None:
    """Classify a product by how many elements each element of its result is contracted from."""
    classify(
        name,
        "product",
        lambda equation: 1 + ceil_log2(contracted(equation)),
        lambda equation: 2 * results(equation) * contracted(equation),
    )


contraction("dot_general", _contracted)
contraction("ragged_dot_general", _ragged)
contraction("conv_general_dilated", _convolved)
# One product of each element with its root of unity, then a sum over the transformed elements.
classify(
    "fft",
    "product",
    lambda equation: 1 + ceil_log2(_transformed(equation)),
    lambda equation: 5 * elements(equation) * ceil_log2(_transformed(equation)),
)
# Textbook elimination, one column after another.  Cholesky: root, division, product and subtraction for each column, of which
# the last needs the root only.  LU: the pivot's search, division, product and subtraction.  A triangular solve: product,
# subtraction and division for each row.  Thomas' algorithm: six operations for each row, forwards and back.
classify(
    "cholesky", "factorization", lambda equation: max(4 * _order(equation) - 3, 0), _matrix_work(1)
)
classify(
    "cholesky_update",
    "factorization",
    lambda equation: 6 * _order(equation),
    lambda equation: 6 * elements(equation),
)
classify(
    "lu",
    "factorization",
    lambda equation: sum(
        ceil_log2(shape(equation.invars[0])[-2] - k) + 3 for k in range(_columns(equation))
    ),
    _matrix_work(1),
)
classify(
    "triangular_solve",
    "factorization",
    lambda equation: max(3 * _order(equation) - 2, 0),
    lambda equation: size(equation.invars[1]) * _order(equation),
)
classify(
    "tridiagonal_solve",
    "factorization",
    lambda equation: 6 * _order(equation),
    lambda equation: 8 * elements(equation),
)
# Householder reflections, one column after another: the norm (product, sum, root), the scale of the reflector (two), and its
# application (product with the sum over the rows, product, subtraction).
classify(
    "geqp3 geqrf hessenberg householder_product ormqr qr tridiagonal",
    "factorization",
    lambda equation: sum(
        2 * ceil_log2(shape(equation.invars[0])[-2] - k) + 7 for k in range(_columns(equation))
    ),
    _matrix_work(2),
)
classify(
    "psum psum_invariant psum_invariant_start psum_start unreduced_psum unreduced_psum_start pmax pmin unreduced_pmax "
    "unreduced_pmin reduce_scatter reduce_scatter_start unreduced_reduce_scatter unreduced_reduce_scatter_start",
    "collective",
    constant(0),  # with ceil(log2 devices), which the reader adds: it knows the sizes of the axes
    lambda equation: size(equation.invars[0]),
)


def _whole_matrix(equation: Any) -> int:
    """A result that depends on every element of a matrix needs at least a tree over them; others of a batch are beside it."""
    return ceil_log2(prod(shape(equation.invars[0])[-2:]))


classify(
    "eig eigh schur svd",
    "opaque",
    _whole_matrix,
    _matrix_work(9),
    bound="iterates until it converges; counted as one reduction over the matrix",
)
classify(
    "random_gamma",
    "opaque",
    constant(1),
    results,
    bound="rejection sampling: draws as often as it must; counted once",
)
classify(
    """
    bcoo_dot_general bcoo_dot_general_sampled bcoo_sort_indices bcoo_spdot_general bcoo_sum_duplicates bcsr_dot_general
    coo_matmat coo_matvec coo_spmm coo_spmv csr_matmat csr_matvec csr_spmm csr_spmv spsolve
    """,
    "opaque",
    constant(1),
    results,
    bound="sparse: its depth depends on where the entries are; counted as one operation",
)
classify(
    """
    cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd
    dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper
    dot_product_attention_fwd dot_product_attention_fwd_wrapper rnn_bwd rnn_fwd scaled_dot scaled_matmul
    scaled_matmul_wrapper symmetric_product
    """,
    "opaque",
    constant(1),
    results,
    bound="a vendor's kernel, whose inside is not visible; counted as one operation",
)
classify(
    "buffer_callback call_exported ffi_call io_callback mpmd_map pure_callback",
    "opaque",
    constant(1),
    constant(0),
    bound="leaves the program; counted as one operation",
)
# Without results there is nothing for an output to wait for.
classify(
    "check debug_callback debug_print delay free_ref log_extend log_read semaphore_read semaphore_signal semaphore_wait "
    "shape_assertion",
    "effect",
    constant(0),
    constant(0),
)
