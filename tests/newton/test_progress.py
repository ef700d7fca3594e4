"""`Newton(progress=)`: how far a solve has come, reported while it runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton


def step(z, x):
    return jnp.tanh(z + x)


CHAIN = Chain(step, jnp.linspace(0.0, 1.0, 50))
START = jnp.array(0.5)


def test_every_iteration_is_reported():
    reports = []
    newton = Newton(progress=lambda *news: reports.append(news), record=True)
    solution = jax.jit(lambda z: deeppcr.solve(CHAIN, z, method=newton))(START)
    jax.effects_barrier()
    iterations, prefixes, residuals = zip(*reports, strict=True)
    assert iterations == tuple(range(int(solution.stats.iterations) + 1))
    assert list(prefixes) == sorted(prefixes)
    assert prefixes[-1] == 50
    np.testing.assert_allclose(residuals, solution.stats.residuals[: len(reports)])


def test_windows_and_gradients_report_it_too():
    reports = []
    newton = Newton(progress=lambda *news: reports.append(news), window=16)
    gradient = jax.jit(jax.grad(lambda z: deeppcr.solve(CHAIN, z, method=newton).value))(START)
    jax.effects_barrier()
    assert reports[-1][1] == 50
    plain = jax.grad(
        lambda z: deeppcr.solve(CHAIN, z, method="sequential", adjoint="autodiff").value
    )(START)
    np.testing.assert_allclose(gradient, plain)


def test_each_of_a_batch_is_reported():
    reports = []
    newton = Newton(progress=lambda *news: reports.append(news))
    jax.vmap(lambda z: deeppcr.solve(CHAIN, z, method=newton).value)(
        jnp.array([0.5, 0.1])
    ).block_until_ready()
    jax.effects_barrier()
    assert [iteration for iteration, *_ in reports].count(0) == 2


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="progress is True, expected a function"):
        Newton(progress=True)
