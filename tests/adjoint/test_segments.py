"""jax's derivative of some steps at a time, computed again from the first state of each segment."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr.adjoint import Autodiff
from tests.problems import assert_agree, normal

WIDTH, SIZE = 3, 4
W, XS, START = normal(0, WIDTH, WIDTH, scale=0.5), normal(1, 11, WIDTH), normal(2, WIDTH)
segmented = partial(deeppcr.scan, adjoint=Autodiff(checkpoint=SIZE))


def step(w, carry, x):
    h, count, key = carry
    key, own = jax.random.split(key)
    h = jnp.tanh(h @ w + x + 0.1 * jax.random.normal(own, h.shape, h.dtype))
    return (h, count + 1, key), (h * (count + 1).astype(h.dtype), count, key)


def results(scan, w, start, xs, **options):
    (h, count, key), (ys, counts, keys) = scan(
        partial(step, w), (start, jnp.int32(0), jax.random.key(0)), xs, **options
    )
    return (h, ys), (count, counts, jax.random.key_data(key), jax.random.key_data(keys))


def loss(scan, w, start, xs, **options):
    (h, ys), _ = results(scan, w, start, xs, **options)
    return jnp.sin(ys).sum() + (h**2).sum()


def compare(f):
    assert_agree(*jax.jit(lambda: [f(scan) for scan in (segmented, jax.lax.scan)])())


@pytest.mark.parametrize("length", [1, SIZE, SIZE + 1, 2 * SIZE, 11])
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_gradients(length, reverse):
    def both(scan):
        options = {"reverse": reverse}
        f = lambda *given: results(scan, *given, **options)  # noqa: E731
        found, pull, others = jax.vjp(f, W, START, XS[:length], has_aux=True)
        return found, others, pull(jax.tree.map(jnp.cos, found))

    compare(both)


def test_transformations():
    arguments = W, START, XS
    along = jax.tree.map(jnp.cos, arguments)

    def every(scan):
        f = partial(loss, scan)
        gradient = jax.grad(f, (0, 1, 2))
        return {
            "jvp": jax.jvp(f, arguments, along),
            "second": jax.jvp(gradient, arguments, along)[1],
            "many": jax.vmap(lambda z: jax.grad(f)(W, z, XS))(jnp.stack([START, -START])),
            "of many": jax.grad(lambda w: jax.vmap(lambda x: f(w, START, x))(XS[None]).sum())(W),
            "again": jax.grad(jax.checkpoint(f))(*arguments),
        }

    compare(every)


def test_eager_gradients_compile_once(compiled):
    def gradient():
        return jax.grad(partial(loss, segmented))(W, START, XS)

    first = gradient()
    count = len(compiled)
    assert_agree(gradient(), first)
    assert len(compiled) == count


def test_memory_grows_by_the_first_states_of_segments_alone():
    w, start = jnp.zeros(2), jnp.zeros((64, 64))
    size, state = 32, 64 * 64 * 8

    def memory(scan, length):
        def last(w, z):
            def body(z, _):
                return jnp.tanh(jnp.sin(z) * w[0] + w[1]), None

            return scan(body, z, None, length)[0].sum()

        analysis = jax.jit(jax.grad(last)).lower(w, start).compile().memory_analysis()
        return analysis and analysis.temp_size_in_bytes

    own = partial(deeppcr.scan, adjoint=Autodiff(checkpoint=size))
    lengths = 128, 512
    if not memory(own, size):
        pytest.skip("says nothing of its memory")
    short, long = (memory(own, length) for length in lengths)
    assert long - short <= 1.2 * state * (lengths[1] - lengths[0]) // size
    assert 4 * long < memory(jax.lax.scan, lengths[1])
