"""Derivatives of derivatives, also where parts of the linear systems do not move."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from tests.problems import assert_agree, normal

START, WEIGHT = (normal(0, 2), normal(1, 1)), normal(2, 2, 2, scale=0.5)


@jax.custom_vjp
def halved(z):
    """A sine, with half of its gradient: a linear rule."""
    return jnp.sin(z)


halved.defvjp(lambda z: (jnp.sin(z), jnp.cos(z)), lambda cosine, g: (cosine * g / 2,))


def run(scan, sine, weight, start, xs):
    """A loss can read parts of this: of the last carry, and of all steps."""

    def step(z, x):
        long, short = z
        new = jnp.tanh(weight @ long + x), sine(short + long[:1])
        return new, long * new[0]

    last, ys = scan(step, start, xs)
    return last[0], ys


def of_the_pullback(scan, sine):
    """A pullback's derivatives, its transposes, and derivatives by its cotangents alone."""
    primals = WEIGHT, START, normal(3, 4, 2)
    f = partial(run, scan, sine)
    out, pull = jax.vjp(f, *primals)
    moved = jax.tree.map(jnp.cos, out)
    gradients, push = jax.vjp(pull, moved)
    again = jax.linear_transpose(jax.linear_transpose(pull, moved), gradients)

    def penalty(readout):
        """The size of the gradient by the start."""
        of = jax.grad(lambda start: f(primals[0], start, primals[2])[0] @ readout)(START)
        return sum((leaf**2).sum() for leaf in of)

    by_readout = jax.grad(penalty)
    return {
        "pullback": [push(gradients), jax.jvp(pull, (moved,), (out,))],
        "transposed twice": again((moved,))[0],
        "penalty": by_readout(START[0]),
        "penalties": jax.vmap(by_readout)(primals[2]),
        "derivative of that": jax.grad(lambda r: (by_readout(r) ** 2).sum())(START[0]),
    }


@pytest.mark.parametrize("sine", [jnp.sin, halved], ids=["plain", "with a rule"])
def test_a_gradient_is_a_linear_map_of_its_cotangents(sine):
    right = jax.jit(partial(of_the_pullback, jax.lax.scan, sine))()
    scan = partial(deeppcr.scan, adjoint="sequential" if sine is jnp.sin else "backprop")
    assert_agree(jax.jit(partial(of_the_pullback, scan, sine))(), right)
