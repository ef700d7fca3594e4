"""Steps that call a `jax.custom_vjp`: one with a linear rule has the adjoints of any other step."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.adjoint import Autodiff, JacobianAdjoint
from deeppcr.adjoint.resolve import resolve_adjoint
from deeppcr.chain import trace_chain
from tests.problems import assert_agree, normal

WEIGHT, Z0, XS = normal(0, 3, 3, scale=0.4), jnp.ones(3), normal(1, 6, 3)


def with_rule(function, back, residuals=lambda *x: x, **options):
    """A function with a rule, of what ``residuals`` keeps and of the cotangent."""
    found = jax.custom_vjp(function)
    found.defvjp(lambda *x: (function(*x), residuals(*x)), back, **options)
    return found


def itself(x):
    return x


# -- rules that are linear


def kept(x):
    """The forward rule calls the function, and so uses its rule in second derivatives."""
    return sine_kept(x), x


sine_kept = jax.custom_vjp(jnp.sin)
sine_kept.defvjp(kept, lambda x, g: (jnp.where(x > 0, 2 * g * jnp.cos(x), 0.0),))
straight = with_rule(lambda x: jnp.round(4 * x) / 4, lambda _, g: (g,))
halved = with_rule(
    lambda w, x: w @ x, lambda r, g: (jnp.outer(g, r[1]), 0.5 * jnp.einsum("ij,i->j", r[0], g))
)
closing = with_rule(lambda x: WEIGHT @ x, lambda _, g: (2 * WEIGHT.T @ g,))
scaled = with_rule(
    lambda n, x: n.astype(x.dtype) * x, lambda r, g: (None, r[0].astype(g.dtype) * g)
)
remembered = with_rule(jnp.sin, lambda r, g: (g * jnp.cos(r[0]),), optimize_remat=True)


def _cumulated_back(residuals, g):
    (x,) = residuals
    total, parts = jax.lax.scan(lambda c, g: (c + g, c + g), 0.0, g[::-1])
    padded = jnp.zeros((5,)).at[1:4].add(parts[::-1])
    chosen = jax.lax.cond(x[0] > 9, lambda g: 2 * g, lambda g: g, padded[1:4])
    return (jax.jit(lambda g: g / (1 + x**2))(chosen) + 0.0 * total,)


cumulated = with_rule(lambda x: jnp.cumsum(x), _cumulated_back)
# -- rules that are not, or not proven to be
clipped = with_rule(itself, lambda _, g: (jnp.clip(g, -0.2, 0.2),))
decayed = with_rule(itself, lambda r, g: (g + 0.1 * r[0],))
signed = with_rule(itself, lambda _, g: (jnp.sign(g),))
branching = with_rule(itself, lambda _, g: (jnp.where(g > 0, g, 2 * g),))
squared = with_rule(itself, lambda _, g: (g * g,))
rounded = with_rule(itself, lambda _, g: (g.astype(jnp.int32).astype(g.dtype),))
constant = with_rule(itself, lambda r, g: (jnp.cos(r[0]),))
# The identity, by operations that are not linear.
unproven = with_rule(itself, lambda _, g: (jnp.maximum(g, 0) + jnp.minimum(g, 0),))


def loops(w, z, x):
    z = jax.lax.scan(lambda z, _: (jax.checkpoint(jax.jit(sine_kept))(w @ z), None), z, None, 2)[0]
    return jax.lax.cond(x[0] > 0, lambda: sine_kept(closing(z)), lambda: jnp.tanh(z)) + x


LINEAR = {
    "straight through": lambda w, z, x: jnp.tanh(straight(w @ z) + 0.5 * z + x),
    "not the derivative": lambda w, z, x: jnp.tanh(halved(w, z) + x),
    "a rule that calls itself": lambda w, z, x: sine_kept(w @ z + x),
    "constants in a rule": lambda w, z, x: jnp.tanh(w @ closing(z)) + x,
    "integers": lambda w, z, x: jnp.tanh(scaled(jnp.arange(3), w @ z) + x),
    "a long rule": lambda w, z, x: 0.3 * cumulated(w @ z) + x,
    "in loops and calls": loops,
}


def every_rule(w, z, x):
    return sum(LINEAR[name](w, z, x) for name in LINEAR if name != "in loops and calls") / 6


OTHERS = {
    "max": clipped,
    "add": decayed,
    "sign": signed,
    "gt": branching,
    "mul": squared,
    "convert_element_type": rounded,
    "optimize_remat": remembered,
    "a result does not depend on the cotangent": constant,
}
PCR = {"adjoint": "pcr"}


def chain_of(function):
    def step(z, x):
        z = function(WEIGHT, z, x)
        return z, z

    return trace_chain(step, Z0, XS, len(XS), 0, "z0")


def loss(scan, function, weight, init, xs):
    def step(z, x):
        new = function(weight, z, x)
        return new, new * z

    last, ys = scan(step, init, xs)
    return jnp.sum(last**2) + jnp.sum(jnp.sin(ys))


def gradient(scan, function):
    return jax.grad(partial(loss, scan, function), argnums=(0, 1, 2))(WEIGHT, Z0, XS)


def gradients_of_examples(scan, function):
    several = jax.grad(partial(loss, scan, function), argnums=(0, 1, 2))
    return jax.vmap(several, in_axes=(None, 0, None))(WEIGHT, jnp.stack([Z0, 2 * Z0]), XS)


def gradients_of_gradients(scan, function):
    """The gradient of a gradient's size, and that gradient."""

    def size(*arguments):
        gradient = jax.grad(partial(loss, scan, function), argnums=(0, 1, 2))(*arguments)
        return sum(jnp.sum(g**2) for g in gradient), gradient

    return jax.grad(size, argnums=(0, 1, 2), has_aux=True)(WEIGHT, Z0, XS)


