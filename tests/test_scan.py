"""`scan` against `jax.lax.scan`: every method and adjoint, every kind of chain."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import PROBLEMS, Problem, assert_agree, backpropagate, normal, oracle, pairs

METHODS = {
    "newton": "newton",
    "pcr": "pcr",
    "newton by cyclic reduction": deeppcr.Newton(linear="cyclic_reduction"),
    "newton by prefix scan": deeppcr.Newton(linear="prefix_scan"),
    "newton by chunks": deeppcr.Newton(linear=deeppcr.Chunked(4)),
    "sequential": "sequential",
    "unrolled": deeppcr.Sequential(unroll=4),
}
ADJOINTS = {
    "step by step": "sequential",
    "pcr": "pcr",
    "cyclic reduction": "cyclic_reduction",
    "prefix scan": "prefix_scan",
    "chunks": "chunked",
    "recurrence": deeppcr.Recurrence(),
    "auto": "auto",
    "autodiff": "autodiff",
}


@pytest.mark.parametrize(
    ("problem", "method", "adjoint"), pairs(list(PROBLEMS), list(METHODS), list(ADJOINTS))
)
def test_agrees_with_lax_scan(problem, method, adjoint):
    problem = PROBLEMS[problem]
    scan = partial(
        deeppcr.scan,
        method=METHODS[method],
        adjoint=ADJOINTS[adjoint],
        batch_ndim=problem.batch_ndim,
    )
    assert_agree(backpropagate(problem, scan), oracle(problem))


# Corners: both directions, all sorts of ys and carries, lengths.

SCANS = {
    "step by step": partial(deeppcr.scan, method="sequential", adjoint="backprop"),
    "blocks": partial(deeppcr.scan, method="sequential", adjoint=deeppcr.Recurrence()),
    "newton, pcr": partial(deeppcr.scan, method="newton", adjoint="pcr"),
}
scans = pytest.mark.parametrize("scan", SCANS.values(), ids=SCANS.keys())
# Without derivatives "blocks" is "step by step" again.
forwards = pytest.mark.parametrize(
    "scan", [SCANS["step by step"], SCANS["newton, pcr"]], ids=["step by step", "newton, pcr"]
)
LENGTH = 5  # odd: no solver can halve it evenly
WEIGHT, INIT, XS = normal(0, 3, 3, scale=0.5), normal(1, 3), normal(2, LENGTH, 3)
CORNERS = {
    "ys of all sorts": (
        lambda w, z, x: (
            (new := jnp.tanh(w @ z + x)),
            {
                "none": None,
                "constants": (1, 2.0, jnp.ones(2), True),
                "the carry": new,
                "the old carry": z,
                "the input": x,
                "without the carry": jnp.sin(w @ x),
                "both carries": new * z * x,
            },
        ),
        INIT,
        XS,
    ),
    "the carry stays": (lambda w, z, x: (z, w @ z * x), INIT, XS),
    "the carry forgets": (lambda w, z, x: ((x, w @ x), w @ z[0] * z[1]), (INIT, INIT), XS),
    "the carry is constant": (
        lambda w, z, x: ((jnp.ones(3), w[0]), w @ z[0] * z[1] * x),
        (INIT, INIT),
        XS,
    ),
    "the same leaf twice": (
        lambda w, z, x: (((new := jnp.tanh(w @ z[0] + 0.5 * z[1])), new), (new * x, z[0])),
        (INIT, 2 * INIT),
        XS,
    ),
    "leaves are exchanged, no ys": (
        lambda w, z, x: ((z[1], w @ z[0] * x), None),
        (INIT, 2 * INIT),
        XS,
    ),
    "leaves that never meet": (
        lambda w, z, x: ({"a": w @ z["a"], "b": jnp.sin(z["b"]) * x}, z["b"]),
        {"a": INIT, "b": INIT},
        XS,
    ),
    "a scalar": (lambda w, z, x: (jnp.tanh(w[0, 0] * z + x), z), INIT[0], XS[:, 0]),
    "nothing carried": (lambda w, z, x: (None, w @ x), None, XS),
    "a carry without entries": (lambda w, z, x: (z, w @ x), jnp.zeros((0,)), XS),
    "a carry partly without entries": (
        lambda w, z, x: ((z[0], w @ z[1] + x), z[1]),
        (jnp.zeros((0, 2)), INIT),
        XS,
    ),
    "a matrix, and None among the inputs": (
        lambda w, z, x: (jnp.tanh(w @ z + x[0][:, None] * z), x[2]["b"] * z[0]),
        normal(3, 3, 3),
        (XS, None, {"b": XS[:, 1]}),
    ),
    "control flow": (
        lambda w, z, x: (
            jax.lax.fori_loop(
                0, 2, lambda i, z: jnp.tanh(w @ z), jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, z)
            ),
            z,
        ),
        INIT,
        XS,
    ),
}
OTHERS = {
    "the carry stays": "step by step",
    "the carry is constant": "blocks",
    "nothing carried": "step by step",
    "a carry without entries": "blocks",
    "a carry partly without entries": "step by step",
}


@cache
def corner(name, reverse):
    step, init, xs = CORNERS[name]
    return Problem(step, WEIGHT, init, xs, reverse=reverse)


@pytest.mark.parametrize(
    ("name", "scan"), [*((name, "newton, pcr") for name in CORNERS), *OTHERS.items()]
)
def test_corners(name, scan):
    problem = corner(name, list(CORNERS).index(name) % 2 == 1)
    assert_agree(backpropagate(problem, SCANS[scan]), oracle(problem))


@pytest.mark.parametrize(
    ("scan", "length", "reverse"),
    [
        ("blocks", 2, False),
        ("newton, pcr", 1, True),
    ],
)
def test_short_chains(scan, length, reverse):
    step, init, xs = CORNERS["the same leaf twice"]
    problem = Problem(step, WEIGHT, init, xs[:length], reverse=reverse)
    assert_agree(backpropagate(problem, SCANS[scan]), oracle(problem))


@scans
def test_a_chain_without_steps(scan):
    def f(z, x):
        return z * 2, {"z": z, "number": 3}

    for xs, length in ((XS[:0], None), (None, 0), (np.zeros((0, 3)), 0)):
        assert_agree(scan(f, INIT, xs, length), jax.lax.scan(f, INIT, xs, length))
        gradient = jax.grad(lambda z, xs=xs, length=length: scan(f, z, xs, length)[0].sum())
        assert_agree(gradient(INIT), jnp.ones(3))


@pytest.mark.parametrize(("scan", "size"), [("step by step", 0), ("blocks", 1), ("newton, pcr", 0)])
def test_batch_of_one_and_a_batch_axis_without_entries(scan, size):
    def step(w, z, x):
        new = jnp.tanh(z @ w + jnp.broadcast_to(x, z.shape))
        return new, new * z

    problem = Problem(step, WEIGHT, normal(0, size, 3), XS)
    assert_agree(backpropagate(problem, partial(SCANS[scan], batch_ndim=1)), oracle(problem))


@pytest.mark.parametrize(("scan", "batch_ndim"), [("blocks", 0), ("newton, pcr", 1)])
def test_any_part_of_a_batch_may_be_declared(scan, batch_ndim):
    problem = PROBLEMS["mlp of a grid"]  # two batch axes
    scan = partial(SCANS[scan], batch_ndim=batch_ndim)
    assert_agree(backpropagate(problem, scan), oracle(problem))


@pytest.mark.parametrize(
    ("scan", "scale"), [("step by step", 0.5), ("blocks", np.float64(0.5)), ("newton, pcr", 0.5)]
)
def test_a_captured_python_number(scan, scale):
    """Under `jax.grad` it is a number still, and to be differentiated."""

    def gradient(scan):
        def value(scale):
            return scan(lambda z, x: (jnp.tanh(scale * z + x), scale * z), INIT, XS)[1].sum()

        return jax.grad(value)(scale)

    found, expected = (jax.jit(partial(gradient, each))() for each in (SCANS[scan], jax.lax.scan))
    assert_agree(found, expected)


@forwards
def test_numpy_arrays_and_lists_of_them(scan):
    weight, init, xs = map(np.asarray, (WEIGHT, INIT, XS))

    def f(z, x):
        return ([jnp.tanh(weight @ z[0] + x["a"])], z[0])

    assert_agree(scan(f, [init], {"a": xs}), jax.lax.scan(f, [init], {"a": xs}))


@forwards
def test_length_beside_xs_and_numpy_integers(scan):
    def f(z, x):
        return (jnp.tanh(WEIGHT @ z + x), z)

    assert_agree(scan(f, INIT, XS, np.int64(LENGTH)), jax.lax.scan(f, INIT, XS, LENGTH))
    assert_agree(
        scan(lambda z, _: (WEIGHT @ z, z), INIT, length=np.int32(3)),
        jax.lax.scan(lambda z, _: (WEIGHT @ z, z), INIT, length=3),
    )


def test_an_integer_carry_goes_with_autodiff():
    def f(n, x):
        return (n + 1, n * x)

    assert_agree(
        deeppcr.scan(f, 0, jnp.arange(5), adjoint="autodiff"), jax.lax.scan(f, 0, jnp.arange(5))
    )


def test_a_long_chain():
    problem = Problem(
        PROBLEMS["gru"].step,
        PROBLEMS["gru"].params,
        normal(3, 2, 3),
        normal(4, 3001, 2, 2),
        batch_ndim=1,
    )
    for scan in (
        partial(deeppcr.scan, adjoint="auto", batch_ndim=1),
        partial(deeppcr.scan, method="newton", adjoint="pcr", batch_ndim=1),
    ):
        assert_agree(backpropagate(problem, scan), oracle(problem))


# How much there is to compile


def equations(jaxpr):
    """How many equations a program has, counting those inside of others."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    inner = [
        sub
        for eqn in jaxpr.eqns
        for sub in jax.tree.leaves(list(eqn.params.values()), is_leaf=program)
    ]
    return len(jaxpr.eqns) + sum(equations(sub) for sub in inner if program(sub))


