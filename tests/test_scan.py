"""`scan` against `jax.lax.scan`: every method and adjoint, every kind of chain."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import PROBLEMS, Problem, assert_agree, backpropagate, normal, oracle

METHODS = {
    "newton": "newton",
    "pcr": "pcr",
    "newton by cyclic reduction": deeppcr.Newton(linear="cyclic_reduction"),
    "newton by prefix scan": deeppcr.Newton(linear="prefix_scan"),
    "newton by chunks": deeppcr.Newton(linear=deeppcr.Chunked(4)),
    "sequential": "sequential",
}
ADJOINTS = {
    "step by step": "sequential",
    "pcr": "pcr",
    "cyclic reduction": "cyclic_reduction",
    "prefix scan": "prefix_scan",
    "chunks": "chunked",
    "recurrence": deeppcr.Recurrence(),
    "auto": "auto",
}


def cases():
    """Every problem; every adjoint after the sequential method, and after one of Newton's."""
    newtons = itertools.cycle(name for name in METHODS if name != "sequential")
    for case in range(2 * len(ADJOINTS)):
        method = "sequential" if case % 2 else next(newtons)
        yield list(PROBLEMS)[case % len(PROBLEMS)], method, list(ADJOINTS)[case % len(ADJOINTS)]


def test_the_table_has_every_adjoint_after_both_kinds_of_methods():
    assert {problem for problem, _, _ in cases()} == set(PROBLEMS)
    assert {method for _, method, _ in cases()} == set(METHODS)
    assert {(method == "sequential", adjoint) for _, method, adjoint in cases()} == {
        (sequential, adjoint) for sequential in (True, False) for adjoint in ADJOINTS
    }


@pytest.mark.parametrize(("problem", "method", "adjoint"), list(cases()))
def test_agrees_with_lax_scan(problem, method, adjoint):
    problem = PROBLEMS[problem]
    scan = partial(
        deeppcr.scan,
        method=METHODS[method],
        adjoint=ADJOINTS[adjoint],
        batch_ndim=problem.batch_ndim,
    )
    assert_agree(backpropagate(problem, scan), oracle(problem))


