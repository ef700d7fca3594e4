"""`jax.vmap` around a solve: values, gradients, statistics and plans of all examples at once."""

import importlib
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr import Newton
from deeppcr.problem import Problem
from tests.problems import assert_agree, normal, pairs

B, L, W = 5, 6, 3
WEIGHTS = {"w": normal(0, W, W, scale=0.4), "b": normal(1, W, scale=0.3)}
MANY = {"w": normal(2, B, W, W, scale=0.4), "b": normal(3, B, W, scale=0.3)}
Z0, XS = normal(4, W), normal(5, L, W)
Z0S, XSS = normal(6, B, W), normal(7, B, L, W)
COMBINATIONS = {
    "newton, pcr": {"method": "pcr", "adjoint": "pcr"},
    "sequential": {"method": "sequential", "adjoint": "backprop"},
    "sequential, blocks": {"method": "sequential", "adjoint": "sequential"},
    "sequential, autodiff": {"method": "sequential", "adjoint": "autodiff"},
    "quasi-Newton": {"method": Newton(linearize="diagonal"), "adjoint": deeppcr.Adjoint()},
    "of a window": {"method": Newton(window=4)},
    "Picard, by input": {
        "method": Newton(linearize=deeppcr.Scalar(of_input=lambda x: 0.1 * x[0])),
    },
}


def run(scan, weights, z0, xs):
    """A nonlinear chain, with outputs."""

    def step(z, x):
        z = jnp.tanh(weights["w"] @ z + weights["b"] + x)
        return z, {"y": jnp.sin(z), "count": jnp.int32(3)}

    return scan(step, z0, xs)


def loss(scan, *arguments):
    last, ys = run(scan, *arguments)
    return jnp.sum(last**3) + jnp.sum(ys["y"] ** 2)


MAPS = {
    "states": (WEIGHTS, Z0S, XS),
    "inputs": (WEIGHTS, Z0, XSS),
    "states and inputs": (WEIGHTS, Z0S, XSS),
    "weights": (MANY, Z0, XS),
    "everything": (MANY, Z0S, XSS),
    "one array of the weights": ({"w": WEIGHTS["w"], "b": MANY["b"]}, Z0, XS),
}


def axes(arguments):
    """The examples are on axis 0 of what has one axis more."""
    plain = (WEIGHTS, Z0, XS)
    return jax.tree.map(lambda x, y: 0 if x.ndim > y.ndim else None, arguments, plain)


def of_many(function, arguments):
    return jax.vmap(function, in_axes=axes(arguments))


def total(scan, arguments, *moving):
    return of_many(partial(loss, scan), arguments)(*moving).sum()


def everything(name, scan):
    """Values and gradients of one of the maps."""
    arguments = MAPS[name]

    def value(*moving):
        last, ys = of_many(partial(run, scan), arguments)(*moving)
        return jnp.sum(last**3) + jnp.sum(ys["y"] ** 2), (last, ys)

    return jax.value_and_grad(value, argnums=(0, 1, 2), has_aux=True)(*arguments)


@cache
def expected(transformation, *arguments):
    """By `jax.lax.scan`, once for all combinations."""
    return jax.jit(partial(transformation, *arguments, lax.scan))()


@pytest.mark.parametrize(("name", "combination"), pairs(list(MAPS), list(COMBINATIONS)))
def test_values_and_gradients(name, combination):
    scan = partial(deeppcr.scan, **COMBINATIONS[combination])
    assert_agree(jax.jit(partial(everything, name, scan))(), expected(everything, name))


def nested(scan):
    """Weights by rows of a grid, states by columns."""
    inner = jax.vmap(partial(loss, scan), (None, 0, None))
    outer = jax.vmap(inner, ({"w": 0, "b": 0}, None, None))

    def value(*arguments):
        return jnp.sin(outer(*arguments)).sum()

    return jax.value_and_grad(value, argnums=(0, 1, 2))(MANY, Z0S, XS)


def tangents(scan):
    many = jax.vmap(partial(run, scan), (None, 0, 0))
    primals = WEIGHTS, Z0S, XSS
    moved = jax.jvp(many, primals, jax.tree.map(jnp.cos, primals))
    return moved[0], moved[1][0], moved[1][1]["y"]


def second_derivatives(scan):
    def slope(b):
        weights = {"w": WEIGHTS["w"], "b": b}
        return total(scan, MAPS["states and inputs"], weights, Z0S, XSS)

    return jax.hessian(slope)(WEIGHTS["b"])


