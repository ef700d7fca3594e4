"""Gradients of arrays: no sums over axes of size 1, no transposed and no tiny products are left."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from deeppcr.lower import each as each_of
from deeppcr.lower.cpu.products import plain_gradients as by_the_rule
from depth.jaxprs import equations
from tests.problems import assert_agree, normal, rounding

L, BATCH, WIDTH = 32, 3, 4
A, B = normal(0, L, BATCH, WIDTH), normal(1, L, BATCH, WIDTH)
ODD = normal(2, L, 1, WIDTH)


def product(contracted, along=((), ())):
    return lambda a, b: lax.dot_general(a, b, (contracted, along))


each = product(((1,), (1,)), ((0,), (0,)))  # [L, n, m]: of every step
plain = product(((2,), (2,)), ((0,), (0,)))  # [L, batch, batch]

# name: (function of two arrays [L, BATCH, WIDTH], primitive that is rewritten, whether it stays)
PRODUCTS = {
    "a batch of sums of outer products": (each, "dot_general", False),
    "transposed": (lambda a, b: jnp.swapaxes(each(a, b), 1, 2), "dot_general", False),
    "in a call": (lambda a, b: jax.jit(each)(a, b), "dot_general", False),
    "one sum over all steps": (product(((0, 1), (0, 1))), "dot_general", True),
    "two terms": (lambda a, b: each(a[:, :2], b[:, :2]), "dot_general", True),
    "integers": (lambda a, b: each((9 * a).astype(int), (9 * b).astype(int)), "dot_general", True),
    "of a product": (lambda a, b: (a[0] @ b[0].T).T, "transpose", False),
    "of one in a call": (
        lambda a, b: 2 * jax.jit(lambda a, b: plain(a, b).transpose(0, 2, 1))(a, b),
        "transpose",
        False,
    ),
    "read twice": (lambda a, b: (lambda y: (y.T, y))(a[0] @ b[0].T), "transpose", True),
    "moves the axis of a batch": (lambda a, b: plain(a, b).transpose(2, 1, 0), "transpose", True),
    "of a sum": (lambda a, b: (a[0] + b[0]).T, "transpose", True),
}


def plain_gradients(f):
    """``f``, as a CPU runs it."""

    def run(*arguments):
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        return jax.tree.unflatten(jax.tree.structure(shapes), by_the_rule(closed, arguments))

    return run


def count(name, f, *arguments):
    found = equations(jax.make_jaxpr(f)(*arguments))
    return sum(each.primitive.name == name for each in found)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    f, primitive, stays = PRODUCTS[name]
    arguments = (A, B) if primitive == "dot_general" else (A[:8], B[:8])
    before, after = (count(primitive, g, *arguments) for g in (f, plain_gradients(f)))
    assert after == before if stays else after < before
    assert_agree(*jax.jit(lambda *given: (plain_gradients(f)(*given), f(*given)))(*arguments))


SUMS = {
    "one axis": lambda x: x.sum(0),
    "none left over": lambda x: x.sum(),
    "over the axis of size 1": lambda x: x.sum(1),
    "of a call": lambda x: jax.jit(lambda y: jax.jit(lambda z: 2 * z.sum(0))(y) + 1)(x),
    "several results": lambda x: {"a": x.sum(0), "b": (x + 1, x.sum((0, 2)))},
}


def odd_sums(f, *arguments):
    """How many sums keep an axis of size 1."""
    sums = (
        each
        for each in equations(jax.make_jaxpr(f)(*arguments))
        if each.primitive.name == "reduce_sum"
    )
    left = ((each.invars[0].aval.shape, each.params["axes"]) for each in sums)
    return sum(any(n == 1 for k, n in enumerate(shape) if k not in axes) for shape, axes in left)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_sums(dtype):
    x = ODD.astype(dtype)
    for f in SUMS.values():
        assert not odd_sums(plain_gradients(f), x)
    found = jax.jit(lambda x: [[g(x) for g in (plain_gradients(f), f)] for f in SUMS.values()])(x)
    for ours, theirs in found:
        assert_agree(ours, theirs, rounding(dtype, L))
    assert odd_sums(SUMS["one axis"], x)


def test_each_platform_lowers_them_in_its_own_way():
    traced = jax.jit(each_of(each)).trace(A, B)
    for platform, stays in (("cuda", True), ("cpu", False), ("tpu", True)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert ("dot_general" in text) == stays, platform


@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_gradients_of_weights_of_their_own(batch):
    z, weights = normal(3, *batch, WIDTH), normal(4, L, WIDTH, WIDTH)

    def loss(weights, scan, **options):
        return jnp.sum(scan(lambda z, w: (jnp.tanh(z @ w), None), z, weights, **options)[0] ** 2)

    ours = partial(deeppcr.scan, adjoint="backprop", batch_ndim=len(batch))
    program = jax.jit(jax.grad(lambda w: loss(w, ours))).lower(weights)
    moved = [line for line in program.as_text().splitlines() if "stablehlo.transpose" in line]
    assert not any(f"-> tensor<{L}x{WIDTH}x{WIDTH}xf64>" in line for line in moved)
    theirs = jax.jit(jax.grad(lambda w: loss(w, lax.scan)))
    assert_agree(program.compile()(weights), theirs(weights))
