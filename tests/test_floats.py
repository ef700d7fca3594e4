"""Narrow floating types, and what is not finite: Newton gives what the sequential program gives."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Newton
from tests.problems import L, affine, assert_agree, normal, rounding, solve, trajectory


def narrow_chain(dtype):
    weight = normal(0, 4, 4, 4, scale=0.4)[0].astype(dtype)

    def step(z, x):
        return jnp.tanh(affine(z, weight, x))

    return deeppcr.Chain(step, normal(1, 100, 4).astype(dtype)), normal(2, 4).astype(dtype)


def test_gradients_of_narrow_types():
    dtype = jnp.bfloat16
    with jax.numpy_dtype_promotion("standard"):
        chain, z0 = narrow_chain(dtype)
        wide, wide_z0 = narrow_chain(jnp.float64)

        def value(xs, z0, like, **options):
            return jnp.sum(deeppcr.solve(deeppcr.Chain(like.step, xs), z0, **options).trajectory)

        grad = jax.grad(value, argnums=(0, 1))
        ours = partial(grad, like=chain, method="newton", adjoint="pcr")
        plain = partial(grad, like=wide, method="sequential", adjoint="autodiff")
        actual = jax.jit(ours)(chain.inputs, z0)
        exact = jax.jit(plain)(wide.inputs, wide_z0)
    expected = jax.tree.map(lambda g: g.astype(dtype), exact)
    assert_agree(actual, expected, 16 * float(jnp.finfo(dtype).eps))


def test_leaves_of_two_dtypes():
    def step(z, x):
        wide = jnp.tanh(0.5 * z["wide"] + z["narrow"].astype(jnp.float64) + x)
        return {"wide": wide, "narrow": (0.3 * wide).astype(jnp.float32)}

    chain = deeppcr.Chain(step, normal(0, L))
    z0 = {"wide": jnp.array(0.1), "narrow": jnp.array(0.2, jnp.float32)}
    solution = solve(chain, z0, method="newton")
    assert solution.converged
    assert_agree(solution.trajectory, trajectory(chain, z0), rounding(jnp.float32, 16))


def test_narrow_types_that_only_float32_contains():
    def loss(scan, z, xs):
        def step(z, x):
            a, b = (leaf.astype(jnp.float32) for leaf in z)
            a, b = 0.5 * jnp.sin(a) + 0.3 * b + x, 0.4 * jnp.cos(b) - 0.2 * a
            new = a.astype(jnp.bfloat16), b.astype(jnp.float16)
            return new, new

        return sum(y.astype(jnp.float32).sum() for y in jax.tree.leaves(scan(step, z, xs)))

    z = jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.float16)
    ways = {"method": "newton"}, {"adjoint": "pcr"}, {"adjoint": "backprop"}, {}
    scans = [jax.lax.scan, *(partial(deeppcr.scan, **way) for way in ways)]

    @jax.jit
    def each(*at):
        return [jax.value_and_grad(partial(loss, scan), (0, 1))(*at) for scan in scans]

    expected, *found = each(z, normal(1, L, 3).astype(jnp.float32))
    assert_agree(found, [expected] * len(ways), 16 * float(jnp.finfo(jnp.bfloat16).eps))


STEPS = {
    "nan for good": lambda z, x: jnp.sqrt(1.0 + 0.1 * z - x),
    "infinite for good": lambda z, x: z * jnp.exp(300 * x),
    "infinite for one step": lambda z, x: jnp.where(
        jnp.isfinite(z), jnp.tanh(z) + 1e200 * x * 1e200, 0.5
    ),
}


def inputs(at_7):
    xs = np.zeros((20, 3))
    xs[7] = at_7
    return xs


@pytest.mark.parametrize(
    ("name", "linear"), list(zip(STEPS, ["pcr", "prefix_scan", "sequential"], strict=True))
)
def test_non_finite_states_are_those_of_the_sequential_program(name, linear):
    chain, z0 = deeppcr.Chain(STEPS[name], inputs([5.0, 6.0, 7.0])), np.array([0.5, 0.6, 0.7])
    expected = trajectory(chain, z0)
    assert not np.isfinite(expected).all()
    assert_agree(solve(chain, z0, method=Newton(linear=linear)).trajectory, expected)
