"""What nobody reads: entries of a carry, outputs, tangents that are zero; beside infinities.

An array of zeros times an infinite derivative is NaN, where `jax.lax.scan` has nothing at all.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import assert_agree, normal, pairs

W, XS = normal(0, 3, 3, scale=0.3), normal(1, 40, 3)
SOLVED = {
    "default": deeppcr.scan,
    "backprop": partial(deeppcr.scan, adjoint="backprop"),
    "blocks": partial(deeppcr.scan, adjoint="sequential"),
    "pcr": partial(deeppcr.scan, adjoint="pcr"),
    "diagonal": partial(deeppcr.scan, adjoint=deeppcr.Adjoint(linearize="diagonal")),
    "segments": partial(deeppcr.scan, adjoint=deeppcr.Adjoint(checkpoint=8)),
    "newton": partial(deeppcr.scan, method="newton"),
}


def overflows(w, carry, x):
    """A network, and a diagnostic that overflows."""
    h, energy = carry
    h = jnp.tanh(h @ w + x)
    return (h, energy**2 + 2 + (h**2).sum()), (h.sum(), energy)


def counts(w, carry, x):
    """A network that reads a clock, whose derivative is infinite at the start."""
    h, clock = carry
    h = jnp.tanh(h @ w + x + 0.1 * jnp.sqrt(clock))
    return (h, clock + 1), (h.sum(), jnp.sqrt(clock))


def stops(w, carry, x):
    """A network divided by what it does not differentiate, and what overflows."""
    h, norm = carry
    h = jnp.tanh(h @ w + x) * (1 + 1 / jax.lax.stop_gradient(norm))
    return (h, norm**2 + 2 + (h**2).sum()), (h.sum(), norm)


def holds(w, carry, x):
    """The same in an inner loop, which carries it."""
    return jax.lax.fori_loop(0, 2, lambda i, c: overflows(w, c, x)[0], carry), (x.sum(), carry[1])


STEPS = {
    "overflows": (overflows, (jnp.zeros(3), jnp.zeros(()))),
    "counts": (counts, (jnp.zeros(3), jnp.zeros(()))),
    "stops": (stops, (jnp.zeros(3), jnp.ones(()))),
    "holds": (holds, (jnp.zeros(3), jnp.zeros(()))),
}


def loss(step, init, scan, w):
    (h, _), (ys, _) = scan(partial(step, w), init, XS)
    return jnp.sum(h**2) + jnp.sum(jnp.sin(ys))


def derivatives(f, w):
    """First derivatives in both modes, of a batch, and second ones."""
    return (
        jax.value_and_grad(f)(w),
        jax.jvp(f, (w,), (jnp.ones_like(w),))[1],
        jax.vmap(jax.grad(f))(jnp.stack([w, 0.5 * w])),
        jax.grad(lambda w: jax.grad(f)(w).sum())(w),
    )


@pytest.mark.parametrize(("scan", "step"), pairs(list(SOLVED), list(STEPS)))
def test_derivatives_are_those_of_lax_scan(scan, step):
    f = partial(loss, *STEPS[step])
    expected = jax.jit(partial(derivatives, partial(f, jax.lax.scan)))(W)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(expected))
    found = jax.jit(partial(derivatives, partial(f, SOLVED[scan])))(W)
    assert_agree(found, expected)


@pytest.mark.parametrize(("step", "scan"), pairs(list(STEPS), ["backprop", "pcr"]))
def test_outside_of_jit_too(step, scan):
    f = partial(loss, *STEPS[step])
    expected = jax.grad(partial(f, jax.lax.scan))(W)
    assert_agree(jax.grad(partial(f, SOLVED[scan]))(W), expected)


@pytest.mark.parametrize("scan", ["default", "backprop", "pcr"])
def test_an_entry_that_is_differentiated_nowhere_has_no_tangent(scan):
    def after(scan, w):  # the derivative of the root is infinite
        (h, clock), _ = scan(partial(counts, w), STEPS["counts"][1], XS)
        return h.sum() + jnp.sqrt(clock - len(XS))

    both = [jax.jvp(partial(after, each), (W,), (W,))[1] for each in (jax.lax.scan, SOLVED[scan])]
    assert_agree(both[1], both[0])
    assert np.isfinite(both[0])


def rooted(w, carry, x):
    """A network, and a diagnostic whose derivative is infinite at the start."""
    h, norm = carry
    h = jnp.tanh(h @ w + x)
    return (h, jnp.sqrt(norm) + 0 * (h**2).sum()), None


@pytest.mark.parametrize("scan", ["default", "backprop", "pcr", "segments", "newton"])
def test_in_a_loop_around_it(scan):
    """It carries the diagnostic, whose cotangents are zeros there, and not nothing."""

    def after(scan, w):
        around = lambda carry, xs: (scan(partial(rooted, w), carry, xs)[0], None)  # noqa: E731
        (h, _), _ = jax.lax.scan(around, (jnp.zeros(3), jnp.zeros(())), XS.reshape(2, 20, 3))
        return (h**2).sum()

    expected = jax.jit(jax.grad(partial(after, jax.lax.scan)))(W)
    assert bool(jnp.isfinite(expected).all())
    assert_agree(jax.jit(jax.grad(partial(after, SOLVED[scan])))(W), expected)


@pytest.mark.parametrize("batched", [False, True], ids=["one", "batch"])
def test_newton_iterates_for_what_is_read(batched):
    carry = STEPS["overflows"][1]

    def run(step, init, w):
        solution = deeppcr.solve(deeppcr.Chain(partial(step, w), XS), init, method="newton")
        return jax.tree.leaves(solution.value)[0], solution.stats.iterations

    def alone(w, h, x):
        return overflows(w, (h, carry[1]), x)[0][0]

    def beside(w, carry, x):
        return overflows(w, carry, x)[0]

    runs = (alone, carry[0]), (beside, carry)
    ws = jnp.stack([W, 0.5 * W]) if batched else W
    compiled = (partial(run, *each) for each in runs)
    expected, found = (jax.jit(jax.vmap(f) if batched else f)(ws) for f in compiled)
    assert_agree(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_newton_iterates_for_what_is_read_of_a_narrow_carry():
    def step(carry, x):
        h, energy = carry
        h = jnp.tanh(0.5 * h + x)
        return (h, 0.5 * energy + h.sum()), h

    xs, init = XS.astype(jnp.bfloat16), (jnp.ones(3, jnp.bfloat16), jnp.zeros((), jnp.bfloat16))
    newton = jax.jit(lambda: deeppcr.scan(step, init, xs, method="newton")[1])()
    np.testing.assert_allclose(newton, jax.lax.scan(step, init, xs)[1], rtol=0.02, atol=0.02)


@pytest.mark.parametrize("by", ["default", "newton"])
def test_a_function_under_jit_may_read_more_than_what_is_used(by):
    step = jax.jit(lambda z, x: ({"read": 0.5 * z["read"] + x, "not": 0.5 * z["not"] + 1}, ()))
    start = {"read": jnp.ones(3), "not": jnp.ones(3)}

    def loss(scan, start):
        return jnp.sum(scan(step, start, XS[:1])[0]["read"] ** 2)

    scans = SOLVED[by], jax.lax.scan
    assert_agree(*jax.jit(lambda z: [jax.grad(partial(loss, s))(z) for s in scans])(start))
