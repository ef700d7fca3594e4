"""What a loop keeps for its derivative: gates, not products by inputs; and the same derivatives."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.chain.chain import trace_chain
from deeppcr.chain.kept import keeping
from depth.counts import nbytes
from tests.problems import assert_agree, gru, lstm, normal

N, L = 16, 6
W, X, H = normal(0, N, N, scale=0.5), normal(1, L, N), normal(2, N)


def plain(w, h, x):
    h = jnp.tanh(h @ w + x)
    return h, h


def normalised(w, h, x):
    y = h @ w + x
    y = (y - y.mean()) / jnp.sqrt(y.var() + 1e-3)
    return jax.nn.gelu(y), y


def largest(w, h, x):
    """The derivative compares all entries with the largest."""
    y = h @ w + x
    return jnp.sin(y), y.max()


def largest_of_kept(w, h, x):
    y = jnp.tanh(h @ w + x)
    return jnp.sin(y), y.max()


def at_the_top(w, h, x):
    """The same in the step's own words, through a difference."""
    y = h @ w + x
    return jnp.where(y - y.max() < 0, jnp.sin(y), 2 * y), None


def capped(w, h, x):
    """A state that its derivative compares with what it follows from."""
    h = jnp.maximum(h @ w + x, 0.1 * h)
    return h, h


def number(w, carry, x):
    """A state that is written into the program."""
    h, t = carry
    return (jnp.tanh(h @ w) * t + x, jnp.array(0.5)), (t, 2.0)


def in_a_call(w, h, x):
    h = jax.jit(lambda h: jax.jit(jnp.tanh)(h @ w))(h) + x
    return h, (h.sum(), 1)


GATES = (normal(3, N, 3 * N, scale=0.5), normal(4, N, 3 * N), normal(5, 3 * N))
CELL = (normal(6, N, 4 * N, scale=0.5), normal(7, N, 4 * N, scale=0.5), normal(8, 4 * N))
# name: (step, its weights, its initial state, the primitives whose results are kept)
STEPS = {
    "tanh": (plain, W, H, "tanh"),
    "layer norm": (normalised, W, H, "dot_general reduce_sum reduce_sum reduce_sum tanh"),
    "largest": (largest, W, H, "dot_general"),
    "largest of kept": (largest_of_kept, W, H, "reduce_max tanh"),
    "at the top": (at_the_top, W, H, "dot_general lt"),
    "capped": (capped, W, H, "dot_general"),
    "number": (number, W, (H, jnp.array(2.0)), "tanh"),
    "in a call": (in_a_call, W, H, "tanh"),
    "gru": (gru, GATES, H, "logistic logistic split tanh"),
    "lstm": (lstm, CELL, (H, H), "logistic logistic logistic split split tanh tanh"),
}


def traced(step, state, length=L):
    return trace_chain(step, state, jnp.zeros((length, N)), length, 0, "init")


@pytest.mark.parametrize("name", STEPS)
def test_what_is_kept(name):
    step, weights, state, expected = STEPS[name]
    chain = traced(lambda z, x: step(weights, z, x), state)
    found = keeping(chain)
    values = [value for value, _ in found.derivative.kept]
    program = found.forward.jaxpr
    assert program.outvars[-len(values) :] == values
    made = {y: each.primitive.name for each in program.eqns for y in each.outvars}
    assert sorted(made[y] for y in values) == expected.split()
    assert sum(map(nbytes, values)) <= chain.step.bytes_kept_by_jax
    assert keeping(chain) is found


def test_a_step_that_reads_its_state_alone_keeps_nothing():
    assert keeping(traced(lambda z, x: (z * z + x, None), H)) is None
    assert keeping(traced(lambda z, x: (0.5 * z + x, z), H)) is None


def test_large_arrays_are_kept_for_much_work_alone():
    def keeps(units, length):
        weights = [jnp.zeros(x, "float32") for x in ((units, 3 * units), (N, 3 * units), 3 * units)]
        state, xs = jnp.zeros(units, "float32"), jnp.zeros((length, N), "float32")
        step = partial(gru, weights)
        return keeping(trace_chain(step, state, xs, length, 0, "init")) is not None

    assert keeps(16, 1 << 10)
    assert not keeps(16, 1 << 17)
    assert keeps(512, 1 << 12)


def loss(scan, step, weights, state, xs):
    """Of the last state and the outputs, neither of which is even."""
    found = scan(lambda z, x: step(weights, z, x), state, xs)
    moving = (y for y in jax.tree.leaves(found) if jnp.issubdtype(y.dtype, jnp.floating))
    return sum(jnp.sum(jnp.sin(y) + y**2) for y in moving)


backprop = partial(deeppcr.scan, adjoint="backprop")


@pytest.mark.parametrize("name", STEPS)
def test_derivatives(name):
    step, *arguments, _ = STEPS[name]

    def derivatives(scan, weights, state, xs):
        gradient = jax.grad(partial(loss, scan, step), (0, 1, 2))
        primals, both = (weights, state, xs), jnp.stack([xs, -xs])
        return {
            "gradient": gradient(*primals),
            "pushed": jax.jvp(partial(loss, scan, step), primals, jax.tree.map(jnp.cos, primals)),
            "second": jax.jvp(gradient, primals, jax.tree.map(jnp.cos, primals))[1],
            "many": jax.vmap(lambda x: jax.grad(partial(loss, scan, step))(weights, state, x))(
                both
            ),
        }

    found = jax.jit(lambda *a: [derivatives(scan, *a) for scan in (backprop, jax.lax.scan)])
    assert_agree(*found(*arguments, X))


@pytest.mark.parametrize("name", ["tanh", "layer norm", "largest of kept", "gru", "lstm"])
def test_no_product_is_computed_again(name):
    step, *arguments, _ = STEPS[name]

    def products(scan):
        def last(weights, state, xs):
            found = scan(lambda z, x: (step(weights, z, x)[0], None), state, xs)[0]
            return sum(map(jnp.sum, jax.tree.leaves(found)))

        lowered = jax.jit(jax.grad(last, (0, 1, 2))).lower(*arguments, X)
        return lowered.as_text().count("stablehlo.dot_general")

    assert products(backprop) <= products(jax.lax.scan)


def test_kept_values_of_what_is_not_float64():
    """Integers, keys, narrow numbers and complex ones beside what is kept."""

    def step(carry, x):
        h, c, count, key = carry
        key, own = jax.random.split(key)
        noise = 0.1 * jax.random.normal(own, (2,), jnp.float32)
        h = jnp.tanh(h + c.real.astype(h.dtype) + (noise * x).astype(h.dtype))
        c = jnp.sin(c * h.astype(c.dtype)[0]) + x.astype(c.dtype)
        return (h, c, (count + 1) % 2, key), h[count].astype(jnp.float32) * noise

    def both(scan, h, c, xs):
        start = jnp.array(0), jax.random.key(0)

        def last(h, c, xs):
            (h, c, count, _), ys = scan(step, (h, c, *start), xs)
            return (h.astype(jnp.float32).sum() + jnp.abs(c).sum() + ys.sum()), count

        return jax.grad(last, (0, 1, 2), has_aux=True)(h, c, xs)

    h, c = jnp.ones(2, jnp.bfloat16), jnp.full(2, 0.3 + 0.2j, jnp.complex64)
    xs = X[:, :2].astype(jnp.float32)
    found = jax.jit(lambda *a: [both(scan, *a) for scan in (backprop, jax.lax.scan)])(h, c, xs)
    (ours, count), (expected, same) = found
    assert count == same
    assert_agree(*([x.astype(jnp.complex64) for x in each] for each in (ours, expected)), 0.02)