@pytest.mark.parametrize(
    ("transformation", "function", "options"),
    [
        (gradient, every_rule, PCR),
        (gradients_of_examples, loops, PCR),
        (gradients_of_gradients, LINEAR["a rule that calls itself"], PCR),
    ],
)
def test_derivatives(transformation, function, options):
    scans = partial(deeppcr.scan, **options), jax.lax.scan
    assert_agree(*jax.jit(lambda: [transformation(scan, function) for scan in scans])())


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_rule_is_proven_to_be_one(name):
    chain = chain_of(LINEAR[name])
    assert chain.step.nonlinear_rule == ""
    assert isinstance(resolve_adjoint(deeppcr.Adjoint(), None, chain), JacobianAdjoint)


@pytest.mark.parametrize("why", OTHERS)
def test_any_other_is_left_to_jax_and_the_plan_says_why(why):
    rule = OTHERS[why]

    def step(z, x):
        return jnp.tanh(rule(WEIGHT @ z) + x)

    chain = chain_of(lambda w, z, x: step(z, x))
    assert isinstance(resolve_adjoint(deeppcr.Adjoint(), None, chain), Autodiff)
    if why == "max":
        said = str(deeppcr.plan(deeppcr.Chain(step, XS), Z0))
        assert "jax.custom_vjp of itself" in said
    assert why in chain.step.nonlinear_rule


def test_a_rule_that_looks_at_zeros_is_left_to_jax():
    found = jax.custom_vjp(itself)
    found.defvjp(lambda x: (x.value, None), lambda _, g: (g,), symbolic_zeros=True)
    step = chain_of(lambda w, z, x: found(z) + x).step
    assert "symbolic_zeros" in step.nonlinear_rule


def test_a_rule_that_the_user_knows_to_be_linear():
    def function(w, z, x):
        return jnp.tanh(unproven(w @ z) + x)

    chain = chain_of(function)
    assert chain.step.nonlinear_rule
    adjoint = deeppcr.Adjoint(linear="pcr", linear_vjp=True)
    assert isinstance(resolve_adjoint(adjoint, None, chain), JacobianAdjoint)
    scan = partial(deeppcr.scan, adjoint=adjoint)
    scans = scan, jax.lax.scan
    assert_agree(*jax.jit(lambda: [gradient(each, function) for each in scans])())
    # Forwards, which jax refuses: here the rule is the derivative.
    with jax.numpy_dtype_promotion("standard"):
        same = partial(loss, jax.lax.scan, lambda w, z, x: jnp.tanh(w @ z + x))
        ours, a = partial(loss, scan, function), (WEIGHT, Z0, XS)
        assert_agree(*jax.jit(lambda *a: (jax.jvp(ours, a, a), jax.jvp(same, a, a)))(*a))
