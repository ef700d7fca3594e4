"""Steps with mutable references (`jax.new_ref`) run as by `jax.lax.scan`, in order and once."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import Chain, Newton
from tests.problems import L, assert_agree, normal

XS = normal(0, L)
Z0 = jnp.array(0.7)


def reading(ref, z, x):
    return jnp.tanh(z * ref[...] + x), z


def writing(ref, z, x):
    """It counts its calls, and what it returns depends on the count."""
    ref[...] += 1.0
    return jnp.tanh(z / ref[...] + x), ref[...]


def in_a_call(ref, z, x):
    return jax.jit(partial(writing, ref))(z, x)


def of_its_own(_, z, x):
    own = jax.new_ref(z)
    own[...] = jnp.tanh(own[...] + x)
    return own[...], z


STEPS = [reading, writing, in_a_call, of_its_own]
PLAIN = [{}, {"adjoint": "backprop"}, {"method": "sequential", "adjoint": "autodiff"}]


def called(run, step):
    """What ``run(step, z0, xs)`` returns, and what it leaves in the reference."""
    ref = jax.new_ref(jnp.array(0.5))
    result = run(partial(step, ref), Z0, XS)
    return result, ref[...]


def by_solve(step, z, xs, **options):
    solution = deeppcr.solve(Chain(lambda z, x: step(z, x)[0], xs), z, **options)
    return solution.value, solution.trajectory


def by_lax(step, z, xs):
    def body(z, x):
        z, _ = step(z, x)
        return z, z

    return jax.lax.scan(body, z, xs)


@cache
def wanted(step):
    return called(jax.lax.scan, step), called(by_lax, step)


@pytest.mark.parametrize(
    ("step", "options"), [*((step, {}) for step in STEPS), *((writing, way) for way in PLAIN[1:])]
)
def test_they_are_read_and_written_as_by_lax_scan(step, options):
    by_scan, states = wanted(step)
    assert_agree(called(partial(deeppcr.scan, **options), step), by_scan)
    assert_agree(jax.jit(partial(called, partial(deeppcr.scan, **options), step))(), by_scan)
    assert_agree(called(partial(by_solve, **options), step), states)


def test_derivatives():
    def value(scan, z, xs):
        ref = jax.new_ref(jnp.array(0.5))
        last, ys = scan(partial(writing, ref), z, xs)
        return last + ys.sum()

    ours, theirs = (
        jax.jit(jax.grad(partial(value, scan), argnums=(0, 1)))(Z0, XS)
        for scan in (deeppcr.scan, jax.lax.scan)
    )
    assert_agree(ours, theirs)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "options", [{"method": "newton"}, {"method": Newton(window=4)}, {"adjoint": "pcr"}], ids=str
)
def test_what_works_on_all_steps_at_once_refuses_them(step, options):
    asked, others = ("method", "sequential") if "method" in options else ("adjoint", "autodiff")
    with pytest.raises(
        ValueError,
        match=rf"^{asked} is .*mutable reference \(jax.new_ref\).*"
        rf"\"auto\".* and \"{others}\" run it as jax.lax.scan",
    ):
        called(partial(deeppcr.scan, **options), step)
    with pytest.raises(ValueError, match=r"mutable reference"):
        called(partial(by_solve, **options), step)
