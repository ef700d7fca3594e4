"""`deeppcr.triangular`: the loop that takes one entry of each evaluation is the oracle."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Result, triangular
from tests.problems import assert_agree, normal

L = 7
W, B = normal(0, L, L), normal(1, L, 3)
ZEROS = {"r": jnp.zeros((L, 3)), "d": jnp.zeros(L, int)}


def step(w, b, y):
    """Real entries of three numbers, and discrete ones, which read each other."""
    before = jnp.pad(y["d"][:-1], (1, 0)).astype(b.dtype)
    r = jnp.tanh(jnp.tril(w, -1) @ y["r"] + b) + 0.1 * before[:, None]
    d = jnp.cumsum(y["r"][:-1].sum(1) > 0)
    return {"r": r, "d": jnp.pad(d, (1, 0)).astype(int)}


def loop(f, y):
    for index in range(L):
        new = f(y)
        y = jax.tree.map(lambda old, x, index=index: old.at[index].set(x[index]), y, new)
    return y


@jax.jit
def sequential(w, b):
    return loop(partial(step, w, b), ZEROS)


@partial(jax.jit, static_argnames=("window", "rtol"))
def parallel(w, b, guess=ZEROS, window=None, rtol=None):
    return triangular(partial(step, w, b), guess, window=window, rtol=rtol)


GUESSES = [  # changes of the answer, the window, iterations
    (lambda x: jnp.zeros_like(x), None, L + 1),  # the last one confirms
    (lambda x: jnp.full_like(x, 3), 2, L + 1),
    (lambda x: jnp.zeros_like(x), 1, L + 1),
    (lambda x: x, None, 1),
    (lambda x: x.at[4].set(9), None, L - 4 + 1),
    (lambda x: x.at[0].set(9), 1, 2),
]


@pytest.mark.parametrize(("change", "window", "iterations"), GUESSES)
def test_any_guess_leads_to_the_answer_of_the_loop(change, window, iterations):
    expected = sequential(W, B)
    right = parallel(W, B).value  # to the last bit, which another program may round otherwise
    solution = parallel(W, B, jax.tree.map(change, right), window)
    assert_agree(solution.value, expected, 1e-14)
    assert (int(solution.iterations), int(solution.prefix)) == (iterations, L)
    assert int(solution.result) == Result.CONVERGED


def test_the_tolerance_of_real_entries():
    exact, loose = (int(parallel(1e-3 * W, B, rtol=rtol).iterations) for rtol in (None, 1e-2))
    assert loose < exact <= L

    def f(y):  # amplifies differences
        return jnp.pad(20 * y[:-1] - 19, (1, 0), constant_values=1)

    guess = jnp.array([1, 1.02, 1.4, 9, 161, 0, 0])  # the second one is as good as asked for
    solution = jax.jit(partial(triangular, f, rtol=0.03))(guess)
    assert solution.converged
    np.testing.assert_allclose(f(solution.value), solution.value, rtol=0.03)


def derivatives(solve):
    def loss(w, b):
        return jnp.sum(jnp.sin(solve(w, b)["r"]) * jnp.arange(1.0, 4)[None])

    gradient = jax.grad(loss, (0, 1))
    bend = jax.grad(lambda w, b: sum(jnp.sum(jnp.cos(x)) for x in gradient(w, b)), (0, 1))
    tangent = jax.jvp(loss, (W, B), (jnp.cos(W), jnp.sin(B)))[1]
    each = jax.vmap(gradient, (None, 0))(W, jnp.stack([B, 2 * B]))
    return tangent, gradient(W, B), bend(W, B), each


def test_derivatives_of_real_entries_and_vmap():
    ours = jax.jit(lambda: derivatives(lambda w, b: parallel(w, b).value))()
    assert_agree(ours, jax.jit(lambda: derivatives(sequential))())
    each = jax.jit(jax.vmap(partial(triangular, partial(step, W, B))))
    right = each(jax.tree.map(lambda x: jnp.stack([x, x]), ZEROS)).value
    solution = each(jax.tree.map(lambda x: x.at[0].set(0), right))  # each ends on its own
    np.testing.assert_array_equal(solution.iterations, [L + 1, 1])
    np.testing.assert_array_equal(solution.value["d"][0], solution.value["d"][1])


INDEX = jnp.arange(L)
NOT_TRIANGULAR = [
    (lambda y: y + 1, 0),  # on itself
    (lambda y: jnp.roll(y, 1) + 1, 0),  # on the last
    (lambda y: jnp.where(INDEX == 4, y[6] + 1, jnp.pad(jnp.cumsum(y)[:-1], (1, 0))), 4),
    (lambda y: jnp.pad(y[:-1] + 1, (1, 0)).at[-1].set(y[-1] + 1), L - 1),  # the last on itself
]


@pytest.mark.parametrize(("f", "first"), NOT_TRIANGULAR)
def test_the_entry_is_named_where_a_map_is_not_triangular(f, first):
    for dtype in (int, jnp.bfloat16):
        with pytest.raises(ValueError, match=f"step is not triangular: entry {first} of what"):
            triangular(f, jnp.ones(L, dtype))
    for options in ({}, {"window": 1}, {"window": 3, "rtol": 1e-3}):
        inside = jax.jit(partial(triangular, f, **options))(jnp.ones(L, int))
        assert (int(inside.prefix), int(inside.result)) == (first, Result.NOT_CONVERGED)
        assert not inside.converged


def test_one_entry_that_depends_on_itself():
    for dtype in (int, jnp.float16):
        with pytest.raises(ValueError, match="step is not triangular: entry 0"):
            triangular(lambda y: y + 1, jnp.zeros(1, dtype))
    assert triangular(lambda y: 0 * y + 3, jnp.zeros(1, int)).value == 3


def after(first, f):
    """The map whose entries are ``first``, and then f of the one before."""
    return lambda y: jnp.concatenate([jnp.asarray(first, y.dtype)[None], f(y[:-1])])


INF = jnp.inf
UNBOUNDED = {
    "infinite from the first": (after(INF, lambda y: y / 2 + 1), ()),
    "overflows": (after(1e20, jnp.square), ()),
    "alternates": (after(INF, jnp.negative), ()),
    "beside a finite number": (
        after([0.0, -INF], lambda y: y / 2 + jnp.array([[1.0, 0]], y.dtype)),
        (2,),
    ),
    "beside a large one": (after([1.0, INF], lambda y: y * jnp.array([[1.5, 1]], y.dtype)), (2,)),
    "becomes NaN": (after(INF, lambda y: y - y), ()),
    "divides by either zero": (after(-INF, lambda y: 1 / y), ()),
    "of complex numbers": (after(complex(INF, 1), lambda y: y / 2 + 1), ()),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_infinite_entries_are_those_of_the_loop(name):
    f, shape = UNBOUNDED[name]
    zeros = jnp.zeros((L, *shape), complex if "complex" in name else jnp.float32)
    guesses = jnp.stack([zeros, zeros + 2, loop(f, zeros)])
    for options in ({}, {"window": 2}, {"rtol": 1e-3}):
        solution = jax.jit(jax.vmap(partial(triangular, f, **options)))(guesses)
        for value in solution.value:
            np.testing.assert_array_equal(value, guesses[-1])
        assert set(solution.result.tolist()) == {Result.NOT_FINITE}


DTYPES = [jnp.bfloat16, jnp.float16, jnp.float32, float, complex]


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_changes_add_up(dtype):
    eps = float(jnp.finfo(dtype).eps)
    maps = [
        after(1, lambda y: y / 2 + 0.5 + 5 * eps),
        after(1, lambda y: y + 2 * eps),
        after(1, lambda y: -y * (1 + 2 * eps)),
    ]
    for f in maps:
        one = jnp.ones(3 * L, dtype)
        expected = jax.lax.fori_loop(0, len(one), lambda i, y, f=f: y.at[i].set(f(y)[i]), one)
        for guess in (one, 0 * one, expected.at[1].multiply(1 + eps)):
            options = {"rtol": 0.0} if guess is one else {"window": 4}
            solution = triangular(f, guess, **options)
            np.testing.assert_array_equal(solution.value, expected)
            assert int(solution.iterations) <= len(one) + 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_map_whose_rounding_depends_on_what_it_should_not_read(dtype):
    eps = float(jnp.finfo(dtype).eps)

    def f(y):  # up or down, by the entries from here on
        later = jnp.cumsum(jnp.abs(y)[::-1])[::-1].astype(jnp.float32)
        return after(1, lambda y: y / 2 + 1)(y) * jnp.where(
            jnp.sin(1e4 * later) > 0, dtype(1 + eps), dtype(1)
        )

    def g(y):  # sums by Fourier transforms
        w, x = 0.5 ** jnp.arange(float(L)), jnp.tanh(y).real.astype(float)
        wide = jnp.fft.rfft(w, 2 * L) * jnp.fft.rfft(x, 2 * L)
        return after(1, lambda y: y)(jnp.fft.irfft(wide)[:L].astype(dtype) + 1)

    for step in (f, g):
        guesses = jnp.stack([jnp.zeros(L, dtype), 3 * jnp.ones(L, dtype)])
        solution = jax.jit(jax.vmap(partial(triangular, step)))(guesses)
        assert set(solution.result.tolist()) == {Result.CONVERGED}
        assert int(solution.iterations.max()) <= L + 1
        expected = jax.jit(partial(loop, step))(guesses[0])
        for value in solution.value:
            assert jnp.abs(value - expected).max() <= 16 * eps * jnp.abs(expected).max()


def cubed(w, b):
    """Entries in the dtype of ``b``; a finite cotangent becomes infinite where ``y`` is zero."""
    return after(b[0], lambda y: w * jnp.tanh(y) + b[1:])


def power(solve, dtype, p, w, b):
    y = solve(cubed(w, b), jnp.zeros(L, dtype))
    return jnp.sum(jnp.abs(y) ** dtype(p))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("p", [0.5, 2.0])
def test_gradients_in_short_dtypes_and_infinite_ones(dtype, p):
    w = jnp.linspace(0.5, 0.9, L - 1).astype(dtype)
    b = jnp.linspace(0.5, 1, L).astype(dtype) if p == 2 else jnp.zeros(L, dtype).at[4].set(1)
    gradients = [
        jax.jit(jax.grad(partial(power, solve, dtype, p), (0, 1)))
        for solve in (lambda f, y: triangular(f, y).value, loop)
    ]
    ours, theirs = (jax.tree.map(lambda x: x.astype(float), f(w, b)) for f in gradients)
    eps = float(jnp.finfo(dtype).eps)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=8 * eps, atol=8 * eps)


def test_keys_and_derivatives_of_arrays_that_are_not_moved():
    @jax.grad
    def gradient(b, w, key):  # of w the derivative is infinite
        draw = jax.random.normal(key, (L,))
        f = after(1, lambda y: y * jnp.sqrt(w) * b + jax.random.normal(key, (L,))[1:])
        return triangular(f, draw).value.sum()

    key = jax.random.key(0)
    assert jnp.isfinite(gradient(jnp.array(0.5), jnp.array(0.0), key))
    assert jnp.isfinite(jax.jit(gradient)(jnp.array(0.5), jnp.array(0.0), key))


def test_inside_shard_map():
    def last(b):
        return triangular(after(1, lambda y: jnp.tanh(y * b)), jnp.zeros(L)).value[-1]

    mesh, spec = jax.sharding.Mesh(jax.devices()[:2], "x"), jax.sharding.PartitionSpec("x")
    gradients = jax.vmap(jax.grad(last))
    f = jax.shard_map(gradients, mesh=mesh, in_specs=spec, out_specs=spec)
    b = jnp.array([0.5, 1.0])
    assert_agree(jax.jit(f)(b), jax.jit(gradients)(b))


def test_entries_that_are_not_finite():
    def f(y):
        y = jnp.pad(y[:-1], (1, 0), constant_values=jnp.nan)
        return jnp.cumsum(y).at[0].set(1.0)

    solution = triangular(f, jnp.zeros(L))
    assert int(solution.result) == Result.NOT_FINITE
    np.testing.assert_array_equal(solution.value, [1.0, *[np.nan] * (L - 1)])
    assert triangular(f, jnp.zeros(0)).value.shape == (0,)
    with pytest.raises(ValueError, match=r"entry 0 .*NaN times zero is NaN"):
        triangular(lambda y: (jnp.ones(L) + 0 * y[-1]).at[-1].set(jnp.inf), jnp.zeros(L))


WRONG = [
    ({"step": lambda y: y[:, None]}, TypeError, r"step returns .*\[7, 1\], expected a pytree as"),
    ({"step": lambda y: y > 0}, TypeError, r"step returns .*, expected a pytree as the guess: flo"),
    ({"guess": jnp.ones(())}, ValueError, r"guess has leaves of the shapes \[\(\)\], expected"),
    (
        {"guess": [jnp.ones(2), jnp.ones(3)]},
        ValueError,
        r"\[\(2,\), \(3,\)\], expected the entries",
    ),
    ({"window": 0}, ValueError, "window is 0, expected None or an integer >= 1 .the number of e"),
    ({"rtol": -1.0}, ValueError, "rtol is -1.0, expected a number >= 0, or None"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG)
def test_what_does_not_fit_is_named(options, error, message):
    with pytest.raises(error, match=message):
        triangular(**{"step": lambda y: y, "guess": jnp.ones(L)} | options)
