"""`delay` beside a loop over a list of states; `masked` and `resetting` beside loops with flags."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import delay
from deeppcr.chain.chain import trace_chain
from deeppcr.structure import find_structure
from tests.problems import assert_agree, normal

STEPS, BATCH, WIDTH = 6, 2, 3
XS = normal(0, STEPS, BATCH, WIDTH)
P = normal(1, 3, WIDTH, WIDTH, scale=0.3)
FLAGS = jax.device_put(np.array([[1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 0, 1]], bool).T)
INIT = jax.device_put({"h": np.ones((BATCH, WIDTH)), "count": np.zeros(BATCH, np.int32)})


def linear(p):
    """AR(3): a vector of series, with a matrix for each lag."""
    return lambda states, x: sum(z @ matrix for z, matrix in zip(states, p, strict=True)) + x


def nonlinear(p):
    """Two steps back, and states that are pytrees."""

    def f(states, x):
        new, old = states
        moved = jnp.tanh(new["z"] @ p[0] - 0.5 * old["z"] @ p[1] + x)
        return {"z": moved, "energy": 0.5 * old["energy"] + jnp.sum(moved * new["z"])}

    return f


STATES = jax.device_put([np.full(WIDTH, 0.1 * (place + 1)) for place in range(3)])
DELAYS = {
    "linear": (linear, STATES, "sequential", "pcr"),
    "nonlinear": (
        nonlinear,
        [{"z": z, "energy": z.sum()} for z in STATES[:2]],
        "newton",
        "sequential",
    ),
}


def in_a_loop(f, states, xs):
    states, found = list(states), []
    for x in xs:
        states = [f(tuple(states), x), *states[:-1]]
        found.append(states[0])
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


@pytest.mark.parametrize("name", DELAYS)
def test_delays_agree_with_a_loop(name):
    make, states, method, adjoint = DELAYS[name]

    def by_solve(p, states, xs):
        step = delay(make(p), len(states))
        chain, options = deeppcr.Chain(step, xs), {"method": method, "adjoint": adjoint}
        return deeppcr.solve(chain, step.window(states), **options).trajectory[0]

    def by_scan(p, states, xs):
        step = delay(make(p), len(states))
        window, found = deeppcr.scan(step.emit, step.window(states), xs, method=method)
        last = jax.tree.map(lambda z: z[-1], found)
        assert jax.tree.structure(window[0]) == jax.tree.structure(last)
        return found

    def graded(run, *args):
        def loss(*args):
            found = run(*args)
            return sum(jnp.sum(jnp.cos(leaf)) for leaf in jax.tree.leaves(found)), found

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*args)

    runs = by_solve, by_scan, lambda p, states, xs: in_a_loop(make(p), states, xs)
    *found, expected = jax.jit(lambda *args: [graded(run, *args) for run in runs])(
        P, states, XS[:, 0]
    )
    for each in found:
        assert_agree(each, expected)


def counting(carry, x):
    h = jnp.tanh(1.5 * carry["h"] + x)
    return {"h": h, "count": carry["count"] + 1}, h


def where(flags, new, old):
    return jax.tree.map(
        lambda a, b: jnp.stack([(a if flag else b)[i] for i, flag in enumerate(flags)]), new, old
    )


def keep(carry, x, flags):
    after, y = counting(carry, x)
    return where(flags, after, carry), y


FLAGGED = {
    "masked": (deeppcr.masked(counting), keep),
    "resetting": (
        deeppcr.resetting(counting, {"h": jnp.ones(WIDTH), "count": 0}),
        lambda carry, x, flags: counting(where(flags, INIT, carry), x),
    ),
}


@pytest.mark.parametrize("method", ["sequential", "newton"])
@pytest.mark.parametrize("kind", FLAGGED)
def test_flags_agree_with_a_loop(kind, method):
    f, by_hand = FLAGGED[kind]
    carry, outputs = INIT, []
    for x, flags in zip(XS, np.asarray(FLAGS), strict=True):
        carry, y = by_hand(carry, x, flags)
        outputs.append(y)
    expected = carry, jnp.stack(outputs)
    assert_agree(deeppcr.scan(f, INIT, (XS, FLAGS), method=method, batch_ndim=1), expected, 1e-12)
    if method == "sequential":  # a step for jax's loop as well
        assert_agree(jax.lax.scan(f, INIT, (XS, FLAGS)), expected, 1e-12)


def test_the_structure_of_the_step_stays():
    def plain(h, x):
        return jnp.tanh(h + x), h

    def structure(f, inputs):
        chain = trace_chain(f, XS[0], inputs, STEPS, 1, "carry")
        return str(find_structure(chain.step, chain.layout))

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


three, short = delay(linear(P), 3), delay(lambda states, x: states[0].sum(), 2)
masked, resetting = deeppcr.masked(counting), deeppcr.resetting
UNLIKE, NESTED = [*STATES[:2], jnp.ones(1)], [STATES[0], (STATES[1],), STATES[2]]
BAD = {
    r"k is 0, expected an integer >= 1 \(number of states that f reads\)": lambda: delay(linear, 0),
    r"k is 1\.5, expected an integer >= 1": lambda: delay(linear, 1.5),
    "f is 3, expected a function": lambda: delay(3, 1),
    "states has 2 entries, expected k = 3 states": lambda: three.window(STATES[:2]),
    r"states is float64\[.*expected a tuple of k = 3": lambda: three.window(XS[0]),
    r"states\[2\] is float64\[1\], expected what states\[0\] is: fl": lambda: three.window(UNLIKE),
    r"states\[1\] is \(": lambda: three.window(NESTED),
    "the window has 2 entries, expected k = 3": (
        lambda: deeppcr.scan(three.emit, tuple(STATES[:2]), XS[:, 0])
    ),
    r"what f returns is float64\[\], expected what the state that it reads is": (
        lambda: deeppcr.scan(short.emit, short.window(STATES[:2]), XS[:, 0])
    ),
    "step is 3, expected a function": lambda: deeppcr.masked(3),
    r"expected a pair: \(x, mask\)": lambda: masked(INIT, XS[0]),
    "mask has dtype int.*bool": lambda: masked(INIT, (XS[0], 1)),
    r"reset has shape \[6\] at each time.*\['count'\]": (
        lambda: resetting(counting, INIT)(INIT, (XS[0], FLAGS[:, 0]))
    ),
    "initial is": lambda: resetting(counting, 0.0)(INIT, (XS[0], FLAGS[0])),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input(message):
    with pytest.raises((TypeError, ValueError), match=message):
        BAD[message]()
