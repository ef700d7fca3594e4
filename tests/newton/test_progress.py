"""`progress=`: how far a solve has come, reported while it runs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Auto, Chain, Newton, Sequential
from deeppcr.newton.convergence import NewtonCriterion


def step(z, x):
    return jnp.tanh(z + x)


CHAIN = Chain(step, np.linspace(0.0, 1.0, 50))
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


def test_reported_states_are_not_taken_back(monkeypatch):
    """The first estimate here is too good."""
    judge, reports = NewtonCriterion.__call__, []

    def rash(self, now, *rest):
        found = judge(self, now, *rest)
        is_first = jnp.isinf(now.update).all()
        return found._replace(converged=jnp.where(is_first, 10, found.converged))

    monkeypatch.setattr(NewtonCriterion, "__call__", rash)
    newton = Newton(progress=lambda *news: reports.append(news))
    jax.jit(lambda z: deeppcr.solve(CHAIN, z, method=newton).value)(START)
    jax.effects_barrier()
    prefixes = [prefix for _, prefix, _ in reports]
    assert prefixes[:2] == [10, 10]
    assert prefixes == sorted(prefixes)
    assert prefixes[-1] == 50


def told(capsys, method, adjoint="auto"):
    """What is printed, eagerly or under jit."""
    jax.jit(lambda z: deeppcr.solve(CHAIN, z, method=method, adjoint=adjoint).value)(START)
    jax.effects_barrier()
    return capsys.readouterr().err.splitlines()


def test_lines(capsys):
    deeppcr.solve(CHAIN, START, method=Newton(progress=True))
    jax.effects_barrier()
    lines = capsys.readouterr().err.splitlines()
    assert all(
        re.fullmatch(rf"iteration {k}: \d+ of 50 steps, residual \de-?\d+", line)
        for k, line in enumerate(lines)
    )
    assert ": 50 of 50 steps, residual" in lines[-1]


@pytest.mark.parametrize(
    ("method", "adjoint", "before"),
    [
        (Sequential(progress=True), "auto", 0),
        (Auto(progress=True), "auto", 0),
        (Auto(progress=True), "autodiff", 0),
        (Newton(progress=True, max_iterations=1), "auto", 2),
    ],
)
def test_what_runs_step_by_step_says_so_once_at_its_end(capsys, method, adjoint, before):
    lines = told(capsys, method, adjoint)
    assert lines[before:] == ["sequential: 50 of 50 steps"]
