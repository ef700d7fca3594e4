"""`jax.vmap` around a solve: what is held, statistics and guesses of all examples at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import deeppcr
from deeppcr import Newton
from deeppcr.solving.problem import Problem
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

B, L, W = 5, 6, 3
WEIGHTS = {"w": normal(0, W, W, scale=0.4), "b": normal(1, W, scale=0.3)}
Z0, XS = normal(4, W), normal(5, L, W)
COMBINATIONS = {
    "newton, pcr": {"method": "pcr", "adjoint": "pcr"},
    "sequential": {"method": "sequential", "adjoint": "backprop"},
    "sequential, blocks": {"method": "sequential", "adjoint": "sequential"},
}


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
    results = (each.outvars for each in equations(jax.make_jaxpr(gradient)((u, v))))
    shapes = {tuple(v.aval.shape) for found in results for v in found if hasattr(v.aval, "shape")}
    assert (inputs, outputs) in shapes
    assert not [s for s in shapes if len(s) > 2 and {inputs, outputs} <= set(s)]


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


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_examples_may_pass_their_states_on(combination):
    def step(z, x):
        z = 0.5 * jnp.tanh(z + x) + 0.3 * lax.ppermute(z, "examples", [(0, 1), (1, 0)])
        return z, z

    def value(scan, zs):
        one = lambda z: scan(step, z, XS)[1]  # noqa: E731
        return jnp.sum(jax.vmap(one, axis_name="examples")(zs) ** 2)

    ours = partial(deeppcr.scan, **COMBINATIONS[combination])
    both = jax.jit(lambda zs: [jax.value_and_grad(partial(value, f))(zs) for f in (ours, lax.scan)])
    assert_agree(*both(jnp.stack([Z0, 2 * Z0])))


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
