"""Steps with side effects: once a step, in order, as in `jax.lax.scan`; Newton refuses them."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback

import deeppcr
from tests.problems import assert_agree, normal

ALLOWED = [
    {},
    {"method": "sequential"},
    {"adjoint": "autodiff"},
    {"method": "sequential", "adjoint": "backprop"},
]
REFUSED = [
    {"method": "newton"},
    {"method": "pcr"},
    {"adjoint": "pcr"},
    {"adjoint": deeppcr.Adjoint("diagonal")},
]
LENGTH = 12


class Log(list):
    """What a step has logged, in order."""

    def note(self, value):
        self.append(float(value))

    def read(self):
        jax.effects_barrier()
        logged, self[:] = list(self), []
        return logged


def by_debug(log, value):
    jax.debug.callback(log.note, value, ordered=True)


def by_io(log, value):
    io_callback(log.note, None, value, ordered=True)


def in_jit(log, value):
    jax.jit(partial(by_debug, log))(value)


def in_branch(log, value):
    jax.lax.cond(value < 10, partial(by_debug, log), lambda _: None, value)


def in_inner_scan(log, value):
    deeppcr.scan(lambda z, _: (by_debug(log, z), (0.5 * z, None))[1], value, length=2)


def run(scan, tell, log):
    def step(z, x):
        z = jnp.tanh(0.5 * z + x)
        tell(log, z)
        return z, z

    return scan(step, jnp.float64(0.3), normal(0, LENGTH))


TELLING = [by_debug, by_io, in_jit, in_branch, in_inner_scan]


@pytest.mark.parametrize(
    ("options", "tell"), [*(({}, tell) for tell in TELLING), *((way, by_io) for way in ALLOWED[1:])]
)
def test_effects_happen_once_in_order(options, tell):
    log = Log()
    expected = run(jax.lax.scan, tell, log)
    logged = log.read()
    assert_agree(run(partial(deeppcr.scan, **options), tell, log), expected)
    assert log.read() == logged
    assert len(logged) == LENGTH * (2 if tell is in_inner_scan else 1)


def test_solve_and_forward():
    log = Log()

    def step(z, x):
        by_debug(log, z)
        return jnp.tanh(z + x)

    solution = deeppcr.solve(deeppcr.Chain(step, normal(0, LENGTH)), jnp.float64(0.3))
    assert log.read() == [0.3, *solution.trajectory[:-1].tolist()]
    x = deeppcr.forward([lambda z: step(z, 0.1)] * 5, jnp.float64(0.3))
    logged = log.read()
    assert logged[0] == 0.3
    assert len(logged) == 5
    assert float(x) == float(jnp.tanh(logged[-1] + 0.1))


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_newton_refuses(options):
    log = Log()
    with pytest.raises(
        ValueError, match=r"side effects \(debug_callback\).*expected a step without any"
    ):
        run(partial(deeppcr.scan, **options), by_debug, log)
    chain = deeppcr.Chain(lambda z, x: (by_debug(log, z), z + x)[1], normal(0, LENGTH))
    with pytest.raises(ValueError, match="side effects"):
        deeppcr.solve(chain, jnp.float64(0.3), **options)
    assert log.read() == []
