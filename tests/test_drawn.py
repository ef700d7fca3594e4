"""Numbers drawn by a step are those of `jax.lax.scan`, of any generator; drawn once, if they can be."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.chain import trace
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

L, N = 7, 3
W, Z, XS = normal(0, N, N, scale=0.4), normal(1, N), normal(2, L, N)
KEY = jax.random.key(3)
KEYS = jax.random.split(KEY, L)
BITS = {"random_bits", "threefry2x32"}


def noise(key, like):
    return jax.random.normal(key, like.shape, like.dtype)


def carried(w, carry, x):
    z, key = carry
    key, now = jax.random.split(key)
    return jnp.tanh(z @ w + x + noise(now, z)), key


def counted(w, carry, x):
    z, k = carry
    return jnp.tanh(z @ w + x + noise(jax.random.fold_in(KEY, k), z)), k + 1


def dropout(w, z, inputs):
    x, key = inputs
    return jnp.tanh(jnp.where(jax.random.bernoulli(key, 0.8, z.shape), z, 0) @ w + x)


STEPS = {
    "a key that is carried": (carried, (Z, KEY), XS),
    "a counter": (counted, (Z, 0), XS),
    "keys that are given": (dropout, Z, (XS, KEYS)),
    "some by the state": (lambda w, z, key: jnp.tanh(z @ w) + z * noise(key, z), Z, KEYS),
}
OTHERS = {
    "the same in all steps": (lambda w, z, x: jnp.tanh(z @ w + x + noise(KEY, z)), Z, XS),
    "by a parameter": (
        lambda w, z, key: jnp.where(jax.random.bernoulli(key, w[0, 0] ** 2, z.shape), z @ w, 0),
        Z,
        KEYS,
    ),
}


def loss(scan, step, w, z, xs):
    def body(carry, x):
        carry = step(w, carry, x)
        return carry, jax.tree.leaves(carry)[0]

    return jnp.sum(scan(body, z, xs)[1] ** 2)


def draws(f, *operands):
    """The number of equations that draw, in all programs of a function."""
    return sum(x.primitive.name in BITS for x in equations(jax.make_jaxpr(f)(*operands)))


@pytest.mark.parametrize("name", [*STEPS, *OTHERS])
def test_it_draws_what_the_loop_draws(name):
    step, *at = (STEPS | OTHERS)[name]
    ours = [partial(deeppcr.scan, method=method) for method in ("sequential", "newton")]

    @jax.jit
    def each(*at):
        return [
            jax.value_and_grad(partial(loss, scan, step))(*at) for scan in [jax.lax.scan, *ours]
        ]

    expected, *found = each(W, *at)
    assert_agree(found, [expected] * 2)


@pytest.mark.parametrize("name", STEPS)
def test_it_draws_once(name):
    step, z, xs = STEPS[name]
    gradient = jax.grad(partial(loss, deeppcr.scan, step))
    once = jax.make_jaxpr(lambda key: noise(key, Z))(KEY)
    assert draws(gradient, W, z, xs) == sum(x.primitive.name in BITS for x in equations(once))


def test_a_batch_of_calls_draws_for_each():
    step, z, _ = STEPS["keys that are given"]
    keys = jax.vmap(partial(jax.random.split, num=L))(jax.random.split(KEY, 2))
    each = lambda scan: jax.vmap(lambda keys: loss(scan, step, W, z, (XS, keys)))(keys)  # noqa: E731
    assert_agree(*jax.jit(lambda: [each(scan) for scan in (deeppcr.scan, jax.lax.scan)])())


def test_what_would_take_too_much_memory_is_drawn_by_the_steps(monkeypatch):
    step, z, xs = STEPS["keys that are given"]
    few = jax.make_jaxpr(partial(loss, deeppcr.scan, step))(W, z, xs)
    monkeypatch.setattr(trace, "MOST_BYTES", L * N - 1)
    many = jax.make_jaxpr(partial(loss, deeppcr.scan, step))(W, z, xs)
    assert str(few) != str(many)
    assert_agree(loss(deeppcr.scan, step, W, z, xs), loss(jax.lax.scan, step, W, z, xs))


@pytest.mark.parametrize("name", ["keys that are given", "a key that is carried"])
def test_guesses_take_the_inputs_of_the_user(name):
    step, z, xs = STEPS[name]
    chain = deeppcr.Chain(partial(step, W), xs)

    def constant(init, inputs):
        assert jax.tree.structure(inputs) == jax.tree.structure(xs)
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * L), init)

    def coarse(carry, inputs):
        assert jax.tree.structure(inputs) == jax.tree.structure(xs)
        return carry

    solve = partial(deeppcr.solve, chain, z)
    guesses = constant, deeppcr.Coarse(2, coarse)
    methods = [*(deeppcr.Newton(initial_guess=guess) for guess in guesses), "sequential"]
    *found, expected = [jax.tree.leaves(solve(method=each).value)[0] for each in methods]
    assert_agree(found, [expected] * 2)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_numbers_of_a_narrow_dtype_are_those_of_the_loop(dtype):
    def step(z, key):
        z = jnp.tanh(0.5 * z + noise(key, z))
        return z, z

    run = partial(deeppcr.scan, step, Z.astype(dtype), KEYS)
    newton, loop = (run(method=method)[1].astype(float) for method in ("newton", "sequential"))
    assert jnp.allclose(newton, loop, rtol=0, atol=0.02)


def noisy(z, key):
    z = jnp.tanh(z) * jax.random.normal(key, z.shape, z.dtype)
    return z, z.sum()


def of_a_state(z, state):
    bits = jax.lax.rng_bit_generator(state, z.shape)[1]
    return jnp.sin(z + bits.astype(z.dtype) / 2**32), None


def in_a_branch(z, key):
    return jax.lax.cond(z[0] > 0, noisy, lambda z, key: (z - 0.5, 0.0), z, key)


RBG = jax.random.key(0, impl="rbg")
RBGS, UNSAFE = (jax.random.split(jax.random.key(0, impl=impl), L) for impl in ("rbg", "unsafe_rbg"))
BACKPROP, NEWTON = {"adjoint": "backprop"}, {"method": "newton"}
CASES = {
    "auto": (noisy, RBGS, {}),
    "unsafe": (noisy, UNSAFE, BACKPROP),
    "of a state": (of_a_state, jax.random.bits(RBG, (L, 4), jnp.uint32), BACKPROP),
    "in a branch": (in_a_branch, RBGS, BACKPROP),
    "the same in all steps": (lambda z, x: (noisy(z, RBG)[0] + x, z), XS, NEWTON),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_have_the_same_numbers(name):
    step, xs, options = CASES[name]

    def both(scan):
        def loss(z):
            return sum(y.sum() for y in jax.tree.leaves(scan(step, z, xs)))

        return jax.value_and_grad(loss)(Z)

    scans = partial(deeppcr.scan, **options), jax.lax.scan
    assert_agree(*jax.jit(lambda: [both(scan) for scan in scans])())


@pytest.mark.parametrize("keys", [RBGS, UNSAFE], ids=["rbg", "unsafe_rbg"])
@pytest.mark.parametrize("options", [NEWTON, {"adjoint": "pcr"}])
def test_a_parallel_method_is_refused(keys, options):
    with pytest.raises(ValueError, match=r"draws random bits with keys of dtype key<u?rbg>"):
        deeppcr.scan(noisy, Z, keys, **options)
