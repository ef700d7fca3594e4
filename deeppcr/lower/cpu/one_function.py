"""Loops that a CPU runs as one function.

XLA's CPU backend calls a function for every array that a trip of a loop writes, unless a trip moves
less than a kilobyte and contains no product: it then compiles the whole loop to one function. The
same is had for larger loops by the attribute with which XLA marks such loops for itself. Values are
the same, but for the order of the sums in products.

A loop is marked if everything in it is in the tables below, and small (`fits`). Since jax 0.12 XLA
makes such functions of more loops; what it compiles well by itself is left to it.
"""

# jax 0.10.2, 2 cores, a GRU step, batch 1: 0.3 of the time for 8 to 32 units, 0.5 for 128; batch 8:
# 0.1 for 4 units, 0.2 for 8, 0.3 for 16 and 32, 0.75 for 128.

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun

from deeppcr.arrays import Leaves, abstract_avals
from deeppcr.lower.cpu import limits
from deeppcr.lower.cpu.pieces import from_split, stack_equal
from deeppcr.lower.cpu.products import is_possible, multiplications, parts, product
from deeppcr.lower.products import Sizes, is_real_product, products_of
from deeppcr.lower.steps import Loop, Operands
from depth.counts import convolved, size
from depth.jaxprs import bind, called, equations, moved_by, run
from depth.platforms import is_hoisted, is_one_function
from depth.primitives import of_kind, primitive
from depth.work import NAIVE

# What XLA reads from a call. It is private to XLA: see `is_honoured`.
MARK = {"xla_cpu_small_call": "true", "inlineable": "false"}
UNMARK = {"xla_cpu_small_call": "false", "inlineable": "true"}
# The operations that such a function may contain, in any number.
_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh broadcast_in_dim cbrt ceil clamp
    concatenate convert_element_type copy copy_p cos cosh div dot_general dynamic_slice
    dynamic_update_slice eq erf erfc exp exp2 expand_dims expm1 floor gather ge gt integer_pow
    iota is_finite le log log1p logistic lt max min mul name ne neg not one_minus_square or pad
    pow reduce_and reduce_max reduce_min reduce_or reduce_sum rem reshape rev round rsqrt
    scatter scatter-add select_n sign sin sinh slice split sqrt square squeeze stack sub tan
    tanh tile transpose unstack xor
"""
CONTAINED = frozenset(_NAMES.split())
# The kinds of operations that XLA has in such a function by itself, since jax 0.12.
HOISTED_KINDS = frozenset(("elementwise", "move", "product", "random", "reduction"))
INDEXED = frozenset(("gather", "scatter", "scatter-add"))  # of one index, as in x.at[0].set(y)
CONTAINED_DTYPES = frozenset(
    map(jnp.dtype, ("float32", "float64", "int32", "int64", "uint32", "bool"))
)


def one_function(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The rule."""
    program = loop.program
    if not fits(program) or copies_matrices(program, loop.states) or not is_honoured():
        return loop, operands
    return loop._replace(run=_in_one_function), operands


def _in_one_function(loop: Loop, operands: Operands) -> tuple[Leaves, Leaves]:
    types = abstract_avals(loop.inputs)
    of_one: Callable[[Leaves], Leaves] = list
    if len(types) > limits.MAX_INPUTS:
        operands = operands._replace(xs=stack_equal(operands.xs, types))
        of_one = partial(from_split, like=types)
    leaves, tree = jax.tree.flatten(operands)

    def run(*leaves: Any) -> Leaves:
        last, ys = loop.scan(jax.tree.unflatten(tree, leaves), _result, of_one)
        return [*last, *ys]

    # `run` is a new object each time, so that jax caches nothing for it.
    results = _marked(jax.make_jaxpr(run)(*leaves), *leaves)
    return results[: loop.states], results[loop.states :]


@cache
def is_honoured() -> bool:
    """Whether XLA compiles a small loop to one function; asked once, and warned of if it does not.

    Not on import: that would start jax's devices before `jax.distributed.initialize` can.
    """
    answer = is_one_function(_marked)
    if answer is False:
        warnings.warn(
            f"loops on a CPU run as in jax.lax.scan, not as one function, which was faster: "
            f"XLA of jax {jax.__version__} does not compile them so. Results are the same.",
            stacklevel=2,
        )
    return bool(answer)


def is_left_to_xla(program: Any) -> bool:
    """Whether XLA compiles a loop over a program to one function by itself, as well as can be."""
    return multiplies_little(program) and is_hoisted()


