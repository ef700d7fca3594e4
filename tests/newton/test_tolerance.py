"""An absolute tolerance: one number, one for each step, or a function of the inputs of a step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Newton
from tests.newton.chain import CHAIN, WEIGHT, XS, Z0
from tests.problems import L, assert_agree, rounding, solve, trajectory

HALF = L // 2
ATOL = np.where(np.arange(L) < HALF, 1e-12, 1e-1)


def step(z, x):
    return jnp.tanh(z @ WEIGHT + x[0]), z.sum()


def jacobi(**options):
    return Newton(linearize="zero", rtol=1e-15, **options)


@partial(jax.jit, static_argnames="window")
def solved(atol, window):
    return deeppcr.solve(CHAIN, Z0, method=jacobi(atol=atol, window=window))


def test_a_function_of_the_inputs_and_for_every_example():
    inputs = XS, jnp.asarray(ATOL)
    each = np.stack([ATOL, np.full(L, 1e-12)])

    @jax.jit
    def run():
        def scan(atol):
            return deeppcr.scan(step, Z0, inputs, method=jacobi(atol=atol))

        return scan(lambda x: x[1]), scan(ATOL), jax.vmap(scan)(each), scan(each[1])

    by_function, first, both, second = run()
    assert_agree(by_function, first, 0)
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), first, second)
    assert_agree(jax.tree.map(np.asarray, both), expected, rounding(jnp.float64, 8 * L))


@pytest.mark.parametrize("window", [None, 5])
def test_one_for_each_step(window):
    equal, loose = solved(np.full(L, 1e-12), window), solved(ATOL, window)
    assert equal.stats.iterations > loose.stats.iterations
    if window is None:
        one = solve(CHAIN, Z0, method=jacobi(atol=1e-12))
        assert one.stats.iterations == equal.stats.iterations
        assert_agree(one.trajectory, equal.trajectory, 0)
    assert loose.converged
    errors = np.abs(np.asarray(loose.trajectory) - trajectory(CHAIN, Z0)).max(axis=1)
    assert errors[:HALF].max() < 1e-11
    assert 1e-8 < errors[HALF:].max() < 0.5


BAD = {
    "a name": ("tight", TypeError, "atol is 'tight', expected a number >= 0, an array"),
    "too few": (ATOL[1:], ValueError, r"atol is an array of shape \(12,\), expected \(13,\)"),
    "a tree": (
        lambda x: (x, x),
        TypeError,
        "atol returns, for all steps, .*expected a real number",
    ),
    "a vector": (lambda x: x, ValueError, r"atol returns.*shape \(13, 3\), expected \(13,\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_no_tolerance(name):
    atol, error, words = BAD[name]
    with pytest.raises(error, match=words):
        deeppcr.solve(CHAIN, Z0, method=Newton(atol=atol))


def test_segments_have_no_array_of_tolerances():
    adjoint = deeppcr.Adjoint(checkpoint=4)
    with pytest.raises(ValueError, match=r"atol is float64\[13\], expected one number for all"):
        deeppcr.scan(step, Z0, (XS, ATOL), method=Newton(atol=ATOL), adjoint=adjoint)