def of_one_named_axis_of_two(scan):
    """The examples of the inner axis are apart, those of the outer one meet in every step."""

    def one(w, z0, xs):
        def step(z, x):
            z = jnp.tanh(w @ z + x + 0.3 * lax.pmean(z, "outer"))
            return z, z * lax.axis_index("outer").astype(z.dtype)

        return scan(step, z0, xs)

    def value(w):
        inner = jax.vmap(partial(one, w), (None, 0), axis_name="inner")
        last, ys = jax.vmap(inner, (0, None), axis_name="outer")(Z0S[:2], XSS[:3])
        return jnp.sum(last) + jnp.sum(ys**2), (last, ys)

    return jax.value_and_grad(value, has_aux=True)(WEIGHTS["w"])


TRANSFORMATIONS = [
    (nested, {"method": "newton"}),
    (tangents, {}),
    (second_derivatives, {}),
    (of_one_named_axis_of_two, {"method": "newton"}),
]


@pytest.mark.parametrize(("transformation", "options"), TRANSFORMATIONS)
def test_transformations(transformation, options):
    scan = partial(deeppcr.scan, **options)
    assert_agree(jax.jit(partial(transformation, scan))(), expected(transformation))


def test_a_batch_inside_of_the_examples():
    w, z0, xs = WEIGHTS["w"], normal(8, B, 2, W), normal(9, B, L, 2, W)

    def value(scan, w):
        def step(z, x):
            z = jnp.tanh(z @ w + x)
            return z, z

        many = jax.vmap(partial(scan, step))(z0, xs)
        return jnp.sum(many[1] ** 2), many

    scan = partial(deeppcr.scan, method="newton", batch_ndim=1)
    one, other = (
        jax.jit(jax.grad(partial(value, each), has_aux=True))(w) for each in (scan, lax.scan)
    )
    assert_agree(one, other)


def shapes_in(jaxpr):
    """The shapes of all variables of a program, and of the programs inside it."""
    found = set()
    waiting = [jaxpr]
    while waiting:
        program = waiting.pop()
        program = getattr(program, "jaxpr", program)
        for equation in program.eqns:
            found |= {tuple(v.aval.shape) for v in equation.outvars if hasattr(v.aval, "shape")}
            waiting += jax.extend.core.jaxprs_in_params(equation.params)
    return found


@pytest.mark.parametrize("combination", ["sequential", "newton, pcr", "sequential, blocks"])
def test_gradients_of_shared_weights_are_not_held_per_example(combination):
    scan = partial(deeppcr.scan, **COMBINATIONS[combination])
    inputs, outputs = 67, 71  # sizes of no other array
    u = normal(10, inputs, outputs, scale=0.1)
    v = normal(11, outputs, W, scale=0.1)
    xss = normal(12, B, L, inputs)

    def value(scan, weights):
        def step(z, x):
            z = jnp.tanh(WEIGHTS["w"] @ z + jnp.tanh(x @ weights[0]) @ weights[1])
            return z, z

        return jnp.sum(jax.vmap(lambda xs: scan(step, Z0, xs)[1])(xss) ** 2)

    gradient = jax.grad(partial(value, scan))
    shapes = shapes_in(jax.make_jaxpr(gradient)((u, v)))
    assert (inputs, outputs) in shapes
    assert not [s for s in shapes if len(s) > 2 and {inputs, outputs} <= set(s)]


def test_the_planner_sees_the_examples(monkeypatch):
    problem = importlib.import_module("deeppcr.problem")
    seen = []

    def choose_method(costs, platform):
        seen.append(costs.chain.layout.batch_shape)
        return deeppcr.Sequential()

    def choose_adjoint(costs, method, platform):
        seen.append(costs.chain.layout.batch_shape)
        return None

    monkeypatch.setattr(problem, "choose_method", choose_method)
    monkeypatch.setattr(problem, "choose_adjoint", choose_adjoint)
    scan = partial(deeppcr.scan)
    jax.jit(jax.vmap(partial(run, scan, WEIGHTS))).lower(Z0S, XSS)
    assert seen[-1] == (B,)
    inner = jax.vmap(partial(loss, scan), (None, 0, None))
    outer = jax.vmap(inner, (None, None, 0))
    seen.clear()
    jax.jit(jax.grad(lambda w: outer(w, Z0S, XSS[:2]).sum())).lower(WEIGHTS)
    assert seen[-1] == (2, B)


