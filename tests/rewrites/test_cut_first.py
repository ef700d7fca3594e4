"""Slices of what is computed elementwise are computed from slices."""

import jax
import jax.numpy as jnp
import pytest

from deeppcr.rewrites.cut_first import Order, apply, evaluate
from depth.jaxprs import entered, equations
from tests.problems import assert_agree, normal

X, Y = normal(0, 2, 6), normal(1, 2, 6)


def cuts(z):
    return jnp.split(z, 3, axis=1)


def a_sum_of_sums(x, y):
    return cuts((x + y) + jnp.sin(x))


def often_used(x, y):
    for _ in range(40):
        x = x * y + x  # each twice: a program of 2^40 operations if every slice was of its own
    return [*cuts(jnp.tanh(x)), x[:, 1:3]]


def whole_as_well(x, y):
    z = x * y
    return [*cuts(jnp.exp(z)), z]


def windows(x, y):
    z = jnp.exp(x)
    return [z[:, i : i + 3] for i in range(4)], z[:1]


def scaled(x, y):
    return cuts(jnp.where(x > 0, 2.0 * x, jnp.clip(y, -1.0, 1.0)))


def products(x, y):
    batched = jnp.einsum("bik,bkj->bij", jnp.stack([x, y]), jnp.stack([y.T, x.T]))
    outer = jnp.tensordot(x, y, 0)
    return batched[1:, :, :1], outer[:, 3:5, 1:, ::2], *jnp.split(x @ y.T, 2, axis=1)


def overlapping(x, y):
    z = x @ y.T
    return z[:, :1], z[:1], z[1:]


@pytest.mark.parametrize(("f", "pieces"), [(products, [2, 2, 2, 12]), (overlapping, [4])])
def test_products_in_pieces(f, pieces):
    closed = jax.make_jaxpr(f)(X, Y)
    program, known = entered(closed, [X, Y])
    order = Order.of(program, known, program.outvars, lambda product, piece: True)

    def divided():
        return evaluate(program, known, program.outvars, None, order)

    found = jax.make_jaxpr(divided)()
    sizes = [e.outvars[0].aval.size for e in equations(found.jaxpr) if "dot" in e.primitive.name]
    assert sorted(sizes) == pieces
    assert_agree(jax.jit(divided)(), list(f(X, Y)))


@pytest.mark.parametrize("f", [a_sum_of_sums, often_used, whole_as_well, windows, scaled])
def test_results_are_the_same(f):
    closed = jax.make_jaxpr(f)(X, Y)
    found = jax.jit(lambda *operands: apply(closed, operands))(X, Y)
    assert_agree(found, jax.tree.leaves(f(X, Y)))


def whole(x, y):
    return x[:, 4:] * y[:, :2], x[:, :2] + x[:, :2], x[:, 2:4]


def with_a_gap(x, y):
    return x[:, 4:] * y[:, :2], x[:, :2]


def with_an_overlap(x, y):
    return x[:, :3] * y[:, 3:], x[:, 2:]


@pytest.mark.parametrize(("f", "joined"), [(whole, 1), (with_a_gap, 0), (with_an_overlap, 0)])
def test_slices_that_make_up_an_array_are_concatenated_backwards(f, joined):
    closed = jax.make_jaxpr(f)(X, Y)

    def slope(g, x):
        return jax.grad(lambda x: sum((y**2).sum() for y in jax.tree.leaves(g(x, Y))))(x)

    def ours(*operands):
        return apply(closed, operands)

    assert_agree(*jax.jit(lambda x: (slope(ours, x), slope(f, x)))(X))
    found = equations(jax.make_jaxpr(lambda x: slope(ours, x))(X).jaxpr)
    assert sum(each.primitive.name == "concatenate" for each in found) == joined


@pytest.mark.parametrize(
    ("f", "wide"), [(a_sum_of_sums, 0), (often_used, 0), (whole_as_well, 1), (windows, 1)]
)
def test_only_slices_are_computed(f, wide):
    closed = jax.make_jaxpr(f)(X, Y)
    found = jax.make_jaxpr(lambda *operands: apply(closed, operands))(X, Y)
    computed = [e for e in equations(found.jaxpr) if e.primitive.name not in ("slice", "split")]
    assert sum(e.outvars[0].aval.shape == X.shape for e in computed) == wide
    assert len(computed) < 400
