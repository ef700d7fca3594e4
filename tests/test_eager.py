"""Eager calls: compiled once, for all steps of the same program; never for others."""

import gc
import logging
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.chain.eager import program_key
from deeppcr.chain.trace import trace
from tests.problems import normal

WEIGHT, INIT, XS = normal(0, 2, 2, scale=0.5), normal(1, 2), normal(2, 6, 2)


def scanned(**options):
    """A call with a step of its own, as in a notebook."""

    def call(weight=WEIGHT, init=INIT):
        def step(z, x):
            z = jnp.tanh(weight @ z + x)
            return z, z

        return deeppcr.scan(step, init, XS, **options)[1].sum()

    return call


def counted():
    def step(c, x):
        z, n = c
        return (jnp.sin(z) * x + n.astype(x.dtype), n + 1), z

    return deeppcr.scan(step, (INIT, jnp.array(0)), XS, method="newton")[0]


@jax.custom_jvp
def doubled(x):
    return 2 * x


@doubled.defjvp
def _(primals, tangents):
    return doubled(primals[0]), 2 * tangents[0]


@jax.custom_vjp
def tripled(x):
    return 3 * x


tripled.defvjp(lambda x: (tripled(x), None), lambda _, g: (3 * g,))


def with_rules():
    def step(z, x):
        return jax.nn.relu(tripled(doubled(jnp.sin(z)) + x)) / 6, None

    return deeppcr.scan(step, INIT, XS, method="newton")[0]


def nested(weight=WEIGHT):
    def inner(z, x):
        return jnp.tanh(weight @ z + x), None

    return deeppcr.scan(
        lambda z, _: (deeppcr.scan(inner, z, XS)[0], z), INIT, length=3, method="newton"
    )[1].sum()


def coarse(*steps, **options):
    guess = deeppcr.Coarse(3, *steps)

    def call(z0=INIT):
        newton = deeppcr.Newton(initial_guess=guess, **options)
        chain = deeppcr.Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x), XS)
        return deeppcr.solve(chain, z0, method=newton).value.sum()

    return call


def sampled():
    config = {"_class_name": "DDPMScheduler", "clip_sample": False}
    return deeppcr.diffusion.sample(
        lambda x, t: jnp.tanh(x @ WEIGHT) * (1 + 0.001 * t.astype(x.dtype)),
        deeppcr.diffusion.Schedule.from_config(config),
        XS,
        steps=9,
        key=jax.random.key(0),
        coarse=3,
    ).value


