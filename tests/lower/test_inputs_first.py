"""What depends on the inputs alone is computed before the loop; the answer is the loop's."""

import itertools
from functools import partial

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.lower.cpu.inputs_first import inputs_first, run_in_chunks
from deeppcr.lower.steps import Kind, lowered_by
from deeppcr.lower.variants import CPU
from depth.jaxprs import equations
from tests.problems import assert_agree, normal

N, D, L = 3, 17, 11  # products with inputs have more terms than those that stay in the loop
W, U = normal(0, D, 3 * N, scale=0.3), normal(1, N, 3 * N, scale=0.5)
Z, XS = normal(2, 2, N), normal(3, L, 2, D)
NUMBERS, ONE = itertools.count(), jax.ShapeDtypeStruct((), "float64")
KEY, RBG = (jax.random.key(0, impl=impl) for impl in ("threefry2x32", "rbg"))


def gated(z, of_input):
    r, u, n = jnp.split(of_input, 3, axis=-1)
    s, v, m = jnp.split(z @ U, 3, axis=-1)
    z = jax.nn.sigmoid(r + s) * jnp.tanh(n + m) + jax.nn.sigmoid(u + v) * z
    return z, z


def gru(z, x):
    return gated(z, x @ W)


def counted(carry, x):
    z, count, key = carry
    key, now = jax.random.split(key)
    z = jnp.tanh(z + jax.nn.relu(x @ W)[:, :N] + jax.random.normal(now, z.shape, z.dtype))
    return (z, count + 1, key), (z, count)


def with_an_inner_loop(z, x):
    return jax.lax.scan(lambda z, y: (jnp.sin(z + y), None), z, (x @ W).reshape((3, 2, N)))[0], x


def noisy(z, key):
    z = jnp.tanh(z) + jax.random.normal(key, z.shape, z.dtype)
    return z, z


def numbered(z, x):
    number = jax.experimental.io_callback(lambda w: w * (next(NUMBERS) % L), ONE, W[0, 0])
    return gru(z + number, x)


STEPS = {
    "a product": (gru, Z, XS),
    "slices of an input": (gated, Z, normal(5, L, 2, 3 * N)),
    "in a call": (jax.jit(gru), Z, XS),
    "of one term": (lambda z, x: gated(z, x @ W[:1]), Z, XS[..., :1]),
    "a counter and a key": (counted, (Z, 0, KEY), XS),
    "an inner loop": (with_an_inner_loop, Z, XS),
    "a side effect": (numbered, Z, XS),
}
NOTHING = {
    "few terms": (lambda z, x: (jnp.tanh(z @ U[:, :N] + x @ U[:, :N]), None), Z, XS[..., :N]),
    "copies": (lambda z, x: (z + x, None), Z, np.arange(1.0, L)),
    "weights of its own": (lambda z, w: (jnp.tanh(z @ w), None), Z, normal(6, L, N, N)),
    "outputs alone": (lambda z, x: (jnp.sin(z), jnp.exp(x)), Z, XS),
    "keys whose bits differ side by side": (noisy, Z, jax.random.split(RBG, L)),
}


def by_the_rule(step, z, xs, reverse=False):
    """The results of the loop by this rule, the loop before and after it."""
    loops = []

    def lower(loop, operands):
        rewritten, operands = inputs_first(loop, operands)
        loops.extend((loop, rewritten))
        last, ys = run_in_chunks(rewritten, operands)
        return [*last, *ys]

    closed = jax.make_jaxpr(partial(jax.lax.scan, step, reverse=reverse))(z, xs)
    kind = Kind(linear=False, in_one=False)
    program = partial(lowered_by, None, lower, call_jaxpr=closed, loop=kind)
    return jax.jit(program)(*jax.tree.leaves((z, xs))), *loops


def products(loop):
    return sum(each.primitive.name == "dot_general" for each in equations(loop.program))


@pytest.mark.parametrize("name", STEPS)
def test_the_answer_is_that_of_the_loop(name):
    step, z, xs = STEPS[name]
    found, before, after = by_the_rule(step, z, xs)
    assert after.inputs != before.inputs
    ours, theirs = found, jax.tree.leaves(jax.lax.scan(step, z, xs))
    assert_agree(*([x for x in leaves if x.dtype != KEY.dtype] for leaves in (ours, theirs)))


@pytest.mark.parametrize("name", ["a product", "in a call"])
def test_products_with_inputs_are_not_in_the_loop(name):
    _, before, after = by_the_rule(*STEPS[name])
    assert (products(before), products(after)) == (2, 1)


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_is_first_that_is_as_fast_in_the_loop(name):
    _, before, after = by_the_rule(*NOTHING[name])
    assert after is before


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [L, L + 1])
def test_chunks_follow_one_another(reverse, length, monkeypatch):
    """The last one is shorter if their size does not divide the length."""
    cache = 4 * 8 * (2 * 3 * N) * 2
    monkeypatch.setattr("deeppcr.lower.variants.CPU", CPU._replace(cache=cache))
    xs = normal(4, length, 2, D)
    found, _, after = by_the_rule(gru, Z, xs, reverse)
    assert after.size == 4
    assert_agree(found, list(jax.lax.scan(gru, Z, xs, reverse=reverse)))


def test_all_derivatives_are_those_of_the_loop():
    def loss(scan, w, z, xs):
        last, ys = scan(lambda z, x: gated(z, x @ w), z, xs)
        return (last**2).sum() + jnp.sin(ys).sum()

    def both(scan):
        slope = jax.grad(partial(loss, scan), (0, 1, 2))
        _, pushed = jax.jvp(partial(loss, scan), (W, Z, XS), (W, Z, XS))
        mapped = jax.vmap(slope, (None, 0, None))(W, jnp.stack([Z, 2 * Z]), XS)
        curved = jax.grad(lambda w: (slope(w, Z, XS)[0] ** 2).sum())(W)
        return pushed, mapped, curved

    scan = partial(deeppcr.scan, method="sequential", adjoint="backprop", batch_ndim=1)
    assert_agree(*jax.jit(lambda: (both(scan), both(jax.lax.scan)))())


def test_effects_stay_in_the_loop_and_in_order(capfd):
    def step(z, x):
        jax.debug.print("{}", (x @ W).sum() > 0, ordered=True)
        return gru(z, x)

    printed = []
    for scan in (deeppcr.scan, jax.lax.scan):
        jax.block_until_ready(scan(step, Z, XS))
        jax.effects_barrier()
        printed.append(capfd.readouterr().out)
    assert printed[0] == printed[1] != ""