def multiplies_little(program: Any) -> bool:
    """Whether XLA itself can compile a loop over a program to one function, and ours gains nothing.

    It has products of vectors, or of few results, in such a function.
    """
    work = 0
    for equation in equations(program):
        if primitive(equation).kind not in HOISTED_KINDS and called(equation) is None:
            return False
        if equation.primitive.name == "dot_general":
            sizes = Sizes.of(equation)
            if min(sizes.rows, sizes.columns) > 1 and sizes.rows * sizes.columns > NAIVE:
                return False
            work += sizes.of_piece
        elif equation.primitive.name == "conv_general_dilated":
            work += size(equation.outvars[0]) * convolved(equation)
    return work <= limits.LEFT_TO_XLA


def fits(program: Any) -> bool:
    """Whether a loop over a program, with products of vectors, can be one function, and gains."""
    inside = equations(program)
    are_plain = _are_plain((*program.constvars, *program.invars, *program.outvars))
    if not (are_plain and all(map(_is_contained, inside))):
        return False
    products = list(map(Sizes.of, products_of(inside)))
    work = sum(map(multiplications, products))
    is_much = work > limits.MANY_MULTIPLICATIONS
    most = limits.MAX_PARTS_OF_MANY if is_much else limits.MAX_PARTS
    is_small = len(inside) <= limits.MAX_EQUATIONS and sum(map(parts, products)) <= most
    return is_small and work <= limits.PER_ELEMENTWISE * len(of_kind(inside, "elementwise"))


def copies_matrices(program: Any, states: int) -> bool:
    """Whether a step multiplies a matrix of its state, ``states`` leaves, by a large input.

    One function copies such a matrix in every trip, where XLA's kernels read it where it is.
    """
    large = {x for x in program.invars[states:] if size(x) > limits.COPIED}
    of_state = moved_by(program, program.invars[:states])
    return any(
        is_real_product(equation)
        and multiplications(Sizes.of(equation))
        and of_state.issuperset(equation.outvars)
        and not large.isdisjoint(equation.invars)
        for equation in products_of(program.eqns)
    )


def _are_plain(atoms: Iterable[Any]) -> bool:
    for x in atoms:
        if getattr(x.aval, "dtype", None) not in CONTAINED_DTYPES or 0 in x.aval.shape:
            return False
    return True


def _marked(closed: Any, *operands: Any) -> list[Any]:
    """The results of a program, as one function; `depth` knows it by its name."""

    def one_function(*operands: Any) -> tuple[list[Any], list[Array]]:
        with set_xla_metadata(**UNMARK):  # of calls inside
            # XLA aborts if such a function does not read one of its arguments, which may be what
            # its own optimisations lead to (jaxlib 0.10.2): one entry of each is returned, too.
            entries = [lax.slice(x, (0,) * x.ndim, (1,) * x.ndim) for x in operands]
            return list(jaxpr_as_fun(closed)(*operands)), entries

    with set_xla_metadata(**MARK):
        # Constants are no arguments: XLA would move them into the function.
        results: list[Any] = jax.jit(one_function)(*lax.optimization_barrier(operands))[0]
    return results


def _result(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """The results of an equation, of a product of matrices by products with vectors.

    XLA calls a library for a product of two matrices, and for no product with a vector.
    """
    if equation.primitive.name == "dot_general":
        return [product(equation, *operands)]
    inner = called(equation)
    if inner is not None:
        return run(inner, operands, _result)
    return bind(equation, operands)


def _is_contained(equation: Any) -> bool:
    if called(equation) is not None:
        return True
    if not _are_plain((*equation.invars, *equation.outvars)):
        return False
    name = equation.primitive.name
    if name == "conv_general_dilated":
        return _is_small_convolution(equation)
    if name == "dot_general":
        return is_possible(equation)
    if name in INDEXED and size(equation.invars[1]) > equation.invars[1].aval.shape[-1]:
        return False
    if name.startswith("reduce_") and size(equation.invars[0]) > limits.MAX_REDUCED:
        return False
    return name in CONTAINED and max(map(size, equation.outvars)) <= limits.MAX_ARRAY


def _is_small_convolution(equation: Any) -> bool:
    """Whether XLA writes a convolution as loops, which gains as long as it is short."""
    out, numbers = equation.outvars[0], equation.params["dimension_numbers"]
    is_real = jnp.issubdtype(out.aval.dtype, jnp.floating)
    is_plain = is_real and equation.params["batch_group_count"] == 1 and out.aval.ndim > 2
    # Of the image, not of the filter, which has those of one group.
    features = max(
        equation.invars[0].aval.shape[numbers.lhs_spec[1]], out.aval.shape[numbers.out_spec[1]]
    )
    has_no_library = out.aval.ndim == 3 or features <= limits.MAX_FEATURES
    is_short = size(out) * convolved(equation) <= limits.MAX_CONVOLVED
    return is_plain and has_no_library and is_short