CALLS = {
    "scan": scanned(),
    "forward": lambda: deeppcr.forward([lambda x: jnp.tanh(WEIGHT @ x)] * 5, INIT),
    "gradient": lambda: jax.grad(scanned(method="newton", adjoint="pcr"))(WEIGHT),
    "vmap": lambda: jax.vmap(scanned(method="newton"), (None, 0))(WEIGHT, XS),
    "from coarse steps": coarse(),
    "from the user's coarse steps": coarse(lambda z, x: jnp.tanh(WEIGHT @ z + x.mean(0))),
    "gradient from coarse steps": lambda: jax.grad(coarse())(INIT),
    "a coarse sampler": sampled,
    "a counter": counted,
    "rules of derivatives": with_rules,
    "a scan of a scan": nested,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_compiles_nothing(name, compiled):
    first = CALLS[name]()
    CALLS[name]()  # what jax compiles for derivatives of what it has compiled
    compiled.clear()
    second = CALLS[name]()
    assert not compiled
    assert all(map(jnp.array_equal, jax.tree.leaves(first), jax.tree.leaves(second)))


def test_what_the_step_sees_may_change():
    scale, weight = 1.0, WEIGHT

    def step(z, x):
        return jnp.sin(weight @ z) * scale + x, None

    def agrees():
        found = deeppcr.scan(step, INIT, XS)[0]
        expected = jax.lax.scan(lambda z, x: step(z, x), INIT, XS)[0]
        return jnp.allclose(found, expected, rtol=0, atol=1e-10)

    assert agrees()
    weight = 2 * WEIGHT
    assert agrees()
    scale = 0.5  # a number in the program
    assert agrees()


def test_programs_alike_but_for_a_rule_are_told_apart():
    def rule(factor):
        f = jax.custom_jvp(jnp.sin)
        f.defjvp(lambda p, t: (f(*p), factor * t[0]))
        return f

    def gradient(f):
        return jax.grad(lambda z: deeppcr.scan(lambda z, x: (f(z) + x, None), z, XS)[0].sum())(INIT)

    one, two = gradient(rule(1.0)), gradient(rule(2.0))
    assert jnp.allclose(one, 1.0)
    assert jnp.allclose(two, 2.0**6)


SLOPE = 1.0  # a test changes it


def slope():
    return SLOPE


@jax.custom_jvp
def surrogate(x):
    return x


@surrogate.defjvp
def _(primals, tangents):
    return surrogate(*primals), slope() * tangents[0]


def test_what_a_rule_reads_of_its_module_may_change(monkeypatch):
    def gradient():
        def step(z, x):
            return surrogate(z) + x, None

        return jax.grad(lambda z: deeppcr.scan(step, z, XS)[0].sum())(INIT)

    assert jnp.allclose(gradient(), 1.0)
    monkeypatch.setattr(f"{__name__}.SLOPE", 2.0)
    assert jnp.allclose(gradient(), 2.0**6)


class Options:
    """What may change without being another object."""

    factor = 1.0


OPTIONS = Options()


def doubled_slope(tangent):
    return tangent


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def with_options(options, x):
    return x


with_options.defjvp(lambda options, p, t: (p[0], options.factor * t[0]))
by_function, by_object = jax.custom_jvp(lambda x: x), jax.custom_jvp(lambda x: x)
by_function.defjvp(lambda p, t: (p[0], doubled_slope(t[0])))
by_object.defjvp(lambda p, t: (p[0], OPTIONS.factor * t[0]))

CHANGES = {
    "a function": (by_function, f"{__name__}.doubled_slope", lambda tangent: 2.0 * tangent),
    "an object": (by_object, f"{__name__}.Options.factor", 2.0),
    "an argument": (partial(with_options, OPTIONS), f"{__name__}.Options.factor", 2.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_rule_calls_may_change(name, monkeypatch):
    f, place, other = CHANGES[name]

    def gradient():
        return jax.grad(lambda z: deeppcr.scan(lambda z, x: (f(z) + x, None), z, XS)[0].sum())(INIT)

    assert jnp.allclose(gradient(), 1.0)
    monkeypatch.setattr(place, other)
    assert jnp.allclose(gradient(), 2.0**6)


@pytest.mark.usefixtures("_nothing_older")
def test_no_array_of_the_users_is_kept():
    def call():
        weight = normal(5, 2, 2, scale=0.5)
        deeppcr.scan(lambda z, x: (jnp.tanh(weight @ z + x), None), INIT, XS, method="newton")
        return weight.unsafe_buffer_pointer(), id(weight)

    call()
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(3):
        call()
    gc.collect()
    assert len(jax.live_arrays()) <= before


CLEARED = """
import gc
import jax, jax.numpy as jnp
import deeppcr
from deeppcr.chain.step import Step
def steps():
    gc.collect()
    return sum(isinstance(each, Step) for each in gc.get_objects())
for _ in range(3):
    deeppcr.scan(lambda z, x: (jnp.sin(z) + x, None), jnp.zeros(2), jnp.ones((6, 2)), method="newton")
    assert steps() == 1
jax.clear_caches()
assert not steps()
"""


def test_clear_caches_empties_it():
    """In a process of its own: others would have to compile all again."""
    subprocess.run([sys.executable, "-c", CLEARED], check=True)


def test_a_step_that_cannot_be_compared_is_right_and_said_once(caplog):
    table = normal(6, 200)
    inner = jax.jit(lambda x: x + table[:2] + table[198:])  # its array is in its program

    def f(scan):
        return scan(lambda z, x: (jnp.sin(inner(z)) + x, None), INIT, XS)[0]

    with caplog.at_level(logging.WARNING, "deeppcr"):
        found = [f(deeppcr.scan), f(deeppcr.scan)]
    for each in found:
        assert jnp.allclose(each, f(jax.lax.scan), rtol=0, atol=1e-12)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "an array, float64[200]" in said[0]
    assert "jax.jit" in said[0]
    step, _ = trace(lambda z, x: (inner(z) + x, None), INIT, jax.eval_shape(lambda: XS[0]))
    assert program_key(step) is None  # nothing compiled for it is kept


def test_a_number_in_a_jitted_carry_is_differentiated_around():
    @jax.jit
    def run(x):
        return deeppcr.scan(lambda c, _: ((2 * c[0], 0.0), None), (x, 0.0), None, 3)[0][0]

    assert jax.grad(run)(0.5) == 8.0
