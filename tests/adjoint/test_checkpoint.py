"""`Adjoint(checkpoint=m)`: the same results from segments, and the memory of segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import normal, trajectory

LENGTH, WIDTH = 23, 2  # segments of 5 leave a shorter one
XS, W = normal(0, LENGTH, WIDTH), normal(1, WIDTH, WIDTH, scale=0.5)
START = jnp.ones(WIDTH)
SEGMENTS = deeppcr.Adjoint(linear="sequential", checkpoint=5)


def close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), got, want)


def outputs(scan, w, start, xs, **options):
    def step(carry, x):
        h, count = carry
        h = jnp.tanh(w @ h + x)
        return (h, count + 1), h.sum() * (count + 1).astype(h.dtype)

    (h, count), ys = scan(step, (start, jnp.int32(0)), xs, **options)
    return h, count, ys


def loss(scan, w, start, xs, **options):
    h, _, ys = outputs(scan, w, start, xs, **options)
    return jnp.sin(ys).sum() + (h**2).sum()


def test_values_and_gradients():
    def both(scan, options):
        def f(*arguments):
            out = outputs(scan, *arguments, reverse=True, **options)
            return (out[0], out[2]), out[1]

        out, pull, count = jax.vjp(f, W, START, XS, has_aux=True)
        return out, count, pull(jax.tree.map(jnp.sin, out))

    ours = {"adjoint": SEGMENTS, "method": "newton"}
    cases = (deeppcr.scan, ours), (jax.lax.scan, {})
    close(*jax.jit(lambda: [both(*case) for case in cases])())


def test_transformations():
    def transformed(f):
        return jax.vmap(jax.grad(f))(jnp.stack([W, 2 * W])), jax.jvp(f, (W,), (W,))

    def run(scan, **options):
        return transformed(lambda w: loss(scan, w, START, XS, **options))

    close(*jax.jit(lambda: (run(deeppcr.scan, adjoint=SEGMENTS), run(jax.lax.scan)))())


def test_a_solution_is_that_of_all_segments():
    chain = deeppcr.Chain(lambda z, x: jnp.tanh(W @ z + x), XS)
    short = {"method": deeppcr.Newton(max_iterations=2, on_failure="return"), "adjoint": SEGMENTS}
    xs = np.array(XS)
    xs[12, 0] = np.nan
    bad = deeppcr.Chain(chain.step, xs)

    @jax.jit
    def run():
        segments = deeppcr.solve(chain, START, method="newton", adjoint=SEGMENTS)
        not_finite = deeppcr.solve(bad, START, adjoint=SEGMENTS)
        return segments, not_finite, deeppcr.solve(chain, START, **short)

    got, not_finite, ended = run()
    close(got.trajectory, trajectory(chain, START))
    assert (got.result, got.stats.prefix, got.stats.finite) == (0, LENGTH, LENGTH)
    assert int(got.stats.iterations) > 9  # of five segments; as one chain it takes fewer
    assert got.method == deeppcr.SolvedBy.NEWTON
    assert (not_finite.result, not_finite.stats.finite) == (deeppcr.Result.NOT_FINITE, 12)
    # Two iterations settle two states of the first segment at least, whatever rounding does.
    assert ended.result == deeppcr.Result.NOT_CONVERGED
    assert 2 <= ended.stats.prefix < 5


def test_memory_is_that_of_a_segment():
    def temporaries(adjoint):
        xs = jax.ShapeDtypeStruct((4096,), "float64")
        f = jax.grad(lambda w, xs: deeppcr.scan(step(w), jnp.ones(4), xs, adjoint=adjoint)[1].sum())
        return jax.jit(f).lower(1.0, xs).compile().memory_analysis().temp_size_in_bytes

    def step(w):
        return lambda h, x: (jnp.tanh(w * h + x), h.sum())

    at_once = temporaries(deeppcr.Adjoint(linear="sequential"))
    assert temporaries(deeppcr.Adjoint(linear="sequential", checkpoint=64)) < at_once / 8


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (deeppcr.Newton(record=True), "record is True, expected False"),
        (
            deeppcr.Newton(initial_guess=lambda *_: XS),
            "initial_guess is .*, expected a name",
        ),
    ],
    ids=["record", "guess"],
)
def test_what_is_for_the_chain_as_a_whole(method, message):
    chain = deeppcr.Chain(lambda z, x: jnp.tanh(W @ z + x), XS)
    with pytest.raises(ValueError, match=message):
        deeppcr.solve(chain, START, method=method, adjoint=SEGMENTS)