def test_statistics_are_those_of_each_example():
    # Some have converged after 7 iterations. Of a chain that amplifies differences the iterates would
    # be those of rounding errors, which are others in a program for many examples.
    chain = deeppcr.Chain(lambda z, x: jnp.sin(z + x), normal(13, 40))
    starts = np.linspace(-2.0, 2.0, 6)
    method = Newton(max_iterations=7, on_failure="return", record=True)
    one = partial(deeppcr.solve, chain, method=method)
    alone = jax.jit(one)
    stepwise = partial(deeppcr.solve, chain, method="sequential")
    many, stepped = jax.jit(lambda z: (jax.vmap(one)(z), jax.vmap(stepwise)(z)))(starts)
    each = [alone(z) for z in starts]
    assert many.stats.iterations.shape == many.result.shape == (6,)
    assert len(set(many.result.tolist())) == len(set(many.stats.iterations.tolist())) == 2
    np.testing.assert_array_equal(many.result, [run.result for run in each])
    np.testing.assert_array_equal(many.stats.prefix, [run.stats.prefix for run in each])
    np.testing.assert_array_equal(many.stats.iterations, [run.stats.iterations for run in each])
    assert many.stats.residuals.shape == (6, 8)
    np.testing.assert_array_equal(stepped.stats.prefix, [40] * 6)
    np.testing.assert_array_equal(stepped.result, [deeppcr.Result.CONVERGED] * 6)


@pytest.mark.parametrize("method", [Newton, deeppcr.Auto])
def test_each_example_has_its_own_guess(method):
    guesses = normal(14, B, L, W)

    def one(guess, z0, weights):
        step = deeppcr.Chain(lambda z, x: jnp.tanh(weights["w"] @ z + x), XS)
        return deeppcr.solve(step, z0, method=method(initial_guess=guess)).trajectory.sum()

    def gradient(guesses):
        many = jax.vmap(one, (0, None, None))
        return jax.grad(lambda z, w: many(guesses, z, w).sum(), argnums=(0, 1))(Z0, WEIGHTS)

    def by_scan(z0, weights):
        return B * lax.scan(lambda z, x: (jnp.tanh(weights["w"] @ z + x),) * 2, z0, XS)[1].sum()

    right = jax.jit(jax.grad(by_scan, argnums=(0, 1)))(Z0, WEIGHTS)
    assert_agree(jax.jit(gradient)(guesses), right)


@pytest.mark.parametrize(("method", "adjoint"), [("sequential", "backprop"), ("newton", "pcr")])
def test_transposed(method, adjoint):
    """A chain that is linear in its inputs."""

    def linear(scan, xs):
        return jax.vmap(lambda x: scan(lambda z, x: (0.5 * z + x, z), jnp.zeros(W), x)[1])(xs)

    ours = partial(linear, partial(deeppcr.scan, method=method, adjoint=adjoint))
    both = ours, partial(linear, lax.scan)
    assert_agree(*jax.jit(lambda: [jax.linear_transpose(each, XSS)(XSS) for each in both])())


def shared(scan, z, rate, name):
    """Beside a state that differs: a learning rate, and a mean over the examples."""

    def step(carry, x):
        z, rate, mean = carry
        z = jnp.tanh(WEIGHTS["w"] @ z + rate * x)
        mean = 0.9 * mean + 0.1 * (lax.pmean(z, name) if name else x)
        return (z, 0.9 * rate, mean), (z.sum(), rate, mean)

    return scan(step, (z, rate, jnp.zeros(W)), XS)


@pytest.mark.parametrize("name", [None, "examples"])
@pytest.mark.parametrize("combination", ["newton, pcr", "sequential", "of a window"])
def test_results_in_which_examples_do_not_differ(name, combination):
    scan = partial(deeppcr.scan, **COMBINATIONS[combination])

    def value(scan, zs, rate):
        mapped = jax.vmap(
            partial(shared, scan, name=name),
            in_axes=(0, None),
            out_axes=((0, None, None), (0, None, None)),
            axis_name=name or "other",
        )
        last, ys = mapped(zs, rate)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves((last, ys))), (last, ys)

    def both(scan):
        return jax.value_and_grad(partial(value, scan), argnums=(0, 1), has_aux=True)

    arguments = Z0S, jnp.float64(0.5)
    assert_agree(jax.jit(both(scan))(*arguments), jax.jit(both(lax.scan))(*arguments))


def test_a_chain_in_a_step_is_mapped_once_for_the_same_shapes(monkeypatch):
    """However often the program of the outer chain evaluates its step."""
    sizes = []

    def of_examples(problem, size, axes, original=Problem.of_examples):
        sizes.append((size, axes))
        return original(problem, size, axes)

    monkeypatch.setattr(Problem, "of_examples", of_examples)
    inner = partial(deeppcr.scan, lambda z, x: (jnp.sin(z) + x, None), method="newton")

    def outer(z, xs):
        return deeppcr.scan(lambda z, x: (0.5 * inner(z, x)[0], None), z, xs, method="newton")[0]

    jax.make_jaxpr(jax.grad(lambda *at: outer(*at).sum(), (0, 1)))(jnp.ones(2), normal(0, 5, 3, 2))
    assert len(sizes) == len(set(sizes)) > 0
