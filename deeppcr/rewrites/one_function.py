"""Loops that a CPU runs as one function.

XLA's CPU backend calls a function for every array that a trip of a loop writes, unless a trip moves
less than a kilobyte and contains no product: it then compiles the whole loop to one function. The
same is had for larger loops by the attribute with which XLA marks such loops for itself. Values are
the same, but for the order of the sums in products.
"""

# jax 0.10.2, 2 cores, a GRU step, batch 1: 0.3 of the time for 8 to 32 units, 0.5 for 128; batch 8:
# 0.1 for 4 units, 0.2 for 8, 0.3 for 16 and 32, 0.75 for 128.

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from deeppcr.calls import Call, without_unused
from deeppcr.platforms import platform
from deeppcr.rewrites.terms import is_real_product, sizes_of, term_by_term, terms_of
from depth.counts import size
from depth.jaxprs import Program, bind, called, equations, interpret, run, without_constants
from depth.primitives import primitive

# What XLA reads from a call. Only versions of jax whose programs have been compiled with it here
# use it: a loop that contains what such a function cannot contain would not compile.
MARK = {"xla_cpu_small_call": "true", "inlineable": "false"}
UNMARK = {"xla_cpu_small_call": "false", "inlineable": "true"}
BEFORE = (0, 13)
# The operations that such a function may contain, in any number.
_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh broadcast_in_dim cbrt ceil clamp
    concatenate convert_element_type copy copy_p cos cosh div dot_general dynamic_slice
    dynamic_update_slice eq erf erfc exp exp2 expand_dims expm1 floor ge gt integer_pow iota
    is_finite le log log1p logistic lt max min mul ne neg not or pad pow reduce_and reduce_max
    reduce_min reduce_or reduce_sum rem reshape rev round rsqrt select_n sign sin sinh slice
    split sqrt square squeeze stack sub tan tanh transpose xor