def program(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def size_of_gradient(length, **options):
    problem = PROBLEMS["gru"]

    def value(params, init, xs):
        last, ys = deeppcr.scan(partial(problem.step, params), init, xs, **options)
        return last.sum() + ys.sum()

    gradient = jax.value_and_grad(value, argnums=(0, 1, 2))
    return equations(jax.make_jaxpr(gradient)(problem.params, problem.init, normal(4, length, 2)))


@pytest.mark.parametrize(
    ("method", "adjoint"),
    [
        ("sequential", "auto"),
        (deeppcr.Newton(linear=deeppcr.Recurrence()), "sequential"),
    ],
)
def test_the_program_does_not_grow_with_the_length(method, adjoint):
    sizes = [size_of_gradient(length, method=method, adjoint=adjoint) for length in (8, 64)]
    assert sizes[0] == sizes[1] > 20


@pytest.mark.parametrize("solver", ["pcr", "cyclic_reduction"])
def test_the_program_of_a_parallel_solver_grows_with_the_logarithm(solver):
    sizes = [
        size_of_gradient(length, method=deeppcr.Newton(linear=solver), adjoint=solver)
        for length in (8, 16, 32)
    ]
    assert sizes[2] - sizes[1] <= 1.2 * (sizes[1] - sizes[0]) + 10


def test_the_step_is_traced_a_fixed_number_of_times():
    traces = 0

    def f(z, x):
        nonlocal traces
        traces += 1
        return jnp.tanh(WEIGHT @ z + x), z

    counts = []
    for length in (8, 64):
        traces = 0
        gradient = jax.grad(lambda z, xs: deeppcr.scan(f, z, xs, method="newton")[0].sum())
        jax.make_jaxpr(gradient)(INIT, normal(3, length, 3))
        counts.append(traces)
    assert counts[0] == counts[1] <= 2


def test_picard_by_name():
    def f(z, x):
        return jnp.tanh(WEIGHT @ z + x), z

    assert_agree(deeppcr.scan(f, INIT, XS, method="picard"), jax.lax.scan(f, INIT, XS), 1e-10)
