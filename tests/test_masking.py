"""`masked` and `resetting` beside the same steps in `jax.lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import normal

TIME, BATCH, WIDTH = 6, 2, 3
XS = normal(0, TIME, BATCH, WIDTH)
FLAGS = jnp.array([[1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1]], bool).T
INIT = {"h": jnp.ones((BATCH, WIDTH)), "count": jnp.zeros(BATCH, jnp.int32)}
START = jax.tree.map(np.asarray, INIT)


def step(carry, x):
    h = jnp.tanh(1.5 * carry["h"] + x)
    return {"h": h, "count": carry["count"] + 1}, h


def by_hand(choose):
    """The flags applied sequence by sequence, in a loop."""
    carry, outputs = START, []
    for x, flags in zip(np.asarray(XS), np.asarray(FLAGS), strict=True):
        carry, y = choose(carry, x, flags)
        outputs.append(y)
    return carry, np.stack(outputs)


def where(flags, new, old):
    rows = [
        jax.tree.map(lambda a, b, i=i: (a if flags[i] else b)[i], new, old) for i in range(BATCH)
    ]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *rows)


def by_numpy(carry, x):
    h = np.tanh(1.5 * carry["h"] + x)
    return {"h": h, "count": carry["count"] + 1}, h


def keeping(carry, x, flags):
    after, y = by_numpy(carry, x)
    return where(flags, after, carry), y


@pytest.mark.parametrize("method", ["sequential", "newton"])
@pytest.mark.parametrize("kind", ["masked", "resetting"])
def test_agrees_with_the_loop(kind, method):
    if kind == "masked":
        want, f = by_hand(keeping), deeppcr.masked(step)
    else:
        want = by_hand(lambda carry, x, flags: by_numpy(where(flags, START, carry), x))
        f = deeppcr.resetting(step, {"h": jnp.ones(WIDTH), "count": 0})

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)

    got = deeppcr.scan(f, INIT, (XS, FLAGS), method=method, batch_ndim=1)
    jax.tree.map(close, got, want)
    if method == "sequential":  # a step for jax's loop as well
        jax.tree.map(close, jax.lax.scan(f, INIT, (XS, FLAGS)), want)


def test_the_structure_of_the_step_stays():
    def plain(h, x):
        return jnp.tanh(h + x), h

    def structure(f, inputs):
        chain = deeppcr.plan(f, XS[0], inputs, batch_ndim=1, iterations=5).main
        return str(chain.structure)

    found = [
        structure(f, (XS, FLAGS)) for f in (deeppcr.masked(plain), deeppcr.resetting(plain, 0.0))
    ]
    assert found == [structure(plain, XS)] * 2


def test_newton_needs_no_more_iterations_than_on_a_segment():
    def grows(z, x):
        z = 1.6 * jnp.tanh(z) + x
        return z, z

    xs = normal(1, 512)

    def iterations(every):
        f, flags = deeppcr.resetting(grows, 0.0), jnp.arange(512) % every == 0
        chain = deeppcr.Chain(lambda z, x: f(z, x)[0], (xs, flags))
        return int(deeppcr.solve(chain, jnp.zeros(()), method="newton").stats.iterations)

    assert iterations(4) <= 5 < iterations(512)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: deeppcr.masked(3), TypeError, "step is 3, expected a function"),
        (lambda: deeppcr.masked(step)(INIT, XS[0]), TypeError, r"expected a pair: \(x, mask\)"),
        (lambda: deeppcr.masked(step)(INIT, (XS[0], 1)), TypeError, "mask has dtype int.*bool"),
        (
            lambda: deeppcr.resetting(step, INIT)(INIT, (XS[0], FLAGS[:, 0])),
            ValueError,
            r"reset has shape \[6\] at each time.*\['count'\]",
        ),
        (lambda: deeppcr.resetting(step, 0.0)(INIT, (XS[0], FLAGS[0])), ValueError, "initial is"),
    ],
    ids=range(5),
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