"""
CONTAINED = frozenset(_NAMES.split())
DTYPES = frozenset(("float32", "float64", "int32", "int64", "uint32", "bool"))
# The entries of one array, the multiplications and the vectors of one product, the entries of a row
# of matrices and the rows of narrow ones, up to which the loop gains.
LARGEST, MULTIPLICATIONS, VECTORS, LONGEST, TALLEST = 2048, (1 << 17) - 1, 32, 192, 48
SUMMED = 2048  # the entries of a sum; from 4096 on, XLA calls a library
# The multiplications of matrices up to which the loop gains, for each elementwise operation of a
# step: these are what takes less time; a product of matrices takes up to twice the time.
FOR_EACH = 1 << 13
# The vectors and terms of all products of a step, and its equations: each is compiled by itself.
PARTS, EQUATIONS = 64, 512
# Terms up to which a product is a sum of vectors, and the multiplications up to which it is.
SHORT, WRITTEN_OUT = 8, 2048


def is_possible() -> bool:
    """Whether programs are traced for a CPU, by a version of jax that is known to do it."""
    return platform() == "cpu" and jax.__version_info__ < BEFORE


def fits(program: Any) -> bool:
    """Whether a loop over a program, with products of vectors, can be one function, and gains."""
    ends, inside = [*program.constvars, *program.invars, *program.outvars], list(equations(program))
    if not (all(map(_is_plain, ends)) and all(map(_is_contained, inside))):
        return False
    products = [each for each in inside if each.primitive.name == "dot_general"]
    if len(inside) > EQUATIONS or sum(map(_parts, products)) > PARTS:
        return False
    elementwise = sum(primitive(each).kind == "elementwise" for each in inside)
    return sum(map(_multiplications, products)) <= FOR_EACH * elementwise


def _parts(product: Any) -> int:
    """The terms or the vectors of a product, as it is computed."""
    terms = terms_of(product)
    return terms if _is_short(terms, size(product.outvars[0])) else _vectors(product)


def _vectors(product: Any) -> int:
    """The vectors of the matrix that is multiplied vector by vector; 1 if it is one."""
    batch, rows, columns = sizes_of(product)
    return batch * min(rows, columns)


def _multiplications(product: Any) -> int:
    """Of a product of matrices; 0 if one is a vector."""
    return size(product.outvars[0]) * terms_of(product) if _vectors(product) > 1 else 0


def _is_plain(atom: Any) -> bool:
    return str(getattr(atom.aval, "dtype", "")) in DTYPES and size(atom) > 0


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
) -> tuple[Any, Any]:
    """`jax.lax.scan`, as one function if that is possible."""
    each = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), xs)
    closed, results = jax.make_jaxpr(body, return_shape=True)(carry, each)
    program, constants = Program.of(closed), list(getattr(closed, "consts", ()))
    if length == 1 or not (is_possible() and fits(program)):
        return lax.scan(body, carry, xs, length, reverse, unroll)
    variables, states = [*program.constvars, *program.invars], len(jax.tree.leaves(carry))

    def loop(constants: list[Any], carry: list[Any], xs: list[Any]) -> list[Any]:
        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            known = dict(zip(variables, [*constants, *carry, *x], strict=True))
            leaves = interpret(program, known, program.outvars, _result)
            return leaves[:states], leaves[states:]

        return jax.tree.leaves(lax.scan(step, carry, xs, length, reverse, unroll))

    leaves, tree = jax.tree.flatten((constants, jax.tree.leaves(carry), jax.tree.leaves(xs)))
    # A new object each time, so that jax caches nothing for it.
    flat = jax.make_jaxpr(lambda *leaves: loop(*jax.tree.unflatten(tree, leaves)))(*leaves)
    found = one_function_p.bind(*leaves, call_jaxpr=flat)
    whole: tuple[Any, Any] = jax.tree.unflatten(jax.tree.structure(results), found)
    return whole


one_function_p = Call("one_function")


def _marked(*operands: Any, call_jaxpr: Any) -> list[Any]:
    def one_function(*operands: Any) -> tuple[list[Any], list[Array]]:
        with set_xla_metadata(**UNMARK):  # of calls inside
            # XLA aborts if such a function does not read one of its arguments, which may be what
            # its own optimisations lead to (jaxlib 0.10.2): one entry of each is returned, too.
            read = [lax.slice(x, (0,) * x.ndim, (1,) * x.ndim) for x in operands]
            return one_function_p.run(*operands, call_jaxpr=call_jaxpr), read

    with set_xla_metadata(**MARK):
        # Constants are no arguments: XLA would move them into the function.
        return jax.jit(one_function)(*lax.optimization_barrier(operands))[0]


def _lower(context: Any, *operands: Any, **params: Any) -> Any:
    # XLA cannot compile such functions for several devices (jaxlib 0.10.2).
    alone = getattr(context.module_context.axis_context, "num_devices", None) == 1
    lower = mlir.lower_fun(_marked if alone else one_function_p.run, multiple_results=True)
    return lower(context, *operands, **params)


def _push(
    primals: Sequence[Any], tangents: Sequence[Any], *, call_jaxpr: Any
) -> tuple[list[Any], list[Any]]:
    """Derivatives are those of the loop as it is, which may be another kind of program."""
    moves = [ad.instantiate_zeros(t) for t in tangents]
    return jax.jvp(partial(one_function_p.run, call_jaxpr=call_jaxpr), list(primals), moves)


def _map(operands: Sequence[Any], axes: Sequence[Any], *, call_jaxpr: Any) -> Any:
    """Mapped, a loop may be too large, and its products with vectors are products of matrices."""
    results = jax.vmap(partial(one_function_p.run, call_jaxpr=call_jaxpr), tuple(axes))(*operands)
    return results, [0] * len(results)


def _without_unused(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
    """The equation without the results that nobody reads."""
    equation = given[-1]  # since jax 0.12 after others
    if not any(used):
        return [False] * len(equation.invars), None
    program, reads = without_unused(equation.params["call_jaxpr"], used)
    return reads, equation.replace(
        invars=list(compress(equation.invars, reads)),
        outvars=list(compress(equation.outvars, used)),
        params={"call_jaxpr": program},
    )


def has_one_function(program: Any) -> bool:
    """Whether a program contains such a function."""
    return any(e.primitive is one_function_p for e in equations(without_constants(program)))


one_function_p.def_abstract_eval(lambda *_, call_jaxpr: list(call_jaxpr.out_avals))
ad.primitive_jvps[one_function_p] = _push
batching.primitive_batchers[one_function_p] = _map
pe.dce_rules[one_function_p] = _without_unused
mlir.register_lowering(one_function_p, _lower, "cpu")


def _result(equation: Any, operands: list[Any]) -> Sequence[Any]:
    """The results of an equation, of a product of matrices by products with vectors.

    XLA calls a library for a product of two matrices, and for no product with a vector.
    """
    if equation.primitive.name == "dot_general":
        return [_product(equation, *operands)]
    inner = called(equation)
    if inner is not None:
        return run(inner, operands, _result)
    return bind(equation, operands)


def _is_contained(equation: Any) -> bool:
    name, atoms = equation.primitive.name, (*equation.invars, *equation.outvars)
    if called(equation) is not None:
        return True
    if name not in CONTAINED or not all(map(_is_plain, atoms)):
        return False
    if name.startswith("reduce_") and size(equation.invars[0]) > SUMMED:
        return False
    if name == "dot_general":
        return is_real_product(equation) and _is_small(equation)
    return max(map(size, equation.outvars)) <= LARGEST


def _is_small(equation: Any) -> bool:
    """Whether a product, and that of its derivative, are small enough for such a function."""
    if len(equation.params["dimension_numbers"][0][0]) != 1:
        return False
    (batch, rows, columns), terms = sizes_of(equation), terms_of(equation)
    if not 0 < batch * rows * columns * terms <= MULTIPLICATIONS:
        return False
    if _vectors(equation) == 1:
        return True
    return _are_few(batch, rows, columns, terms) and _are_few(batch, rows, terms, columns)


def _are_few(batch: int, rows: int, columns: int, terms: int) -> bool:
    """Whether a product of matrices is one of few terms or vectors."""
    if _is_short(terms, batch * rows * columns):
        return True
    gains = rows <= columns <= LONGEST or (columns <= SHORT and rows <= TALLEST)
    return gains and batch * min(rows, columns) <= VECTORS


def _is_short(terms: int, entries: int) -> bool:
    """Whether a product is written out term by term."""
    return terms <= SHORT and terms * entries <= WRITTEN_OUT


def _product(equation: Any, left: Array, right: Array) -> Array:
    """A product, term by term or vector by vector."""
    if _is_short(terms_of(equation), size(equation.outvars[0])):
        return term_by_term(equation, left, right)
    if _vectors(equation) == 1:
        product: Array = bind(equation, [left, right])[0]
        return product
    ((left_in,), (right_in,)), (left_batch, right_batch) = equation.params["dimension_numbers"]
    _, rows, columns = sizes_of(equation)
    a, on_left = _matrix(left, left_in, left_batch)
    b, on_right = _matrix(right, right_in, right_batch)
    options = {name: equation.params[name] for name in ("precision", "preferred_element_type")}

    def dot(a: Array, b: Array, on_left: int, on_right: int) -> Array:
        return lax.dot_general(a, b, (((on_left,), (on_right,)), ((), ())), **options)

    def times(a: Array, b: Array) -> Array:  # [rows, columns]
        if rows <= columns:
            vectors = [lax.index_in_dim(a, k, 1 - on_left, False) for k in range(rows)]
            return jnp.stack([dot(x, b, 0, on_right) for x in vectors])
        vectors = [lax.index_in_dim(b, k, 1 - on_right, False) for k in range(columns)]
        return jnp.stack([dot(a, x, on_left, 0) for x in vectors], 1)

    products = jnp.stack(list(map(times, a, b))) if left_batch else times(a, b)
    return products.reshape(equation.outvars[0].aval.shape)


def _matrix(x: Array, contracted: int, batch: Sequence[int]) -> tuple[Array, int]:
    """A matrix of the free axes and the terms, and the axis of the terms.

    The product of the batch axes is in front, if there are any. Where the terms come first, they
    stay there: XLA would transpose the matrix in every trip.
    """
    free = [axis for axis in range(x.ndim) if axis not in (contracted, *batch)]
    is_first = bool(free) and contracted < free[0]
    axes = [[contracted], free] if is_first else [free, [contracted]]
    groups = [list(batch), *axes] if batch else axes
    shape = [math.prod(x.shape[axis] for axis in group) for group in groups]
    order = [axis for group in groups for axis in group]
    return x.transpose(order).reshape(shape), 0 if is_first else 1
