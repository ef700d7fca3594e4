"""Gradients are exact whatever the blocks: of the forward iteration, and of the adjoint itself."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Adjoint, BlockDiagonal, Diagonal, Newton, Scalar
from deeppcr.adjoint import resolve_adjoint
from deeppcr.chain.chain import trace_chain
from deeppcr.linearize import Zero
from tests.problems import PROBLEMS, L, assert_agree, backpropagate, normal, oracle

ADJOINTS = {
    "diagonal": Adjoint("diagonal", "sequential"),
    "2 probes": Adjoint(Diagonal(probes=2), "sequential"),
    "2 x 2": Adjoint(BlockDiagonal(2), "sequential"),
    "zero": Adjoint("zero", "prefix_scan"),
    "finished at once": Adjoint("diagonal", "sequential", max_iterations=1),
    "finished at once from nothing": Adjoint("zero", "sequential", max_iterations=2),
    "in chunks of scalars": Adjoint(Scalar(np.linspace(0.0, 1.0, L)), "pcr", memory=4 * 5 * 8),
    "in chunks of one": Adjoint("dense", "sequential", memory=1),
}
CASES = [  # each adjoint with one problem; blocks as those of Newton's method: tests/test_vmap.py
    ("2 x 2", "lstm"),
    ("zero", "batch norm"),
    ("finished at once from nothing", "mlp"),
    ("in chunks of scalars", "mlp"),
    ("in chunks of one", "odd"),
]


@pytest.mark.parametrize(("adjoint", "problem"), CASES)
def test_agrees_with_lax_scan(adjoint, problem):
    problem = PROBLEMS[problem]
    options = {"adjoint": ADJOINTS[adjoint], "batch_ndim": problem.batch_ndim}
    scan = partial(deeppcr.scan, method="sequential", **options)
    assert_agree(backpropagate(problem, scan), oracle(problem))


ARGUMENTS = normal(0, 3, 3, scale=0.5), normal(1, 3), normal(2, L, 3)


def loss(scan, weight, init, xs):
    def step(z, x):
        new = jnp.tanh(weight @ z + x)
        return new, new * z

    last, ys = scan(step, init, xs)
    return jnp.sum(last**3) + jnp.sum(jnp.sin(ys))


def gradient(scan, *arguments):
    return jax.grad(partial(loss, scan), argnums=(0, 1, 2))(*arguments)


@cache
def pull(adjoint):
    """From cotangents [L, 2, 3] to gradients: by `scan`, or by `jax.lax.scan` (None)."""
    weight, init, xs = ARGUMENTS
    scan = jax.lax.scan
    if adjoint is not None:
        scan = partial(deeppcr.scan, adjoint=ADJOINTS[adjoint], batch_ndim=1)

    def states(init, xs):
        def step(z, x):
            z = jnp.tanh(z @ weight + x)
            return z, z

        return scan(step, init, xs)[1]

    primals = np.stack([init, -init]), np.stack([xs, -xs], axis=1)
    return jax.jit(lambda g: jax.vjp(states, *primals)[1](g))


QUASI = pytest.mark.parametrize("adjoint", ["2 probes", "zero", "finished at once"])


@QUASI
def test_cotangents_of_zero(adjoint):
    """There is nothing to divide a residual by. Of one example: next to nothing."""
    g = np.zeros((L, 2, 3))
    g[-1, 1, 0] = 1e-200
    assert_agree(pull(adjoint)(g), pull(None)(g))


@QUASI
@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["nan", "inf"])
def test_cotangents_that_are_not_finite_stay_where_they_are(adjoint, value):
    """The gradient to the inputs of later steps does not see them, nor do other examples."""
    g = np.array(normal(6, L, 2, 3))
    g[5, 0, 1] = value
    actual, wanted = (list(map(np.asarray, pull(by)(g))) for by in (adjoint, None))
    assert_agree(actual[1][6:], wanted[1][6:])
    assert_agree([actual[0][1], actual[1][:, 1]], [wanted[0][1], wanted[1][:, 1]])
    assert not np.isfinite(wanted[0][0]).any()
    assert not np.isfinite(actual[0][0]).any()
    assert_agree(np.isfinite(actual[1]), np.isfinite(wanted[1]))


def test_a_chain_that_amplifies():
    """Gradients of order 2^60 beside those of the last steps: each is right by its own size."""
    weight = jax.device_put(2.0 * np.linalg.qr(normal(0, 3, 3))[0])

    def states(scan, init, xs):
        return scan(lambda z, x: ((new := weight @ z * (1 + 0.1 * jnp.sin(x))), new), init, xs)[1]

    def grads(scan, *arguments):
        return jax.grad(lambda *a: states(scan, *a).sum(), argnums=(0, 1))(*arguments)

    found = _both(grads, Adjoint("diagonal", "sequential"), ARGUMENTS[1], normal(7, 60, 3))
    actual, wanted = (list(map(np.asarray, each)) for each in found)
    np.testing.assert_allclose(actual[0], wanted[0], rtol=1e-10)
    size = np.abs(wanted[1]).max(1, keepdims=True)
    assert (np.abs(actual[1] - wanted[1]) <= 1e-10 * size).all()


def test_slow_corrections_are_not_taken_for_converged():
    """In bfloat16, where each correction is soon small beside the sum of all."""
    weight, init = ARGUMENTS[0].astype(jnp.bfloat16), ARGUMENTS[1].astype(jnp.bfloat16)
    xs = normal(7, 60, 3).astype(jnp.bfloat16)

    def grad(scan, init):
        def step(z, x):
            z = z + jnp.asarray(0.05, z.dtype) * jnp.tanh(weight @ z + x)
            return z, z

        return jax.grad(lambda init: scan(step, init, xs)[1].astype(jnp.float32).sum())(init)

    assert_agree(*_both(grad, Adjoint("identity", "sequential"), init), 0.05)


def _both(of, adjoint, *arguments):
    """What ``of`` is by this adjoint, and by `jax.lax.scan`."""
    ours = partial(deeppcr.scan, adjoint=adjoint)
    return jax.jit(lambda *a: (of(ours, *a), of(jax.lax.scan, *a)))(*arguments)


def test_a_loose_tolerance_is_looser():
    actual, wanted = _both(gradient, Adjoint("zero", rtol=1e-1), *ARGUMENTS)
    assert_agree(actual, wanted, 0.5)
    with pytest.raises(AssertionError):
        assert_agree(actual, wanted, 1e-9)


def bound(adjoint, method, step=lambda z, x: jnp.tanh(ARGUMENTS[0] @ z + x)):
    problem = trace_chain(lambda z, x: (step(z, x), None), ARGUMENTS[1], ARGUMENTS[2], L, 0, "z0")
    return resolve_adjoint(adjoint, method, problem, False)


def test_auto_takes_the_linearization_of_newton():
    assert bound(Adjoint(), Newton(linearize="zero")).linearization == Zero()
    assert bound(Adjoint(), Newton(linearize=Diagonal())).linearization == Diagonal()
    assert (
        bound(Adjoint(linearize="diagonal"), Newton(linearize="zero")).linearization == Diagonal()
    )
    assert bound(Adjoint(), deeppcr.Sequential()).is_exact
    assert bound(Adjoint(), Newton()).is_exact
    assert not bound(Adjoint("diagonal"), Newton()).is_exact
    assert bound(Adjoint("diagonal"), Newton(), lambda z, x: jnp.sin(z) + x).is_exact
