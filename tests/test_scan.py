"""`scan` against `jax.lax.scan`: every method and adjoint, every kind of chain."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.adjoint import Autodiff
from depth.jaxprs import equations
from tests.problems import PROBLEMS, Problem, assert_agree, backpropagate, normal, oracle

METHODS = {
    "newton": "newton",
    "pcr": "pcr",
    "newton by cyclic reduction": deeppcr.Newton(linear="cyclic_reduction"),
    "newton by prefix scan": deeppcr.Newton(linear="prefix_scan"),
    "sequential": "sequential",
    "unrolled": deeppcr.Sequential(unroll=4),
}
ADJOINTS = {
    "step by step": "sequential",
    "pcr": "pcr",
    "cyclic reduction": "cyclic_reduction",
    "prefix scan": "prefix_scan",
    "recurrence": deeppcr.Recurrence(),
    "auto": "auto",
    "autodiff": "autodiff",
}


CASES = [  # every problem (gru: `test_a_long_chain`), method and adjoint at least once
    ("mlp", "newton", "step by step"),
    ("relu mlp", "pcr", "pcr"),
    ("mlp of a grid", "newton by cyclic reduction", "cyclic reduction"),
    ("gru backwards", "newton by prefix scan", "prefix scan"),
    ("lstm", "sequential", "recurrence"),
    ("resnet", "unrolled", "auto"),
    ("ode", "newton", "autodiff"),
    ("odd", "pcr", "step by step"),
    ("batch norm", "sequential", "recurrence"),
    ("custom vjp", "newton", "recurrence"),
    ("custom jvp", "sequential", "prefix scan"),
    ("scalar", "sequential", "pcr"),
]


def test_every_problem_method_and_adjoint_is_tried():
    there = PROBLEMS.keys() - {"gru"}, METHODS.keys(), ADJOINTS.keys()
    assert tuple(map(set, zip(*CASES, strict=True))) == there


@pytest.mark.filterwarnings("ignore:the examples of a batch")  # of batch norm
@pytest.mark.parametrize(("problem", "method", "adjoint"), CASES)
def test_agrees_with_lax_scan(problem, method, adjoint):
    problem = PROBLEMS[problem]
    scan = partial(
        deeppcr.scan,
        method=METHODS[method],
        adjoint=ADJOINTS[adjoint],
        batch_ndim=min(problem.batch_ndim, 1),  # of two batch axes, one may be declared
    )
    assert_agree(backpropagate(problem, scan), oracle(problem))


SCANS = {
    "step by step": partial(deeppcr.scan, method="sequential", adjoint="backprop"),
    "blocks": partial(deeppcr.scan, method="sequential", adjoint=deeppcr.Recurrence()),
    "newton": partial(deeppcr.scan, method="newton", adjoint="backprop"),
    "newton, pcr": partial(deeppcr.scan, method="newton", adjoint="pcr"),
}
LENGTH = 5  # odd: no solver can halve it evenly
WEIGHT, INIT, XS = normal(0, 3, 3, scale=0.5), normal(1, 3), normal(2, LENGTH, 3)
CORNERS = {
    "the carry stays": (lambda w, z, x: (z, w @ z * x), INIT, XS),
    "the carry forgets": (lambda w, z, x: ((x, w @ x), w @ z[0] * z[1]), (INIT, INIT), XS),
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
    "nothing carried": (lambda w, z, x: (None, w @ x), None, XS),
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
# Newton's method where a linear system is peculiar, else the adjoint alone; both look at the carry.
WITH = [
    ("the carry stays", "newton, pcr"),
    ("the carry forgets", "newton, pcr"),
    ("the same leaf twice", "newton"),
    ("leaves are exchanged, no ys", "blocks"),
    ("nothing carried", "newton, pcr"),
    ("nothing carried", "step by step"),
    ("a matrix, and None among the inputs", "blocks"),
    ("control flow", "newton"),
]


@cache
def corner(name, reverse):
    step, init, xs = CORNERS[name]
    return Problem(step, WEIGHT, init, xs, reverse=reverse)


@pytest.mark.parametrize(("name", "scan"), WITH)
def test_corners(name, scan):
    problem = corner(name, list(CORNERS).index(name) % 2 == 1)
    assert_agree(backpropagate(problem, SCANS[scan]), oracle(problem))


def test_a_chain_without_steps():
    def f(z, x):
        return z * 2, {"z": z, "number": 3}

    def all_of(scan):
        def run(z, xs, length):
            last, ys = scan(f, z, xs, length)
            return last.sum(), (last, ys)

        empty = (XS[:0], None), (None, 0), (np.zeros((0, 3)), 0)
        return [jax.grad(run, has_aux=True)(INIT, *arguments) for arguments in empty]

    found = jax.jit(lambda: [all_of(scan) for scan in (*SCANS.values(), jax.lax.scan)])()
    for each in found[:-1]:
        assert_agree(each, found[-1])


def test_a_captured_python_number():
    """Under `jax.grad` it is a number still, and to be differentiated."""

    def gradient(scan, scale):
        def value(scale):
            return scan(lambda z, x: (jnp.tanh(scale * z + x), scale * z), INIT, XS)[1].sum()

        return jax.grad(value)(scale)

    cases = [("step by step", 0.5), ("blocks", np.float64(0.5)), ("newton", 0.5)]

    @jax.jit
    def both():
        expected = gradient(jax.lax.scan, 0.5), gradient(jax.lax.scan, np.float64(0.5))
        return [gradient(SCANS[scan], scale) for scan, scale in cases], expected

    found, (of_python, of_numpy) = both()
    assert_agree(found, [of_python, of_numpy, of_python])


def test_a_long_chain():
    problem = Problem(
        PROBLEMS["gru"].step,
        PROBLEMS["gru"].params,
        normal(3, 2, 3),
        normal(4, 3001, 2, 2),
        batch_ndim=1,
    )
    scan = partial(deeppcr.scan, method="newton", adjoint="pcr", batch_ndim=1)
    assert_agree(backpropagate(problem, scan), oracle(problem))


def size_of_gradient(length, **options):
    """Of the program, and how often the step was traced for it."""
    problem, traces = PROBLEMS["gru"], []

    def value(params, init, xs):
        def step(z, x):
            traces.append(1)
            return problem.step(params, z, x)

        last, ys = deeppcr.scan(step, init, xs, **options)
        return last.sum() + ys.sum()

    gradient = jax.value_and_grad(value, argnums=(0, 1, 2))
    jaxpr = jax.make_jaxpr(gradient)(problem.params, problem.init, normal(4, length, 2))
    return len(list(equations(jaxpr))), len(traces)


def test_the_program_and_the_traces_of_the_step_do_not_grow_with_the_length():
    newton = deeppcr.Newton(linear=deeppcr.Recurrence())
    (short, traces), (long, as_many) = (
        size_of_gradient(length, method=newton, adjoint="sequential") for length in (8, 64)
    )
    assert short == long > 20
    assert traces == as_many <= 2


WIDE = jax.device_put((np.zeros(1024), np.linspace(0.0, 1.0, 64)))


def decaying(z, x):
    return jnp.tanh(0.5 * z + x), None


def test_states_that_nobody_reads_are_not_kept():
    last = jax.jit(lambda z0, xs: deeppcr.scan(decaying, z0, xs)[0])
    memory = last.lower(*WIDE).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 64 * WIDE[0].nbytes / 4
    assert_agree(last(*WIDE), jax.lax.scan(decaying, *WIDE)[0])


def test_jaxs_gradient_of_the_last_state_takes_no_more_memory():
    def memory(scan, **options):
        def loss(z0, xs):
            return jnp.sum(scan(decaying, z0, xs, **options)[0] ** 2)

        compiled = jax.jit(jax.grad(loss, (0, 1))).lower(*WIDE).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    autodiff = Autodiff(with_states=True)
    ours = memory(deeppcr.scan, method="sequential", adjoint=autodiff)
    assert ours <= 1.05 * memory(jax.lax.scan)
