"""Every primitive with a rule of its own: a program that has it, and what that depends on."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from deeppcr.structure.find import KNOWN
from depth.jaxprs import equations
from depth.primitives import PRIMITIVES
from tests.structure.dependence import assert_sound, moved, traced
from tests.structure.programs import WIDTH, aside, constants, fitted

ONE = """
    abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp exp2 expm1 floor
    is_finite lgamma log log1p log2 logistic neg one_minus_square round rsqrt sign sin sinh sqrt square stop_gradient tan tanh
"""
TWO = "add atan2 div eq ge gt igamma igammac igamma_grad_a le lt max min mul ne nextafter polygamma pow rem sub zeta"
OF_INTEGERS = (
    "bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical mulhi"
)


def integer(x):
    return (5 * x).astype(jnp.int64)


def of_two(function):
    return lambda x: function(x, jnp.roll(x, 3))


def of_integers(function):
    return lambda x: function(integer(x), integer(jnp.roll(x, 3)))


def grid(x):
    return x.reshape(2, 3)


def matrices(x):
    """Two positive definite matrices."""
    rows = x.reshape(2, 3)[..., None]
    return 0.1 * rows * rows.mT + jnp.eye(3)[None]


def linear_solve(x):
    def product(v):
        return (3 + x**2) * v

    return lax.custom_linear_solve(
        product, x[::-1], lambda f, b: b / f(jnp.ones_like(b)), lambda f, b: b / f(jnp.ones_like(b))
    )


@jax.custom_jvp
def with_jvp(x):
    return jnp.sin(x)


with_jvp.defjvps(lambda t, out, x: t * jnp.cos(x))


@jax.custom_vjp
def with_vjp(x):
    return jnp.sin(x)


with_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


def scatter(name):
    return lambda x: getattr(x.at[jnp.arange(2)], name)(x[3:5])


def window(reducer, start):
    return lambda x: lax.reduce_window(grid(x), start, reducer, (1, 2), (1, 1), "VALID")


def factors(function):
    """The first result of a factorization; what it is made of."""
    return lambda x: jnp.real(jax.tree.leaves(function(matrices(x)))[0])


CASES = {
    **{name: getattr(lax, name) for name in ONE.split() if hasattr(lax, name)},
    **{name: of_two(getattr(lax, name)) for name in TWO.split()},
    **{
        name.removeprefix("bitwise_"): of_integers(getattr(lax, name))
        for name in OF_INTEGERS.split()
    },
    # element by element
    "add_any": jax.grad(lambda x: (jnp.sin(x) * x).sum()),
    "clamp": lambda x: lax.clamp(-1.0, x, jnp.roll(x, 3)),
    "clz": lambda x: lax.clz(integer(x)),
    "complex": lambda x: lax.imag(lax.complex(x, jnp.roll(x, 3)) ** 2),
    "conj": lambda x: lax.imag(lax.conj(lax.complex(x, x))),
    "convert_element_type": integer,
    "copy": lambda x: jnp.array(x, copy=True),
    "imag": lambda x: lax.imag(lax.complex(x, jnp.roll(x, 3))),
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "iota": lambda x: x * lax.iota(jnp.float64, WIDTH),
    "not": lambda x: lax.bitwise_not(integer(x)),
    **(
        {"polynomial": lambda x: lax.polynomial(x, [x, jnp.roll(x, 3)])}
        if hasattr(lax, "polynomial")
        else {}
    ),
    "population_count": lambda x: lax.population_count(integer(x)),
    "real": lambda x: lax.real(lax.complex(x, jnp.roll(x, 3)) ** 2),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 5),
    "regularized_incomplete_beta": lambda x: lax.betainc(x**2, x**2 + 1, jax.nn.sigmoid(x)),
    "select_n": lambda x: lax.select_n(x > 0, x, jnp.roll(x, 3)),
    # to other places
    "bitcast_convert_type": lambda x: lax.bitcast_convert_type(x, jnp.int32)[..., 0],
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x[:1], (WIDTH,)),
    "concatenate": lambda x: jnp.concatenate([x[3:], x[:3]]),
    "device_put": lambda x: jax.device_put(x),
    "name": lambda x: checkpoint_name(x, "name"),
    "optimization_barrier": lambda x: lax.optimization_barrier((x[:3], x[3:]))[1],
    "pad": lambda x: lax.pad(x, x[0], [(2, -1, 1)]),
    "reshape": lambda x: x.reshape(2, 3)[1],
    "rev": lambda x: lax.rev(grid(x), [1]),
    "slice": lambda x: x[1::2],
    "split": lambda x: lax.split(x, [2, 4])[1],
    "squeeze": lambda x: x.reshape(6, 1)[:, 0],
    "stack": lambda x: jnp.stack([x[:3], x[3:]], axis=1),
    "tile": lambda x: jnp.tile(x[:3], 2),
    "transpose": lambda x: grid(x).T,
    "unstack": lambda x: jnp.unstack(grid(x))[1],
    # together
    "approx_top_k": lambda x: lax.approx_max_k(grid(x), 2)[0],
    "argmax": lambda x: lax.argmax(grid(x), 1, jnp.int64),
    "argmin": lambda x: lax.argmin(grid(x), 0, jnp.int64),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(grid(x), 1),
    "cummax": lambda x: lax.cummax(grid(x), 0),
    "cummin": lambda x: lax.cummin(grid(x), 1),
    "cumprod": lambda x: lax.cumprod(grid(x), 1),
    "cumsum": lambda x: lax.cumsum(grid(x), 1, reverse=True),
    "reduce": lambda x: lax.reduce(
        (grid(x), grid(x)), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[0]), (1,)
    )[1],
    "reduce_and": lambda x: (grid(x) > 0).all(1),
    "reduce_max": lambda x: grid(x).max(1),
    "reduce_min": lambda x: grid(x).min(0),
    "reduce_or": lambda x: (grid(x) > 0).any(1),
    "reduce_prod": lambda x: grid(x).prod(1),
    "reduce_sum": lambda x: grid(x).sum(0),
    "reduce_xor": lambda x: lax.reduce_xor(grid(integer(x)), (1,)),
    "reduce_window_max": window(lax.max, -jnp.inf),
    "reduce_window_min": window(lax.min, jnp.inf),
    "reduce_window_sum": window(lax.add, 0.0),
    "select_and_gather_add": lambda x: jax.jvp(window(lax.max, -jnp.inf), (x,), (jnp.roll(x, 3),))[
        1
    ],
    "sort": lambda x: lax.sort((grid(x), grid(x**2)), dimension=1)[1],
    "top_k": lambda x: lax.top_k(grid(x), 2)[1],
    "dot_general": lambda x: jnp.einsum("bi,bi->b", grid(x), grid(x)),
    "conv_general_dilated": lambda x: lax.conv_general_dilated(
        x.reshape(2, 1, 3), constants(1, 1, 2), (1,), "VALID"
    ),
    "fft": lambda x: lax.fft(grid(x), "RFFT", (3,)).imag,
    # matrices
    "cholesky": factors(jnp.linalg.cholesky),
    "eig": factors(jnp.linalg.eigvals),
    "eigh": factors(jnp.linalg.eigvalsh),
    "cholesky_update": lambda x: lax.linalg.cholesky_update(matrices(x)[0], x[:3]),
    "hessenberg": factors(lax.linalg.hessenberg),
    "tridiagonal": factors(lambda a: lax.linalg.tridiagonal(a, lower=True)),
    "ormqr": lambda x: lax.linalg.ormqr(matrices(x), grid(x), matrices(x) ** 2),
    "householder_product": lambda x: lax.linalg.householder_product(matrices(x), grid(x)),
    "lu": factors(lax.linalg.lu),
    "lu_pivots_to_permutation": lambda x: lax.linalg.lu_pivots_to_permutation(
        lax.linalg.lu(matrices(x))[1], 3
    ),
    "qr": factors(lax.linalg.qr),
    "schur": factors(lax.linalg.schur),
    "svd": factors(lambda a: jnp.linalg.svd(a, compute_uv=False)),
    "triangular_solve": lambda x: lax.linalg.triangular_solve(
        matrices(x), jnp.ones((2, 3, 1)), left_side=True, lower=True
    ),
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(
        grid(x), 9 + grid(x), grid(x), jnp.ones((2, 3, 1))
    ),
    "custom_linear_solve": linear_solve,
    # by index
    "gather": lambda x: x[5 - jnp.arange(3)],
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:2]) + 2,), (2,)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(x, x[:2], (3,)),
    "scatter": lambda x: (  # index 6 is beyond the end: nothing is written
        jnp.roll(x, 2).at[3 * jnp.arange(3)].set(x[3:]).at[5].apply(jnp.sin)
    ),
    "scatter-add": scatter("add"),
    "scatter-max": scatter("max"),
    "scatter-min": scatter("min"),
    "scatter-mul": scatter("multiply"),
    "scatter-sub": scatter("subtract"),
    # programs inside
    "remat2": jax.checkpoint(jnp.sin),
    "composite": lax.composite(lambda x: jnp.sin(x), "tests.sine"),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "custom_jvp_call": with_jvp,
    "custom_vjp_call": with_vjp,
    "jit": jax.jit(jnp.sin),
    "scan": lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x)[1],
    "while": lambda x: lax.while_loop(lambda y: y[0] < 3, lambda y: y + 1.0, x),
}
# By another name, in other versions of jax, or on several devices.
ELSEWHERE = """
    checkpoint closed_call core_call custom_jvp_call_jaxpr custom_vjp_call_jaxpr eq_to geqp3 geqrf
    layout_constraint le_to log2 lt_to one_minus_square pjit polynomial pvary reciprocal remat
    reshard sharding_constraint with_memory_space_constraint
"""


def program(name):
    """The case of a primitive, on six of twelve entries."""
    return aside(lambda z: fitted(np.random.default_rng(0), CASES[name](z), jnp.zeros_like(z)), 1)


@cache
def dependences():
    return dict(zip(CASES, moved(list(map(program, CASES)), 2 * WIDTH), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_its_rule(name):
    step, _ = traced(program(name), jnp.zeros(2 * WIDTH))
    names = {equation.primitive.name for equation in equations(step.jaxpr)}
    assert name in names  # the case tests what it says
    assert_sound(program(name), (2 * WIDTH,), dependences()[name])
    assert_sound(program(name), (6, 2), dependences()[name], batch_ndim=1)


def is_followed(name, known):
    if known.kind == "call":
        return known.inlines
    if known.kind == "move":
        return name in KNOWN or known.numpy is not None
    return name in KNOWN or known.kind in KNOWN


def test_all_rules_are_tested():
    followed = {name for name, known in PRIMITIVES.items() if is_followed(name, known)}
    assert followed - set(CASES) <= set(ELSEWHERE.split())
