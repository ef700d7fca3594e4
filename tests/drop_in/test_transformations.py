"""`deeppcr.scan` under jax's transformations and options, as `jax.lax.scan`."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.drop_in.kinds import (
    INIT,
    LENGTH,
    METHODS,
    SCANS,
    WEIGHT,
    XS,
    assert_same,
    by_lax,
    over,
    pairs,
    together,
)
from tests.problems import normal


def step(w, c, x):
    """A branch, a loop whose number of trips depends on the counter, and an inner scan."""
    z, count = c
    z = jax.lax.cond(count % 2 == 0, jnp.sin, jnp.tanh, w @ z + x)
    z = jax.lax.fori_loop(0, 3, lambda _, z: z * 0.9, z)
    z, _ = jax.lax.scan(lambda z, _: (z + 0.1 * jnp.cos(z), None), z, None, 2)
    return (z, count + 1), z * x


def value(scan, w, z, xs):
    (last, count), ys = scan(partial(step, w), (z, 0), xs)
    return last * count, ys


def total(scan, *args):
    last, ys = value(scan, *args)
    return last.sum() + (ys**2).sum()


ARGS = WEIGHT, INIT, XS
TANGENTS = tuple(normal(10 + i, *x.shape) for i, x in enumerate(ARGS))


def jvp(scan):
    return jax.jvp(partial(value, scan), ARGS, TANGENTS)


def linearize(scan):
    out, tangents = jax.linearize(partial(value, scan), *ARGS)
    return out, tangents(*TANGENTS), tangents(*ARGS)


def vjp(scan):
    out, pullback = jax.vjp(partial(value, scan), *ARGS)
    return out, pullback(out)


def hessian(scan):
    return jax.hessian(lambda z: total(scan, WEIGHT, z, XS))(INIT)


def reverse_over_reverse(scan):
    gradient = jax.grad(partial(total, scan), argnums=1)
    return jax.grad(lambda w: gradient(w, INIT, XS).sum())(WEIGHT)


def jacobians(scan):
    def last(z):
        return value(scan, WEIGHT, z, XS)[0]

    return jax.jacfwd(last)(INIT), jax.jacrev(last)(INIT)


def gradient_of_jit(scan):
    return jax.grad(jax.jit(partial(total, scan)))(*ARGS)


def jit_of_vmap_of_gradient(scan):
    return jax.jit(jax.vmap(jax.grad(partial(total, scan), (0, 1, 2)), (None, 0, None)))(
        WEIGHT, normal(5, 3, 2), XS
    )


def gradient_of_vmap(scan):
    def batch(w, z):
        return jax.vmap(partial(total, scan), (None, 0, None))(w, z, XS).sum()

    return jax.grad(batch, (0, 1))(WEIGHT, normal(5, 3, 2))


def rematerialised(scan):
    return jax.grad(jax.checkpoint(partial(total, scan)))(*ARGS)


def without_jit(scan):
    with jax.disable_jit():
        return value(scan, *ARGS)


TRANSFORMS = [
    jvp,
    linearize,
    vjp,
    hessian,
    reverse_over_reverse,
    jacobians,
    gradient_of_jit,
    jit_of_vmap_of_gradient,
    gradient_of_vmap,
    rematerialised,
    without_jit,
]


@pairs(TRANSFORMS, [jvp, vjp, jit_of_vmap_of_gradient])
def test_transforms(case, scan):
    assert_same(compiled(scan, case), by_lax(compiled, case))


def compiled(scan, transform):
    return transform(scan) if transform is without_jit else jax.jit(lambda: transform(scan))()


# vmap: over any of the arguments


def mapped(scan, axes, out_axes=0):
    def run(w, z, xs):
        def rnn(c, x):
            z, fixed, count = c
            return (jnp.tanh(w @ z + x + fixed), fixed, count + 1), z

        return scan(rnn, (z, INIT, 0), xs)

    return jax.vmap(run, axes, out_axes)(
        *(
            x if axis is None else BATCHES[i]
            for i, (x, axis) in enumerate(zip(ARGS, axes, strict=True))
        )
    )


BATCHES = normal(20, 3, 2, 2, scale=0.5), normal(21, 3, 2), normal(22, 3, LENGTH, 2)


@pairs(
    [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)], [(0, 0, 0)], ("newton", "auto")
)
def test_vmap_over_any_argument(case, scan):
    assert_same(together(mapped, scan, case), together(mapped, jax.lax.scan, case))


@over("auto", "newton, pcr")
def test_leaves_that_no_batched_one_changes_stay_unbatched(scan):
    axes = ((0, None, None), 0)
    actual, expected = (
        together(mapped, each, (None, 0, None), axes) for each in (scan, jax.lax.scan)
    )
    assert_same(actual, expected)


@over("sequential, backprop", "newton, pcr")
def test_a_carry_that_is_returned_as_it_came_stays_unbatched_in_a_branch(scan):
    def f(x, y):
        def branch(_, y):
            return scan(lambda y, _: (y, None), y, None, length=1)[0]

        return jax.lax.cond(x < 0, branch, branch, x, y)

    assert jax.vmap(f, (0, None), None)(jnp.arange(3.0), 3.0) == 3.0


@METHODS
def test_vmap_of_a_carry_that_gets_its_batch_from_another_leaf(scan):
    def run(z):
        return scan(lambda c, _: ((c[1], c[2], c[3], 0.0), c[0]), (0.0, 1.0, 2.0, z), None, 2)

    zs = jnp.array([3.0, 4.0, 5.0])
    actual, expected = (jax.jit(jax.vmap(lambda z, s=s: s(z)))(zs) for s in (run, shifted))
    assert_same(actual, expected)


def shifted(z):
    return jax.lax.scan(lambda c, _: ((c[1], c[2], c[3], 0.0), c[0]), (0.0, 1.0, 2.0, z), None, 2)


@METHODS
def test_sums_over_a_mapped_axis_inside_of_the_step(scan):
    def run(z, xs):
        return scan(lambda z, x: (jnp.sin(z) + x, jax.lax.psum(z, "i") * x), z, xs)

    actual, expected = (
        jax.jit(jax.vmap(each, (0, None), axis_name="i"))(BATCHES[1], XS) for each in (run, summed)
    )
    assert_same(actual, expected)


def summed(z, xs):
    return jax.lax.scan(lambda z, x: (jnp.sin(z) + x, jax.lax.psum(z, "i") * x), z, xs)


@METHODS
def test_keys_under_vmap(scan):
    def run(scan, key):
        def draw(c, _):
            key, now = jax.random.split(c[0])
            return (key, 0.5 * c[1] + jax.random.normal(now)), c[1]

        return scan(draw, (key, 0.0), None, LENGTH)

    keys = jax.random.split(jax.random.key(0), 3)
    assert_same(*(jax.jit(jax.vmap(partial(run, s)))(keys) for s in (scan, jax.lax.scan)))


# Loops inside and around


@over("auto", "newton, pcr")
def test_a_scan_in_a_scan(scan):
    def nested(scan, outer, z, xs):
        def row(c, x):
            z, count = c
            (z, inner), ys = scan(
                lambda c, _: ((jnp.tanh(WEIGHT @ c[0] + x), c[1] + 1), c[0]), (z, 0), None, 3
            )
            return (z, count + inner), ys

        (z, count), ys = outer(row, (z, 0), xs, reverse=True)
        return z.sum() * count + (ys**2).sum()

    def gradient(scan, outer):
        return jax.jit(jax.grad(partial(nested, scan, outer), (0, 1)))(INIT, XS)

    expected = gradient(jax.lax.scan, jax.lax.scan)
    nestings = [(scan, scan), (scan, jax.lax.scan), (jax.lax.scan, scan)]
    for inner, outer in nestings if scan is SCANS["auto"] else nestings[:1]:
        assert_same(gradient(inner, outer), expected)


@over("auto", "newton, pcr")
def test_forward_mode_through_a_while_loop(scan):
    """Its number of trips is known to nobody before."""

    def last(scan, z):
        def rooted(z, x):
            z = jax.lax.while_loop(lambda z: jnp.sum(z**2) > 0.5, lambda z: 0.7 * z, z + x)
            return z, z[0]

        return scan(rooted, z, XS)

    def tangents(scan):
        run = partial(last, scan)
        out, linear = jax.linearize(run, INIT)
        return jax.jvp(run, (INIT,), (XS[0],)), out, linear(XS[1]), jax.jacfwd(run)(INIT)

    assert_same(together(tangents, scan), together(tangents, jax.lax.scan))
    with pytest.raises(ValueError, match=r"Reverse-mode.*while_loop"):
        jax.grad(lambda z: last(scan, z)[0].sum())(INIT)


# Options


@pairs([0, 3, True], [3], ("auto", "sequential", "newton"))
def test_unroll(case, scan):
    options = {"unroll": case, "_split_transpose": bool(case)}
    steps = {
        "floats": (lambda z, x: (jnp.tanh(WEIGHT @ z + x), z), INIT),
        "a counter": (lambda n, x: (n + 1, n), 0),
    }

    def both(scan):
        return [scan(f, init, XS, **options) for f, init in steps.values()]

    assert_same(together(both, scan), together(both, jax.lax.scan))


def test_unroll_is_heeded():
    """Where the chain runs as `jax.lax.scan`: no loop is left."""
    for options in ({"method": "sequential"}, {"adjoint": "autodiff"}):
        for f, init in ((lambda z, x: (jnp.sin(z + x), z), INIT), (lambda n, x: (n + 1, n), 0)):
            run = partial(deeppcr.scan, f, unroll=True, **options)
            assert "while" not in jax.jit(run).lower(init, XS).as_text()
            run = partial(deeppcr.scan, f, unroll=2, **options)
            assert "while" in jax.jit(run).lower(init, XS).as_text()


@pytest.mark.parametrize("scan", [SCANS["auto"], SCANS["newton"]], ids=["auto", "newton"])
@pytest.mark.parametrize("init", [0, 0.5], ids=str)
def test_bad_unroll(scan, init):
    with pytest.raises(ValueError, match=r"unroll.*must be"):
        scan(lambda z, x: (z, x), init, XS, unroll=-1)
    with pytest.raises(TypeError, match=r"unroll"):
        jax.jit(lambda n: scan(lambda z, x: (z, x), init, XS, unroll=n))(3)


def test_arguments_by_position():
    def f(z, x):
        return jnp.sin(z) + x, z

    assert_same(deeppcr.scan(f, INIT, XS, LENGTH, True), jax.lax.scan(f, INIT, XS, LENGTH, True))
    assert_same(deeppcr.scan(f, INIT, XS, None, True, 2), jax.lax.scan(f, INIT, XS, None, True, 2))