# Every corner: both directions, all sorts of ys and carries, lengths.

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
    "ys is None": (lambda w, z, x: (jnp.tanh(w @ z + x), None), INIT, XS),
    "ys is a constant": (
        lambda w, z, x: (jnp.tanh(w @ z + x), (1, 2.0, jnp.ones(2), True)),
        INIT,
        XS,
    ),
    "y is the carry": (lambda w, z, x: ((new := jnp.tanh(w @ z + x)), new), INIT, XS),
    "y is the old carry": (lambda w, z, x: (jnp.tanh(w @ z + x), z), INIT, XS),
    "y is the input": (lambda w, z, x: (jnp.tanh(w @ z + x), x), INIT, XS),
    "y does not see the carry": (lambda w, z, x: (jnp.tanh(w @ z + x), jnp.sin(w @ x)), INIT, XS),
    "y sees both carries": (lambda w, z, x: ((new := jnp.tanh(w @ z + x)), new * z * x), INIT, XS),
    "the carry stays": (lambda w, z, x: (z, w @ z * x), INIT, XS),
    "the carry is the input": (lambda w, z, x: (x, w @ z), INIT, XS),
    "the carry forgets": (lambda w, z, x: (w @ x, z), INIT, XS),
    "the carry is constant": (lambda w, z, x: (jnp.ones(3), w @ z * x), INIT, XS),
    "the carry is captured": (lambda w, z, x: (w[0], w @ z * x), INIT, XS),
    "the same leaf twice": (
        lambda w, z, x: (((new := jnp.tanh(w @ z[0] + 0.5 * z[1])), new), (new * x, z[0])),
        (INIT, 2 * INIT),
        XS,
    ),
    "leaves are exchanged": (
        lambda w, z, x: ((z[1], w @ z[0]), z[0] * z[1] * x),
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
    "inputs as a tuple with None": (
        lambda w, z, x: (jnp.tanh(w @ z + x[0]), x[2]["b"] * z),
        INIT,
        (XS, None, {"b": XS[:, 1]}),
    ),
    "a matrix": (lambda w, z, x: (jnp.tanh(w @ z + x[:, None] * z), z[0]), normal(3, 3, 3), XS),
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


@cache
def corner(name, reverse):
    step, init, xs = CORNERS[name]
    return Problem(step, WEIGHT, init, xs, reverse=reverse)


def corners():
    """Every corner by Newton's method; those of no size, and others that are special, by all."""
    for name in CORNERS:
        yield name, "newton, pcr"
        if "without entries" in name or name in ("a scalar", "nothing carried", "control flow"):
            yield name, "blocks"
            yield name, "step by step"
        elif "constant" in name or name in ("ys is None", "the carry stays", "the same leaf twice"):
            yield name, "step by step"


@pytest.mark.parametrize(("name", "scan"), list(corners()))
def test_corners(name, scan):
    problem = corner(name, list(CORNERS).index(name) % 2 == 1)
    assert_agree(backpropagate(problem, SCANS[scan]), oracle(problem))


@pytest.mark.parametrize(
    ("scan", "length", "reverse"),
    [
        ("step by step", 1, True),
        ("blocks", 2, False),
        ("newton, pcr", 1, True),
        ("newton, pcr", 2, False),
    ],
)
def test_short_chains(scan, length, reverse):
    step, init, xs = CORNERS["y sees both carries"]
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


@cache
def of_a_batch(size):
    def step(w, z, x):
        new = jnp.tanh(z @ w + jnp.broadcast_to(x, z.shape))
        return new, new * z

    return Problem(step, WEIGHT, normal(0, size, 3), XS)


@scans
def test_batch_of_one_and_a_batch_axis_without_entries(scan):
    for size in (1, 0):
        problem = of_a_batch(size)
        actual = backpropagate(problem, partial(scan, batch_ndim=1))
        assert_agree(actual, oracle(problem))


@pytest.mark.parametrize(
    ("scan", "batch_ndim"), [("step by step", 1), ("blocks", 0), ("newton, pcr", 1)]
)
def test_any_part_of_a_batch_may_be_declared(scan, batch_ndim):
    problem = PROBLEMS["mlp of a grid"]  # two batch axes
    scan = partial(SCANS[scan], batch_ndim=batch_ndim)
    assert_agree(backpropagate(problem, scan), oracle(problem))


@forwards
@pytest.mark.parametrize(
    "init", [0.0, np.float32(0.5), np.array(0.5), jnp.array(0.5, jnp.float32)], ids=repr
)
def test_weak_and_strong_types_of_the_initial_carry(scan, init):
    xs = XS[:, 0].astype(jnp.asarray(init).dtype)

    def f(z, x):
        return jnp.sin(z) + x, z

    assert_agree(
        scan(f, init, xs), jax.lax.scan(f, init, xs), 1e-10 if xs.dtype == jnp.float64 else 1e-6
    )


@forwards
def test_a_step_that_returns_a_python_number(scan):
    def f(z, x):
        return 0.5, z + x

    assert_agree(scan(f, 0.0, XS[:, 0]), jax.lax.scan(f, 0.0, XS[:, 0]))
    narrow = scan(f, jnp.array(0.0, jnp.float32), XS[:, 0].astype(jnp.float32))
    assert [y.dtype for y in narrow] == [jnp.float32, jnp.float32]


@scans
def test_a_captured_python_number(scan):
    """Under `jax.grad` it is a number still, and to be differentiated."""

    def value(scan, scale):
        return scan(lambda z, x: (jnp.tanh(scale * z + x), scale * z), INIT, XS)[1].sum()

    for scale in (0.5, np.float64(0.5)):
        assert_agree(
            jax.grad(partial(value, scan))(scale), jax.grad(partial(value, jax.lax.scan))(scale)
        )


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


def test_unroll_of_the_sequential_method():
    problem = PROBLEMS["gru"]
    scan = partial(deeppcr.scan, method=deeppcr.Sequential(unroll=4))
    assert_agree(backpropagate(problem, scan), oracle(problem))


@pytest.mark.parametrize("name", ["lstm", "gru backwards"])
def test_autodiff_with_newton(name):
    problem = PROBLEMS[name]
    scan = partial(deeppcr.scan, method="newton", adjoint="autodiff", batch_ndim=1)
    assert_agree(backpropagate(problem, scan), oracle(problem))


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
        ("sequential", "backprop"),
        ("sequential", "auto"),
        (deeppcr.Newton(linear=deeppcr.Recurrence()), "sequential"),
    ],
)
def test_the_program_does_not_grow_with_the_length(method, adjoint):
    sizes = [size_of_gradient(length, method=method, adjoint=adjoint) for length in (8, 64)]
    assert sizes[0] == sizes[1] > 20


@pytest.mark.parametrize("solver", ["pcr", "cyclic_reduction", "prefix_scan", "chunked"])
def test_the_program_of_a_parallel_solver_grows_with_the_logarithm(solver):
    sizes = [
        size_of_gradient(length, method=deeppcr.Newton(linear=solver), adjoint=solver)
        for length in (16, 64, 256)
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
