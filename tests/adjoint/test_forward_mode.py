"""Steps with a while loop: forward mode as by `jax.lax.scan`; reverse mode fails as there."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.problems import assert_agree, normal

WEIGHT, Z0, XS = normal(0, 3, 3, scale=0.3), jnp.ones(3), normal(1, 6, 3)
DIAGONAL = {"adjoint": deeppcr.Adjoint("diagonal", "sequential")}


def repeated(weight, z):
    """So many times as the state says."""
    count = 3 + (z.sum() > 50).astype(jnp.int32)
    return jax.lax.fori_loop(0, count, lambda _, y: jnp.tanh(weight @ y + 0.1 * z), z)


def inside(weight, z):
    """The loop in a function that is jitted, in a branch, in a loop, and in a rule."""

    @jax.custom_jvp
    def looped(weight, z):
        return repeated(weight, z)

    @looped.defjvp
    def _(primals, tangents):
        return jax.jvp(repeated, primals, tangents)

    def body(z, _):
        return jax.lax.cond(z[0] > 0, jax.jit(looped), lambda w, z: jnp.sin(w @ z), weight, z), None

    return jax.lax.scan(body, z, None, 2)[0]


def root(weight, z):
    """A root found by a while loop, with derivatives by the implicit function theorem."""

    def residual(y):
        return y - jnp.tanh(weight @ y + z)

    def solve(f, y):
        return jax.lax.while_loop(lambda y: jnp.abs(f(y)).max() > 1e-13, lambda y: y - f(y), y)

    return jax.lax.custom_root(
        residual, z, solve, lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y)
    )


@jax.custom_jvp
def tanh_by_loop(z):
    """A while loop with a derivative of its own, which jax can transpose."""
    return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, jnp.tanh(z)), (0, z))[1]


@tanh_by_loop.defjvp
def _(primals, tangents):
    y = tanh_by_loop(*primals)
    return y, (1 - y**2) * tangents[0]


def counted(weight, z):
    """A while loop of integers, which do not move."""
    count = jax.lax.while_loop(lambda i: i < 5, lambda i: i + 2, (z.sum() > 0).astype(jnp.int32))
    return 0.2 * count.astype(z.dtype) * jnp.tanh(weight @ z)


FORWARDS_ONLY = {"in the step": repeated, "in calls": inside}


def both(weight, z):
    """Loops that have both modes: of a root, with a rule of their own, and of integers."""
    return (root(weight, z) + tanh_by_loop(weight @ z) + counted(weight, z)) / 2


def run(scan, function, weight, init, xs):
    def step(z, x):
        z = function(weight, z) + x
        return z, z * x.sum()

    return scan(step, init, xs)


def forwards(scan, function):
    arguments = WEIGHT, Z0, XS
    out, push = jax.linearize(partial(run, scan, function), *arguments)
    return out, push(*arguments)


def gradient(scan, function):
    return jax.grad(lambda *a: run(scan, function, *a)[1].sum(), (0, 1, 2))(WEIGHT, Z0, XS)


def both_ways(scan, function):
    arguments = WEIGHT, Z0, XS
    out, pull = jax.vjp(partial(run, scan, function), *arguments)
    return out, pull(out)


@cache
def expected(transformation, name):
    return jax.jit(partial(transformation, jax.lax.scan, FORWARDS_ONLY[name]))()


@pytest.mark.parametrize(
    ("name", "options"), [("in the step", DIAGONAL), ("in calls", {"method": "newton"})], ids=str
)
def test_forward_mode(name, options):
    scan = partial(deeppcr.scan, **options)
    actual = jax.jit(partial(forwards, scan, FORWARDS_ONLY[name]))()
    assert_agree(actual, expected(forwards, name))


@pytest.mark.parametrize(
    ("name", "options"), [("in the step", DIAGONAL), ("in calls", {"adjoint": "pcr"})], ids=str
)
def test_reverse_mode_says_what_jax_says(name, options):
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work for lax"):
        jax.eval_shape(partial(gradient, partial(deeppcr.scan, **options), FORWARDS_ONLY[name]))


def test_loops_that_have_both_modes():
    scans = partial(deeppcr.scan, adjoint="sequential"), jax.lax.scan
    assert_agree(*jax.jit(lambda: [both_ways(scan, both) for scan in scans])())


def test_what_does_not_pass_the_loop_has_reverse_mode():
    """The step's weights go through a while loop; its state does not."""

    def function(weight, z):
        grown = jax.lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, 0.9 * s[1]), (0, weight)
        )
        return jnp.tanh(grown[1] @ z)

    def by_state(scan):
        return jax.grad(lambda z: run(scan, function, WEIGHT, z, XS)[1].sum())(Z0)

    scans = partial(deeppcr.scan, adjoint="sequential"), jax.lax.scan
    assert_agree(*jax.jit(lambda: list(map(by_state, scans)))())
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.eval_shape(partial(gradient, partial(deeppcr.scan, adjoint="pcr"), function))
