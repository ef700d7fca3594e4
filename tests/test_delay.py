"""Chains whose step reads the last k states, against a loop over a Python list."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import delay

STEPS = 4
XS = jnp.asarray(np.random.default_rng(0).standard_normal((STEPS, 2)))


def linear(p):
    """AR(3): a vector of two series, with a matrix for each lag."""
    return lambda states, x: (
        sum(state @ matrix for state, matrix in zip(states, p, strict=True)) + x
    )


def nonlinear(p):
    """Two steps back, and states that are pytrees."""

    def f(states, x):
        new, old = states
        moved = jnp.tanh(new["z"] @ p[0] - 0.5 * old["z"] @ p[1] + x)
        return {"z": moved, "energy": 0.5 * old["energy"] + jnp.sum(moved * new["z"])}

    return f


def plain(p):
    return lambda states, x: jnp.sin(states[0] @ p[0]) + x


def vectors(k):
    return [jnp.array([0.1, -0.2]) * (place + 1.0) for place in range(k)]


def problem(name):
    """The function of its parameters, and the initial states, newest first."""
    trees = [{"z": z, "energy": z.sum()} for z in vectors(2)]
    return {
        "linear": (linear, vectors(3)),
        "nonlinear": (nonlinear, trees),
        "plain": (plain, vectors(1)),
    }[name]


def parameters(k):
    return jnp.asarray(np.random.default_rng(1).standard_normal((max(k, 2), 2, 2)) * 0.3)


def in_a_loop(f, states, xs):
    states, found = list(states), []
    for x in xs:
        z = f(tuple(states), x)
        states = [z, *states[:-1]]
        found.append(z)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def weigh(trajectory):
    leaves = jax.tree.leaves(trajectory)
    return sum(jnp.sum(jnp.cos(leaf) * (1.0 + place)) for place, leaf in enumerate(leaves))


def assert_close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.fixture(scope="module")
def oracle():
    """Value and gradients of each problem, by the loop, once."""
    found = {}
    for name in ("linear", "nonlinear"):
        make, states = problem(name)

        def loss(p, states, xs, make=make):
            trajectory = in_a_loop(make(p), states, xs)
            return weigh(trajectory), trajectory

        graded = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
        found[name] = graded(parameters(len(states)), states, XS)
    return found


@pytest.mark.parametrize(
    ("name", "method", "adjoint"),
    [
        ("nonlinear", "newton", "pcr"),
        ("linear", "sequential", "pcr"),
    ],
)
def test_values_and_gradients_are_those_of_the_loop(oracle, name, method, adjoint):
    make, states = problem(name)

    @jax.jit
    @lambda loss: jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
    def ours(p, states, xs):
        step = delay(make(p), len(states))
        solution = deeppcr.solve(
            deeppcr.Chain(step, xs), step.window(states), method=method, adjoint=adjoint
        )
        trajectory = step.newest(solution.trajectory)
        return weigh(trajectory), trajectory

    assert_close(ours(parameters(len(states)), states, XS), oracle[name])


def test_scan_returns_the_trajectory_as_its_output(oracle):
    make, states = problem("nonlinear")
    step = delay(make(parameters(2)), 2)
    window, trajectory = jax.jit(
        lambda xs: deeppcr.scan(step.emit, step.window(states), xs, method="newton")
    )(XS)
    ((_, expected), _) = oracle["nonlinear"]
    assert_close(trajectory, expected)
    assert_close(step.newest(window), jax.tree.map(lambda z: z[-1], expected))
    assert_close(window[1], jax.tree.map(lambda z: z[-2], expected))


def test_vmap_over_the_initial_states_and_the_inputs():
    make, states = problem("linear")
    p, scales = parameters(3), np.array([0.5, 1.0, -2.0])

    def ours(scale):
        step = delay(make(p), 3)
        return weigh(
            deeppcr.scan(
                step.emit, step.window([scale * z for z in states]), scale * XS, adjoint="pcr"
            )[1]
        )

    def theirs(scale):
        return weigh(in_a_loop(make(p), [scale * z for z in states], scale * XS))

    assert_close(*jax.jit(lambda s: [jax.vmap(f)(s) for f in (ours, theirs)])(scales))


def test_one_delay_is_the_plain_step():
    _, states = problem("plain")
    p = parameters(1)
    step = delay(plain(p), 1)
    plainly = deeppcr.solve(deeppcr.Chain(lambda z, x: jnp.sin(z @ p[0]) + x, XS), states[0])
    found = deeppcr.scan(step.emit, step.window(states), XS)
    assert_close(found, ((plainly.value,), plainly.trajectory))


def test_no_steps_return_no_states():
    step = delay(plain(parameters(1)), 1)
    assert deeppcr.scan(step.emit, step.window(vectors(1)), XS[:0])[1].shape == (0, 2)


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(k):
    with pytest.raises(
        ValueError, match=f"k is {k}, expected how many states f reads: an integer >= 1"
    ):
        delay(plain, k)


def test_k_is_an_integer_and_f_a_function():
    with pytest.raises(
        TypeError, match=r"k is 1\.5, expected how many states f reads: an integer >= 1"
    ):
        delay(plain, 1.5)
    with pytest.raises(TypeError, match="f is int, expected a function"):
        delay(3, 1)


def test_the_initial_states_are_k_of_one_kind():
    step = delay(linear(parameters(3)), 3)
    with pytest.raises(
        ValueError, match="states has 2 entries, expected k = 3 states, newest first"
    ):
        step.window(vectors(2))
    with pytest.raises(TypeError, match="states is ArrayImpl, expected a tuple of k = 3 states"):
        step.window(jnp.zeros((3, 2)))
    with pytest.raises(
        ValueError, match=r"states\[2\] has shape \[1\], expected that of states\[0\]: \[2\]"
    ):
        step.window([*vectors(2), jnp.ones(1)])
    with pytest.raises(TypeError, match=r"states\[1\] has dtype float32"):
        step.window([jnp.zeros(2), jnp.zeros(2, jnp.float32), jnp.zeros(2)])
    with pytest.raises(TypeError, match=r"states\[1\] has the structure"):
        step.window([jnp.zeros(2), (jnp.zeros(2),), jnp.zeros(2)])
    with pytest.raises(ValueError, match="the window has 2 entries, expected k = 3"):
        deeppcr.scan(step.emit, tuple(vectors(2)), XS)


def test_f_returns_a_state_like_those_it_reads():
    step = delay(lambda states, x: states[0].sum(), 2)
    with pytest.raises(
        ValueError,
        match=r"what f returns has shape \[\], expected that of the states that it reads: \[2\]",
    ):
        deeppcr.scan(step.emit, step.window(vectors(2)), XS)
