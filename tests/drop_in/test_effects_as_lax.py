"""Effects and checks of a step whose carry holds a counter, under jit, grad and vmap."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback

import deeppcr
from tests.drop_in.kinds import LENGTH, SCANS, assert_same, over
from tests.problems import assert_agree, normal

EFFECTIVE = over("auto", "sequential", "sequential, backprop")
XS = normal(3, LENGTH)


class Log(list):
    def note(self, *values):
        self.append([np.asarray(value).tolist() for value in values])

    def read(self):
        jax.effects_barrier()
        logged, self[:] = list(self), []
        return logged


def by_io(log, *values):
    io_callback(log.note, None, *values, ordered=True)


def by_debug(log, *values):
    jax.debug.callback(log.note, *values, ordered=True)


def by_print(log, *values):
    jax.debug.print("{} {}", *values, ordered=True)


def in_jit(log, *values):
    jax.jit(partial(by_debug, log))(*values)


def in_branch(log, z, count):
    jax.lax.cond(count < 3, partial(by_debug, log), lambda *_: None, z, count)


def in_inner_scan(log, *values):
    deeppcr.scan(lambda z, _: (by_debug(log, *values), (0.5 * z, None))[1], 0.1, length=2)


def run(scan, tell, log, z):
    def step(c, x):
        z, count = c
        z = jnp.tanh(0.5 * z + x)
        tell(log, jax.lax.stop_gradient(z), count)
        return (z, count + 1), z

    return scan(step, (z, 0), XS)


def value(scan, tell, log, z):
    (z, count), zs = run(scan, tell, log, z)
    return z * count + zs.sum()


ORDERED = {
    "eagerly": lambda f: f(0.3),
    "jit": lambda f: jax.jit(f)(0.3),
    "grad": lambda f: jax.grad(f)(0.3),
    "jit of grad": lambda f: jax.jit(jax.value_and_grad(f))(0.3),
    "jvp": lambda f: jax.jvp(f, (0.3,), (1.0,)),
}


def effects():
    """Everything under "auto", and a little elsewhere; an io_callback has no derivative."""
    for transform in ORDERED:
        yield by_debug, transform, SCANS["auto"]
    for tell in (by_print, in_jit, in_branch, in_inner_scan):
        yield tell, "jit", SCANS["auto"]
    for mode in ("sequential", "sequential, backprop"):
        yield by_debug, "jit of grad", SCANS[mode]
    for mode in ("auto", "sequential, backprop"):
        yield by_io, "jit", SCANS[mode]


@pytest.mark.parametrize(("tell", "transform", "scan"), list(effects()))
def test_ordered_effects(tell, transform, scan, capfd):
    log = Log()

    def outcome(scan):
        result = ORDERED[transform](partial(value, scan, tell, log))
        return result, log.read(), capfd.readouterr().out

    (actual, *logged), (expected, *right) = outcome(scan), outcome(jax.lax.scan)
    assert_same(actual, expected)
    assert logged == right
    often = {in_branch: 3, in_inner_scan: 2 * LENGTH}.get(tell, LENGTH)
    assert len(right[0]) + right[1].count("\n") == often


@EFFECTIVE
def test_effects_under_vmap(scan):
    """Without an order: jax takes no other under vmap."""
    log = Log()

    def outcome(scan):
        def tell(log, *values):
            jax.debug.callback(log.note, *values)

        result = jax.jit(jax.vmap(partial(value, scan, tell, log)))(normal(4, 3))
        return result, sorted(log.read())

    (actual, logged), (expected, right) = outcome(scan), outcome(jax.lax.scan)
    assert_same(actual, expected)
    assert logged == right
    assert len(right) == 3 * LENGTH


def user_check(z, count):
    checkify.check(count < 3, "the {} th state is {}", count, z)
    return z


def division(z, count):
    return z / (3.0 - count.astype(float))


CHECKS = {
    "a check of the user's": (user_check, checkify.user_checks),
    "a division": (division, checkify.float_checks),
    "nothing is wrong": (lambda z, count: z, checkify.all_checks),
}


def checked(scan, check):
    def f(z):
        def step(c, x):
            z, count = c
            z = jnp.tanh(0.5 * check(z, count) + x)
            return (z, count + 1), z

        return scan(step, (z, 0), XS)[1].sum()

    return f


MAPS = {
    "alone": lambda f, errors: checkify.checkify(f, errors=errors)(0.3),
    "jit": lambda f, errors: jax.jit(checkify.checkify(f, errors=errors))(0.3),
    "of vmap": lambda f, errors: jax.jit(checkify.checkify(jax.vmap(f), errors=errors))(
        normal(4, 3)
    ),
    "of grad": lambda f, errors: jax.jit(checkify.checkify(jax.grad(f), errors=errors))(0.3),
}


def cases():
    """Every check under jit, and one of them under every transformation."""
    for name in CHECKS:
        for around in MAPS:
            if around == "jit" or name == "a division":
                yield name, around, SCANS["auto"]
    for around in ("of vmap", "of grad"):
        yield "a check of the user's", around, SCANS["auto"]


@pytest.mark.parametrize(("name", "around", "scan"), list(cases()))
def test_checks(name, around, scan):
    check, errors = CHECKS[name]

    def outcome(scan):
        error, result = MAPS[around](checked(scan, check), errors)
        return error.get(), result

    (error, result), (expected, right) = outcome(scan), outcome(jax.lax.scan)
    assert error == expected
    lost = name == "a check of the user's" and around == "of grad"  # by jax.lax.scan, too
    assert (expected is None) == (name.startswith("nothing") or lost)
    np.testing.assert_allclose(result, right, atol=1e-10)


def test_solve_and_forward():
    log = Log()

    def step(z, x):
        by_debug(log, z)
        return jnp.tanh(z + x)

    solution = deeppcr.solve(deeppcr.Chain(step, XS), jnp.float64(0.3))
    assert log.read() == [[z] for z in [0.3, *solution.trajectory[:-1].tolist()]]
    x = deeppcr.forward([lambda z: step(z, 0.1)] * 5, jnp.float64(0.3))
    logged = log.read()
    assert logged[0] == [0.3]
    assert len(logged) == 5
    assert float(x) == float(jnp.tanh(logged[-1][0] + 0.1))


@pytest.mark.parametrize(
    "options", [{"method": "newton"}, {"adjoint": deeppcr.Adjoint("diagonal")}], ids=str
)
def test_newton_refuses(options):
    log = Log()
    with pytest.raises(
        ValueError, match=r"side effects \(debug_callback\).*expected a step without any"
    ):
        run(partial(deeppcr.scan, **options), by_debug, log, 0.3)
    chain = deeppcr.Chain(lambda z, x: (by_debug(log, z), z + x)[1], XS)
    with pytest.raises(ValueError, match="side effects"):
        deeppcr.solve(chain, jnp.float64(0.3), **options)
    assert log.read() == []


def test_a_check_beside_a_solve_of_which_a_gradient_reads_a_part():
    def loss(scan, h):
        def step(z, x):
            states = scan(lambda v, k: (jnp.sin(v + k), k), x, jnp.array([z, z]))[0]
            checkify.check(z < 0.7, "z is {}", z)
            return 0.5 * z + 0.3, states

        return jax.lax.scan(step, h, XS)[0]

    scans = SCANS["auto"], jax.lax.scan
    checked = [checkify.checkify(jax.value_and_grad(partial(loss, scan))) for scan in scans]
    assert_agree(*(f(0.4)[1] for f in checked), 1e-12)
