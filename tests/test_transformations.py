"""Every transformation of jax of one small chain, by every kind of method, as `jax.lax.scan`."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import deeppcr
from deeppcr import Adjoint, Newton, Scalar
from tests.problems import assert_agree, normal

L, B, W = 5, 3, 3  # odd: no solver can halve the chain evenly
WAYS = {
    "auto": {},
    "backprop": {"method": "sequential", "adjoint": "backprop"},
    "blocks": {"method": "sequential", "adjoint": "sequential"},
    "pcr": {"method": "sequential", "adjoint": "pcr"},
    "autodiff": {"method": "sequential", "adjoint": "autodiff"},
    "newton, pcr": {"method": "newton", "adjoint": "pcr"},
    "newton, blocks": {"method": "newton", "adjoint": "sequential"},
    "quasi-Newton": {"method": Newton(linearize="diagonal"), "adjoint": Adjoint()},
    "of a window": {"method": Newton(window=4)},
    "Picard": {"method": Newton(linearize=Scalar(0.3))},
    "diagonal": {"method": "sequential", "adjoint": Adjoint("diagonal", "sequential")},
    "zero": {"method": "sequential", "adjoint": Adjoint("zero", "prefix_scan")},
    "finished": {"adjoint": Adjoint("diagonal", "sequential", max_iterations=1)},
}
ARGUMENTS = normal(0, W, W, scale=0.5), normal(1, W), normal(2, L, W)
MANY = normal(3, B, W, W, scale=0.5), normal(4, B, W), normal(5, B, L, W)


def run(scan, weight, init, xs):
    """The last state and all outputs of a chain with a counter, and a branch by it."""

    def step(carry, x):
        z, count = carry
        new = lax.cond(count % 2 == 0, jnp.tanh, jnp.sin, weight @ z + x)
        return (new, count + 1), (new * z, count)

    (last, _), (ys, counts) = scan(step, (init, 0), xs)
    return last, ys * (1 + counts[:, None])


def loss(scan, *arguments):
    last, ys = run(scan, *arguments)
    return jnp.sum(last**3) + jnp.sum(jnp.sin(ys))


def gradient(scan, *arguments):
    return jax.grad(partial(loss, scan), (0, 1, 2))(*arguments)


def linearize(scan):
    out, push = jax.linearize(partial(run, scan), *ARGUMENTS)
    return out, push(*(x[0] for x in MANY))


def grad_of_grad(scan):
    def norm(*arguments):
        return sum(jnp.sum(g**2) for g in gradient(scan, *arguments))

    return jax.grad(norm, (0, 1, 2))(*ARGUMENTS)


def grad_of_jvp(scan):
    def along(*arguments):
        return jax.jvp(partial(loss, scan), arguments, tuple(x[0] for x in MANY))[1]

    return jax.grad(along, (0, 1, 2))(*ARGUMENTS)


def third_order(scan):
    def along(t):
        return loss(scan, ARGUMENTS[0], ARGUMENTS[1] + t, ARGUMENTS[2])

    return jax.jvp(lambda t: jax.jvp(jax.grad(along), (t,), (1.0,)), (0.0,), (1.0,))


def jacrev(scan):
    return jax.jacrev(partial(run, scan), argnums=(0, 1))(*ARGUMENTS)


def hessian(scan):
    return jax.hessian(lambda z: loss(scan, ARGUMENTS[0], z, ARGUMENTS[2]))(ARGUMENTS[1])


def in_scan_and_cond(scan):
    def value(weight, init, xs):
        def body(carry, shift):
            last, ys = lax.cond(
                shift < 1.5,
                partial(run, scan),
                lambda w, z, x: (w @ z, jnp.sin(x)),
                *(weight, carry, xs + shift),
            )
            return last, ys.sum()

        last, sums = lax.scan(body, init, jnp.arange(3.0))
        return last.sum() + jnp.sum(sums**2)

    return jax.value_and_grad(value, (0, 1, 2))(*ARGUMENTS)


def in_while_loop(scan):
    weight, init, xs = ARGUMENTS

    def call(state):
        return state[0] + 1, run(scan, weight, state[1], xs)[0]

    return jax.jvp(lambda z: lax.while_loop(lambda s: s[0] < 3, call, (0, z))[1], (init,), (init,))


def alone(scan):
    """Of one output alone, by one argument alone."""

    def value(k, x):
        arguments = [*ARGUMENTS[:k], x, *ARGUMENTS[k + 1 :]]
        return jnp.sum(jnp.sin(run(scan, *arguments)[k % 2]))

    return [jax.grad(partial(value, k))(x) for k, x in enumerate(ARGUMENTS)]


def mapped(*which):
    """Over some of the arguments: values, and gradients of each example."""

    def transformed(scan):
        arguments = [MANY[k] if k in which else x for k, x in enumerate(ARGUMENTS)]
        axes = [0 if k in which else None for k in range(3)]
        both = (partial(run, scan), partial(gradient, scan))
        return [jax.vmap(f, axes)(*arguments) for f in both]

    transformed.__name__ = f"vmap {which}"
    return transformed


def grad_of_vmap_of_checkpoint_of_jit(scan):
    """Weights by rows of a grid, states by columns."""
    one = jax.checkpoint(jax.jit(partial(loss, scan)))
    grid = jax.vmap(jax.vmap(one, (None, 0, None)), (0, None, None))

    def value(*arguments):
        return jnp.sin(grid(*arguments)).sum()

    return jax.value_and_grad(value, (0, 1, 2))(*MANY[:2], ARGUMENTS[2])


def of_a_named_axis_of_two(scan):
    """The examples of the inner axis are apart, those of the outer one meet in every step."""

    def one(w, z0, xs):
        def step(z, x):
            z = jnp.tanh(w @ z + x + 0.3 * lax.pmean(z, "outer"))
            return z, z * lax.axis_index("outer").astype(z.dtype)

        return scan(step, z0, xs)

    def value(w):
        inner = jax.vmap(partial(one, w), (None, 0), axis_name="inner")
        last, ys = jax.vmap(inner, (0, None), axis_name="outer")(MANY[1][:2], MANY[2])
        return jnp.sum(last) + jnp.sum(ys**2), (last, ys)

    return jax.value_and_grad(value, has_aux=True)(ARGUMENTS[0])


def beside_what_does_not_differ(scan):
    """Leaves of the carry that all examples share, and a mean over the examples."""

    def one(z, rate):
        def step(carry, x):
            z, rate, mean = carry
            z = jnp.tanh(ARGUMENTS[0] @ z + rate * x)
            mean = 0.9 * mean + 0.1 * lax.pmean(z, "examples")
            return (z, 0.9 * rate, mean), (z.sum(), rate, mean)

        return scan(step, (z, rate, jnp.zeros(W)), ARGUMENTS[2])

    def value(zs, rate):
        out = (0, None, None), (0, None, None)
        found = jax.vmap(one, (0, None), out, axis_name="examples")(zs, rate)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(found)), found

    return jax.value_and_grad(value, (0, 1), has_aux=True)(MANY[1], jnp.float64(0.5))


def linear_transpose(scan):
    """Of a chain that is linear in its inputs."""

    def linear(xs):
        return jax.vmap(lambda x: scan(lambda z, x: (0.5 * z + x, z), jnp.zeros(W), x)[1])(xs)

    return jax.linear_transpose(linear, MANY[2])(MANY[2])


CASES = {
    linearize: ("newton, pcr", "quasi-Newton", "zero"),
    grad_of_grad: ("pcr", "diagonal"),
    grad_of_jvp: ("blocks",),
    third_order: ("backprop",),
    jacrev: ("pcr",),
    hessian: ("auto",),
    in_scan_and_cond: ("newton, blocks",),
    in_while_loop: ("pcr",),
    alone: ("blocks",),
    mapped(0): ("of a window", "finished"),
    mapped(2): ("Picard",),
    mapped(0, 1, 2): ("autodiff",),
    grad_of_vmap_of_checkpoint_of_jit: ("newton, pcr",),
    of_a_named_axis_of_two: ("newton, blocks",),
    beside_what_does_not_differ: ("newton, blocks",),
    linear_transpose: ("backprop",),
}


@cache
def expected(transformation):
    return jax.jit(partial(transformation, lax.scan))()


@pytest.mark.parametrize(
    ("transformation", "way"),
    [(f, way) for f, ways in CASES.items() for way in ways],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_transformations(transformation, way):
    ours = jax.jit(partial(transformation, partial(deeppcr.scan, **WAYS[way])))
    assert_agree(ours(), expected(transformation))


def test_every_way_is_tried():
    assert {way for ways in CASES.values() for way in ways} == set(WAYS)


def test_without_jit():
    with jax.disable_jit():
        actual, right = (run(f, *ARGUMENTS[:2], ARGUMENTS[2][:1]) for f in (deeppcr.scan, lax.scan))
    assert_agree(actual, right)
