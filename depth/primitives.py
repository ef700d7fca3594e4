"""The table of primitives: the properties that readers of jaxprs need, entered once for each.

The kind of a primitive determines what its results depend on, so that a reader has one rule for
each kind, and one for each primitive that it treats specially.  A primitive that is not in the
table is `UNKNOWN`: each reader rejects it, or assumes the worst case.

Depth and work follow from the equation.  The depths are those published by
google-deepmind/serial_depth: inputs and constants 0, moving data 0, elementwise 1, a reduction or a
cumulative operation over N elements ceil(log2 N), a product with K contracted elements 1 +
ceil(log2 K).  Other primitives follow by analogy, as stated here for each kind.  Casts and iota
count 1, a select among n cases ceil(log2 n).  An axis of size 0 or 1 needs no reduction; an
elementwise operation counts 1 whatever its size.

Work is the number of arithmetic operations: one for each element of an elementwise result, two for
each product and addition of a contraction, one for each combination of a reduction.  A primitive
that contains programs counts as these do: `depth.reader`.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from depth import counts
from depth.counts import Count, ceil_log2, elements, results, size

Array = NDArray[Any]
Move = Callable[[Any, list[Array]], list[Array]]  # (equation, operands) -> results


def _broadcast(equation: Any, arrays: list[Array]) -> list[Array]:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    spread = arrays[0][tuple(slice(None) if axis in axes else None for axis in range(len(shape)))]
    return [np.broadcast_to(spread, tuple(shape))]


def _reshape(equation: Any, arrays: list[Array]) -> list[Array]:
    order = equation.params.get("dimensions") or range(arrays[0].ndim)
    return [arrays[0].transpose(order).reshape(equation.params["new_sizes"])]


def _slice(equation: Any, arrays: list[Array]) -> list[Array]:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return [arrays[0][tuple(map(slice, starts, limits, strides))]]


def _pad(equation: Any, arrays: list[Array]) -> list[Array]:
    operand, value = arrays
    shape = equation.outvars[0].aval.shape
    result = np.full(shape, value)
    sources, targets = [], []
    padding = zip(operand.shape, shape, equation.params["padding_config"], strict=True)
    for count, limit, (low, _, between) in padding:
        index = low + np.arange(count) * (between + 1)
        source = np.flatnonzero((index >= 0) & (index < limit))  # negative padding cuts off
        sources.append(source)
        targets.append(index[source])
    result[np.ix_(*targets)] = operand[np.ix_(*sources)]
    return [result]


SAME = """
copy stop_gradient name optimization_barrier pvary device_put layout_constraint reshard
sharding_constraint with_memory_space_constraint
"""
MOVES: dict[str, Move] = dict.fromkeys(SAME.split(), lambda _, x: x) | {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "slice": _slice,
    "pad": _pad,
    "squeeze": lambda e, x: [x[0].squeeze(tuple(e.params["dimensions"]))],
    "transpose": lambda e, x: [x[0].transpose(e.params["permutation"])],
    "rev": lambda e, x: [np.flip(x[0], tuple(e.params["dimensions"]))],
    "split": lambda e, x: np.split(x[0], np.cumsum(e.params["sizes"])[:-1], e.params["axis"]),
    "concatenate": lambda e, x: [np.concatenate(x, e.params["dimension"])],
    "stack": lambda e, x: [np.stack(x, e.params["axis"])],
    "unstack": lambda e, x: list(np.moveaxis(x[0], e.params["axis"], 0)),
    "tile": lambda e, x: [np.tile(x[0], e.params["reps"])],
}
"""The primitives whose results are known from their operands alone, by name."""


NONE: Count = lambda equation: 0  # noqa: E731
ONE: Count = lambda equation: 1  # noqa: E731


class Primitive(NamedTuple):
    """The properties of a primitive.

    Attributes:
        kind: what the results depend on. "elementwise": each entry on the same entries of the
            operands, which are scalars, or have the shape of the result or axes of size 1 in its
            place. "move": results are entries of the operands. "reduction", "cumulative", "sort",
            "window", "factorization" (of the last two axes; those before are batch axes),
            "product", "scatter" (updates are combined with the old elements), "random",
            "collective" (between devices), "effect" (no results). "call": the results of its inner
            program. "derivative rule": such a call, with its own derivatives. "loop", "branch",
            "program": other inner programs. "reference": mutable arrays. "opaque": not visible.
        depth: of an equation; with inner programs, in addition to theirs.
        work: of an equation.
        bound: why the depth is only a lower bound; "" if it is exact.
        numpy: ``(equation, operands) -> results``, for moves of anything, and for elementwise
            arithmetic of integers.
        in_place: each entry depends on those at the same index: it may be computed after a slice as
            well as before.
        inlines: the call may be replaced by what it calls.
        transcendental: processors have no instruction for it.
        free: it reads and writes nothing once it is compiled.
        reorders: it changes the order of elements in memory, or their neighbours.
        cuts: it reads only a part of the first operand, of the size of the result.
        updates: the operand that replaces a part of the first, in place.
        linear: the floating operands in which it is linear; others are data. "jointly": all
            together; "each": each, but no two of them jointly; "first", "last": this one. "": none
            is known.
    """

    kind: str
    depth: Count = NONE
    work: Count = NONE
    bound: str = ""
    numpy: Move | None = None
    in_place: bool = False
    inlines: bool = False
    transcendental: bool = False
    free: bool = False
    reorders: bool = False
    cuts: bool = False
    updates: int | None = None
    linear: str = ""


PRIMITIVES: dict[str, Primitive] = {}
UNKNOWN = Primitive("unknown", ONE, elements, "no rule for it; counted as one operation")


def primitive(equation: Any) -> Primitive:
    """The properties of the primitive of an equation."""
    return PRIMITIVES.get(equation.primitive.name, UNKNOWN)


def of_kind(equations: list[Any], *kinds: str) -> list[Any]:
    """Those of the equations whose primitives are of these kinds."""
    return [x for x in equations if PRIMITIVES.get(x.primitive.name, UNKNOWN).kind in kinds]


def enter(names: str, kind: str, depth: Count = NONE, work: Count = NONE, **known: Any) -> None:
    """Enter all primitives in ``names``, separated by blanks. A name can be entered once."""
    for name in names.split():
        if name in PRIMITIVES:
            raise ValueError(f"the primitive {name!r} has a kind already: {PRIMITIVES[name].kind}")
        PRIMITIVES[name] = Primitive(kind, depth, work, **known)


def elementwise(names: str, depth: Count = ONE, **known: Any) -> None:
    """Enter elementwise primitives."""
    enter(names, "elementwise", depth, results, in_place=True, **known)


def move(names: str, **known: Any) -> None:
    """Enter primitives that move entries, with their numpy functions."""
    for name in names.split():
        enter(name, "move", numpy=MOVES.get(name), **known)


def product(name: str, terms: Count) -> None:
    """Enter a product, by the number of terms of each element of its result."""
    work: Count = lambda equation: 2 * results(equation) * terms(equation)  # noqa: E731
    enter(name, "product", lambda equation: 1 + ceil_log2(terms(equation)), work)


def opaque(names: str, bound: str, depth: Count = ONE, work: Count = results) -> None:
    """Enter opaque primitives, and why their depth is a lower bound."""
    enter(names, "opaque", depth, work, bound=bound)


def holder(names: str, kind: str, **known: Any) -> None:
    """Enter primitives with inner programs or references.

    They cost what these cost, or, if they are not visible, one operation.
    """
    enter(names, kind, NONE, elements, **known)


# -- element by element ---------------------------------------------------------------------------

# With numpy's functions for integers, by their names where these differ.
ARITHMETIC = """
abs add and:bitwise_and convert_element_type:array eq:equal ge:greater_equal gt:greater
le:less_equal lt:less max:maximum min:minimum mul:multiply ne:not_equal neg:negative not:invert
or:bitwise_or sub:subtract xor:bitwise_xor
"""
for _name, _, _numpy in (entry.partition(":") for entry in ARITHMETIC.split()):
    _function = getattr(np, _numpy or _name)
    elementwise(_name, numpy=lambda equation, operands, of=_function: [of(*operands)])
elementwise(
    """
    add_any ceil clamp clz complex conj div eq_to floor imag integer_pow is_finite le_to lt_to mulhi
    nextafter one_minus_square polynomial population_count real reciprocal reduce_precision rem
    round rsqrt shift_left shift_right_arithmetic shift_right_logical sign sqrt square
    """
)
elementwise(
    """
    acos acosh asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt cos cosh digamma erf erf_inv
    erfc exp exp2 expm1 igamma igamma_grad_a igammac lgamma log log1p log2 logistic polygamma pow
    regularized_incomplete_beta sin sinh tan tanh zeta
    """,
    transcendental=True,
)


def _select(equation: Any, operands: list[Array]) -> list[Array]:
    which, *cases = operands
    return [np.choose(which.astype(np.intp), cases)]


def _iota(equation: Any, operands: list[Array]) -> list[Array]:
    length, axis = equation.params["shape"], equation.params["dimension"]
    count = np.arange(length[axis]).reshape([-1 if i == axis else 1 for i in range(len(length))])
    return [np.broadcast_to(count, tuple(length))]


elementwise("select_n", lambda equation: ceil_log2(len(equation.invars) - 1), numpy=_select)
enter("iota", "elementwise", ONE, results, numpy=_iota)  # from nothing: not in place
# A generator of random bits counts as one elementwise operation on a counter.
enter(
    """
    philox2x32 philox4x32 random_bits random_fold_in random_seed random_split rng_bit_generator
    rng_uniform threefry2x32 threefry4x32
    """,
    "random",
    ONE,
    results,
)

# -- to other places ------------------------------------------------------------------------------

move("copy stop_gradient", in_place=True, free=True)
move("name optimization_barrier pvary reshape squeeze bitcast_convert_type", free=True)
move("slice dynamic_slice", cuts=True)
move("transpose rev concatenate stack tile pad", reorders=True)
move("split unstack", reorders=True, cuts=True)
move("gather", reorders=True, cuts=True)
move("scatter", reorders=True, updates=2)
move("dynamic_update_slice", updates=1)
move(
    """
    broadcast_in_dim device_put layout_constraint reshard sharding_constraint
    with_memory_space_constraint
    after_all all_gather all_gather_done all_gather_invariant all_gather_reduced
    all_gather_reduced_start all_gather_start all_to_all all_to_all_done all_to_all_start axis_index
    bcoo_extract bcoo_fromdense bcoo_todense bcoo_transpose bcsr_extract bcsr_fromdense bcsr_todense
    broadcast_to coo_fromdense coo_todense create_linear create_token csr_fromdense csr_todense
    custom_lin dce_sink dim_as_value dimension_size empty empty2 from_edtype get_global
    global_array_to_host_local_array host_local_array_to_global_array inspect_sharding
    iota_2x32_shape lu_pivots_to_permutation masked_load multiple_of num_programs pbroadcast
    pbroadcast_done pbroadcast_dynamic pbroadcast_start pin platform_index ppermute ppermute_done
    ppermute_start precv preduced program_id program_order psend psum_done ragged_all_to_all
    random_clone random_unwrap random_wrap reduce_scatter_done reduced_vary_cast reduced_vary_cast_p
    relayout shard_alike tie to_edtype todense unpin unreachable vary_unreduced_cast
    vary_unreduced_cast_p xla_metadata_value zeros_like
    """
)

# -- together -------------------------------------------------------------------------------------

enter(
    """
    argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum reduce_xor
    """,
    "reduction",
    lambda equation: ceil_log2(counts.reduced(equation)),
    counts.reduction_work,
)
enter(
    "cumlogsumexp cummax cummin cumprod cumsum",
    "cumulative",
    lambda equation: ceil_log2(counts.along(equation)),
    results,
)
enter(
    "reduce_window_max reduce_window_min reduce_window_sum select_and_gather_add",
    "window",
    lambda equation: ceil_log2(counts.window(equation)),
    lambda equation: results(equation) * max(counts.window(equation) - 1, 0),
)
# The element of each window is selected, then what falls on one element is added up.
enter(
    "select_and_scatter_add",
    "scatter of windows",
    lambda equation: ceil_log2(counts.window(equation)) + ceil_log2(counts.overlap(equation)),
    lambda equation: size(equation.invars[0]) * counts.window(equation),
)
# All updates could fall on one element: a reduction over them and the operand's own element.
enter(
    "scatter-add scatter-max scatter-min scatter-mul scatter-sub",
    "scatter",
    lambda equation: ceil_log2(counts.collisions(equation)),
    lambda equation: size(equation.invars[-1]),
    updates=2,
)
# Like the selection of the k largest, sorting counts as a tree over the axis.
enter(
    "approx_top_k sort top_k",
    "sort",
    lambda equation: ceil_log2(counts.along(equation)),
    lambda equation: size(equation.invars[0]) * ceil_log2(counts.along(equation)),
)
enter(
    """
    pmax pmin psum psum_invariant psum_invariant_start psum_start reduce_scatter
    reduce_scatter_start unreduced_pmax unreduced_pmin unreduced_psum unreduced_psum_start
    unreduced_reduce_scatter unreduced_reduce_scatter_start
    """,
    "collective",
    NONE,  # with ceil(log2 devices), which the reader adds: it knows the sizes of the axes
    lambda equation: size(equation.invars[0]),
)

# -- products and factorizations ------------------------------------------------------------------

product("dot_general", counts.contracted)
product("ragged_dot_general", counts.contracted_ragged)
product("conv_general_dilated", counts.convolved)
# One product of each element with its root of unity, then a sum over the transformed elements.
enter(
    "fft",
    "product",
    lambda equation: 1 + ceil_log2(prod(equation.params["fft_lengths"])),
    lambda equation: 5 * elements(equation) * ceil_log2(prod(equation.params["fft_lengths"])),
)
# Textbook elimination, one column after another.  Cholesky: root, division, product and subtraction
# for each column, of which the last needs the root only.  LU: the pivot's search, division, product
# and subtraction.  A triangular solve: product, subtraction and division for each row.  Thomas'
# algorithm: six operations for each row, forwards and back.
for _name, _depth, _work in (
    ("cholesky", lambda x: max(4 * counts.order(x) - 3, 0), counts.matrix_work(1)),
    ("cholesky_update", lambda x: 6 * counts.order(x), lambda x: 6 * elements(x)),
    (
        "lu",
        lambda x: sum(ceil_log2(n) + 3 for n in counts.columns(x)),
        counts.matrix_work(1),
    ),
    (
        "triangular_solve",
        lambda x: max(3 * counts.order(x) - 2, 0),
        lambda x: size(x.invars[1]) * counts.order(x),
    ),
    ("tridiagonal_solve", lambda x: 6 * counts.order(x), lambda x: 8 * elements(x)),
):
    enter(_name, "factorization", _depth, _work)
# Householder reflections, one column after another: the norm (product, sum, root), the scale of the
# reflector (two), and its application (product with the sum over the rows, product, subtraction).
enter(
    "geqp3 geqrf hessenberg householder_product ormqr qr tridiagonal",
    "factorization",
    lambda equation: sum(2 * ceil_log2(n) + 7 for n in counts.columns(equation)),
    counts.matrix_work(2),
)

# -- not visible, or without results --------------------------------------------------------------

opaque(
    "eig eigh schur svd",
    "iterates until it converges; counted as one reduction over the matrix",
    # A result that depends on every element of a matrix needs at least a tree over them.
    lambda equation: ceil_log2(counts.matrix(equation)),
    counts.matrix_work(9),
)
opaque("select_and_scatter", "a reduction over windows by programs; counted as one operation")
opaque("random_gamma", "rejection sampling: draws as often as it must; counted once")
opaque(
    """
    bcoo_dot_general bcoo_dot_general_sampled bcoo_sort_indices bcoo_spdot_general
    bcoo_sum_duplicates bcsr_dot_general coo_matmat coo_matvec coo_spmm coo_spmv csr_matmat
    csr_matvec csr_spmm csr_spmv spsolve
    """,
    "sparse: its depth depends on where the entries are; counted as one operation",
)
opaque(
    """
    cudnn_fusion dot_product_attention_bwd dot_product_attention_bwd_wrapper
    dot_product_attention_fp8_bwd dot_product_attention_fp8_bwd_wrapper
    dot_product_attention_fp8_fwd dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd
    dot_product_attention_fwd_wrapper rnn_bwd rnn_fwd scaled_dot scaled_matmul
    scaled_matmul_wrapper symmetric_product
    """,
    "a vendor's kernel, whose inside is not visible; counted as one operation",
)
opaque(
    "buffer_callback call_exported ffi_call io_callback mpmd_map pure_callback",
    "leaves the program; counted as one operation",
    work=NONE,
)
# Without results there is nothing for an output to wait for.
enter(
    """
    check debug_callback debug_print delay free_ref log_extend log_read semaphore_read
    semaphore_signal semaphore_wait shape_assertion
    """,
    "effect",
)

# -- programs inside, and references: `depth.reader` ------------------------------------------

holder("jit pjit closed_call core_call checkpoint remat remat2", "call", inlines=True)
holder(
    """
    call composite compute_on custom_partitioning custom_vmap_call eval_jaxpr fused_call
    jaxpr_call kernel_call linear_call linear_map remat_opt
    pieces solve_chain stage steps xla_metadata_call
    """,
    "call",
)
holder(
    "custom_jvp_call custom_jvp_call_jaxpr custom_vjp_call custom_vjp_call_jaxpr", "derivative rule"
)
holder("scan while", "loop")
holder("cond", "branch")
holder(
    """
    call_hi_primitive call_hi_primitive_linearized custom_linear_solve pallas_call reduce
    reduce_window shard_map
    """,
    "program",
)
holder(
    """
    accum_grad_in_ref addupdate box_get box_set core_map empty_ref freeze get get_mutable
    masked_swap new_box new_log new_ref run_scoped run_state swap
    """,
    "reference",
)

# -- linearity -------------------------------------------------------------------------------------

LINEAR = {
    "jointly": """
    add add_any broadcast_in_dim complex concatenate conj convert_element_type copy cumsum
    dynamic_slice dynamic_update_slice fft gather imag name neg pad pvary real reduce_precision
    reduce_sum reduce_window_sum reshape rev scatter scatter-add scatter-sub select_n slice split
    squeeze stack sub tile transpose unstack
    """,
    "each": "conv_general_dilated dot_general mul ragged_dot_general",
    "first": "div",
    "last": "triangular_solve tridiagonal_solve",
}
for _way, _names in LINEAR.items():
    for _name in _names.split():
        PRIMITIVES[_name] = PRIMITIVES[_name]._replace(linear=_way)
