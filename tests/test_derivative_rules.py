"""Derivative rules inside a step: each is used as often, and on what, `jax.lax.scan` uses it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.programs.effects import users_rules
from tests.problems import assert_agree, normal


@jax.custom_jvp
def rounded(weight, x):
    """A small product, rounded; differentiated as if it were not."""
    return jnp.round(x @ weight)


@rounded.defjvp
def _(primals, tangents):
    (weight, x), (by_weight, by_x) = primals, tangents
    return rounded(weight, x), by_x @ weight + x @ by_weight


@jax.custom_jvp
def product(weight, x):
    """A small product with the derivative that it has."""
    return x @ weight


@product.defjvp
def _(primals, tangents):
    (weight, x), (by_weight, by_x) = primals, tangents
    return product(weight, x), by_x @ weight + x @ by_weight


@jax.custom_vjp
def clipped(weight, x):
    """A small product whose cotangents are clipped: its transposed derivative is not linear."""
    return x @ weight


def _clipped_back(operands, g):
    weight, x = operands
    return jnp.outer(x, jnp.clip(g, -0.2, 0.2)), weight @ jnp.clip(g, -0.3, 0.3)


clipped.defvjp(lambda weight, x: (x @ weight, (weight, x)), _clipped_back)


@jax.custom_vjp
def halved(weight, x):
    """A small product with a linear rule that is not its derivative."""
    return x @ weight


halved.defvjp(
    lambda weight, x: (x @ weight, (weight, x)),
    lambda operands, g: (jnp.outer(operands[1], g), 0.5 * (operands[0] @ g)),
)


def in_function(rule, weight, z):
    return rule(weight, z)


def in_calls(rule, weight, z):
    return jax.checkpoint(lambda weight, z: jax.jit(rule)(weight, z) + 0.1 * z @ weight)(weight, z)


def loss(scan, rule, place, weight, z):
    def step(z, x):
        z = jnp.tanh(0.5 * z + place(rule, weight, z) + x)
        return z, z

    last, states = scan(step, z, normal(1, 5, 3))
    return jnp.sum(states**2) + last.sum()


def gradient(scan, rule, place):
    return jax.grad(partial(loss, scan, rule, place), argnums=(0, 1))(normal(0, 3, 3), np.ones(3))


def gradient_of_squares(scan, rule, place):
    def squares(weight, z):
        by_weight, by_state = jax.grad(partial(loss, scan, rule, place), argnums=(0, 1))(weight, z)
        return jnp.sum(by_weight**2) + jnp.sum(by_state**2)

    return jax.grad(squares, argnums=(0, 1))(normal(0, 3, 3), np.ones(3))


def assert_as_by_lax(derivative, way, *arguments):
    scans = partial(deeppcr.scan, **way), jax.lax.scan
    assert_agree(*jax.jit(lambda: [derivative(scan, *arguments) for scan in scans])())


AUTO, PCR, NEWTON = {}, {"adjoint": "pcr"}, {"method": "newton"}


def name(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(
    ("way", "rule", "place"),
    [
        (NEWTON, rounded, in_function),
        (PCR, rounded, in_calls),
        (PCR, clipped, in_calls),
        (NEWTON, clipped, in_function),
        (AUTO, clipped, in_function),
    ],
    ids=name,
)
def test_gradients(way, rule, place):
    assert_as_by_lax(gradient, way, rule, place)


# Not `rounded`: jax 0.10 loses a rule that contradicts its function in second derivatives of a
# `jax.lax.scan`, and of no other program.
@pytest.mark.parametrize(
    ("rule", "way"),
    [(product, NEWTON), (clipped, NEWTON), (halved, NEWTON | {"adjoint": "autodiff"})],
    ids=name,
)
def test_second_derivatives(rule, way):
    assert_as_by_lax(gradient_of_squares, way, rule, in_function)


@pytest.mark.parametrize("way", [AUTO, PCR, NEWTON], ids=name)
@pytest.mark.parametrize("transform", [jax.vmap, jax.jit], ids=["vmap", "jit"])
def test_a_rule_that_reads_what_jax_traces(transform, way):
    def slope(scan, factor):
        f = jax.custom_jvp(jnp.sin)
        f.defjvp(lambda p, t: (f(*p), factor * t[0]))
        step = lambda z, x: (f(z) + x, None)  # noqa: E731
        return jax.grad(lambda z: scan(step, z, normal(1, 5, 3))[0].sum())(normal(3, 3))

    factors = jnp.array([0.5, 2.0]) if transform is jax.vmap else jnp.array(0.5)
    found = transform(partial(slope, partial(deeppcr.scan, **way)))(factors)
    assert_agree(found, transform(partial(slope, jax.lax.scan))(factors))


def chains_in_a_chain(scan, rule, weight, z, inner=AUTO, outer=AUTO, mapped=False):
    """The loss of a chain whose step is a chain."""

    def inside(z, x):
        return jnp.tanh(rule(weight, z) + x), None

    def step(z, x):
        return scan(inside, z, normal(2, 4, 3), **inner)[0] + x, None

    step = jax.vmap(step, (0, None)) if mapped else step
    return scan(step, z, normal(1, 5, 3), **outer)[0].sum()


@pytest.mark.filterwarnings("ignore:the examples of a batch")
@pytest.mark.parametrize("inner", [AUTO, NEWTON])
def test_a_rule_in_chains_of_a_mapped_step(inner):
    ways = {"inner": inner, "outer": NEWTON | {"batch_ndim": 1}}
    mapped = partial(chains_in_a_chain, mapped=True)
    losses = partial(mapped, deeppcr.scan, clipped, **ways), partial(mapped, jax.lax.scan, clipped)
    found, expected = jax.jit(
        lambda *at: [jax.value_and_grad(loss, (0, 1))(*at) for loss in losses]
    )(normal(0, 3, 3), normal(4, 2, 3))
    assert_agree(found, expected)


def _looking(weight, x):
    """Residuals of what is differentiated."""
    cosine = jnp.cos(weight.value * x.value)
    by_weight = cosine * x.value if weight.perturbed else None
    by_x = cosine * weight.value if x.perturbed else None
    return jnp.sin(weight.value * x.value), (by_weight, by_x)


looking = jax.custom_vjp(lambda weight, x: jnp.sin(weight * x))
looking.defvjp(
    _looking, lambda kept, g: tuple(None if x is None else x * g for x in kept), symbolic_zeros=True
)


def test_a_rule_that_looks_at_zeros_sees_those_of_each_derivative():
    def loss(scan, *at):
        weight, z, xs = at
        return scan(lambda z, x: (looking(weight, z) + x, None), z, xs)[0].sum()

    at = normal(0, 3), normal(1, 3), normal(2, 5, 3)
    which = 1, (0, 1), 2, 0
    expected = jax.jit(lambda: [jax.grad(partial(loss, jax.lax.scan), by)(*at) for by in which])()
    for way in AUTO, NEWTON:  # one after another, of steps alike
        scan = partial(deeppcr.scan, **way)
        assert_agree([jax.grad(partial(loss, scan), by)(*at) for by in which], expected)


def of_jax(x):
    x = jax.nn.silu(jax.nn.softplus(jax.nn.relu(x)))
    return jax.scipy.special.xlogy(jnp.logaddexp(x, 1.0), x)


def test_rules_of_jax_are_the_derivatives():
    assert not users_rules(jax.make_jaxpr(of_jax)(0.5).jaxpr)


def test_rules_of_users_may_be_anything():
    assert users_rules(jax.make_jaxpr(rounded)(jnp.ones((2, 2)), jnp.ones(2)).jaxpr)
    of_sine = jax.custom_jvp(jnp.sin)
    of_sine.defjvps(lambda t, y, x: 2.0 * t)
    assert users_rules(jax.make_jaxpr(of_sine)(0.5).jaxpr)
