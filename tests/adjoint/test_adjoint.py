"""Derivatives under every transformation of jax, against those of `jax.lax.scan`."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from tests.problems import PROBLEMS, assert_agree, backpropagate, normal, oracle

COMBINATIONS = {
    "step by step": partial(deeppcr.scan, method="sequential", adjoint="backprop"),
    "newton, pcr": partial(deeppcr.scan, method="newton", adjoint="pcr"),
}
L = 5  # odd: no solver can halve it evenly
ARGUMENTS = normal(0, 3, 3, scale=0.5), normal(1, 3), normal(2, L, 3)


def step(weight, z, x):
    new = jnp.tanh(weight @ z + x)
    return new, new * z


def run(scan, weight, init, xs):
    """The last carry and all ys of a small chain that closes over ``weight``."""
    return scan(partial(step, weight), init, xs)


def loss(scan, weight, init, xs):
    last, ys = run(scan, weight, init, xs)
    return jnp.sum(last**3) + jnp.sum(jnp.sin(ys))


def moved(seed):
    return tuple(normal(seed + i, *a.shape) for i, a in enumerate(ARGUMENTS))


def batch(argument, seed):
    return jnp.stack([argument, normal(seed, *argument.shape, scale=0.5)])


def many(which):
    """The arguments, those in ``which`` twice; and the axes for `jax.vmap`."""
    arguments = [batch(a, 5) if i in which else a for i, a in enumerate(ARGUMENTS)]
    return arguments, [0 if i in which else None for i in range(3)]


def gradient(scan, *arguments):
    return jax.value_and_grad(partial(loss, scan), argnums=(0, 1, 2))(*arguments)


def mapped(which):
    def apply(scan):
        arguments, axes = many(which)
        return jax.vmap(partial(gradient, scan), in_axes=axes)(*arguments)

    return apply


def mapped_tangents(scan):
    arguments, axes = many((0, 2))
    push = jax.vmap(lambda *a: jax.jvp(partial(run, scan), a, moved(3)), in_axes=axes)
    return push(*arguments)


def pushed(scan):
    return jax.jvp(partial(run, scan), ARGUMENTS, moved(3))


def linearized(scan):
    out, push = jax.linearize(partial(run, scan), *ARGUMENTS)
    return out, push(*moved(3)), push(*moved(4))


def gradient_of_gradient(scan):
    def norm(*arguments):
        return sum(jnp.sum(g**2) for g in gradient(scan, *arguments)[1])

    return jax.grad(norm, argnums=(0, 1, 2))(*ARGUMENTS)


def hessian_times_vector(scan):
    return jax.jvp(lambda *a: gradient(scan, *a)[1], ARGUMENTS, moved(3))


def vector_times_hessian(scan):
    def along(*arguments):
        return jax.jvp(partial(loss, scan), arguments, moved(3))[1]

    return jax.grad(along, argnums=(0, 1, 2))(*ARGUMENTS)


def third_order(scan):
    def along(t):
        return loss(scan, ARGUMENTS[0], ARGUMENTS[1] + t, ARGUMENTS[2])

    return jax.jvp(lambda t: jax.jvp(jax.grad(along), (t,), (1.0,)), (0.0,), (1.0,))


def jacobian_backwards(scan):
    return jax.jacrev(partial(run, scan), argnums=(0, 1))(*ARGUMENTS)


def full_hessian(scan):
    return jax.hessian(partial(loss, scan), argnums=1)(*ARGUMENTS)


def checkpointed(scan):
    return jax.value_and_grad(jax.checkpoint(partial(loss, scan)), argnums=(0, 1, 2))(*ARGUMENTS)


def checkpointed_step(scan):
    def value(weight, init, xs):
        return jnp.sum(scan(jax.checkpoint(partial(step, weight)), init, xs)[1] ** 2)

    return jax.value_and_grad(value, argnums=(0, 1, 2))(*ARGUMENTS)


def inside_lax_scan(scan):
    weight, init, xs = ARGUMENTS

    def value(weight, init, xs):
        def body(carry, shift):
            last, ys = run(scan, weight, carry, xs + shift)
            return last, ys.sum()

        last, sums = jax.lax.scan(body, init, jnp.arange(3.0))
        return last.sum() + jnp.sum(sums**2)

    return jax.value_and_grad(value, argnums=(0, 1, 2))(weight, init, xs)


def inside_cond(scan):
    def value(flag, *arguments):
        return jax.lax.cond(
            flag, partial(loss, scan), lambda w, i, x: jnp.sum(w) * jnp.sum(i), *arguments
        )

    grad = jax.grad(value, argnums=(1, 2, 3))
    return [grad(jnp.array(flag), *ARGUMENTS) for flag in (True, False)]


def inside_itself(scan):
    weight, init, xs = ARGUMENTS

    def value(weight, init, xs):
        def outer(carry, x):
            last, ys = scan(
                lambda z, t: (jnp.tanh(weight @ z + t * x + carry), z), carry, jnp.arange(2.0)
            )
            return 0.5 * last, ys

        last, ys = scan(outer, init, xs[:4])
        return last.sum() + jnp.sum(ys**2)

    return jax.value_and_grad(value, argnums=(0, 1, 2))(weight, init, xs)


def inside_while_loop(scan):
    weight, init, xs = ARGUMENTS

    def call(state):
        count, z = state
        return count + 1, run(scan, weight, z, xs)[0]

    return jax.jvp(
        lambda z: jax.lax.while_loop(lambda s: s[0] < 3, call, (0, z))[1], (init,), (init,)
    )


def with_one(argument, x):
    """The arguments, with ``x`` for one of them."""
    return [*ARGUMENTS[:argument], x, *ARGUMENTS[argument + 1 :]]


def cotangents_alone(scan):
    """Of one output alone, by one argument alone."""

    def value(output, argument, x):
        return jnp.sum(jnp.sin(run(scan, *with_one(argument, x))[output]))

    return [
        [jax.grad(partial(value, output, i))(x) for i, x in enumerate(ARGUMENTS)]
        for output in range(2)
    ]


def tangents_alone(scan):
    """Of everything, by one argument alone."""
    return [
        jax.jvp(lambda x, i=i: run(scan, *with_one(i, x)), (x,), (x,))
        for i, x in enumerate(ARGUMENTS)
    ]


TRANSFORMATIONS = {
    "jvp": pushed,
    "linearize": linearized,
    "grad of grad": gradient_of_gradient,
    "jvp of grad": hessian_times_vector,
    "grad of jvp": vector_times_hessian,
    "third order": third_order,
    "jacrev": jacobian_backwards,
    "hessian": full_hessian,
    "vmap over all": mapped((0, 1, 2)),
    "vmap of jvp": mapped_tangents,
    "checkpoint": checkpointed,
    "checkpoint of the step": checkpointed_step,
    "inside lax.scan": inside_lax_scan,
    "inside lax.cond": inside_cond,
    "inside itself": inside_itself,
    "inside lax.while_loop": inside_while_loop,
    "grad of one output by one argument": cotangents_alone,
    "jvp by one argument": tangents_alone,
}


@cache
def expected(name):
    return jax.jit(partial(TRANSFORMATIONS[name], jax.lax.scan))()


def transformed():
    """All by Newton and pcr, but what `tests.drop_in` nests; step by step one of each kind."""
    yield from ((name, "newton, pcr") for name in TRANSFORMATIONS if name != "inside itself")
    for name in (
        "linearize",
        "third order",
        "checkpoint",
        "inside lax.cond",
        "inside itself",
        "inside lax.while_loop",
    ):
        yield name, "step by step"


@pytest.mark.parametrize(("name", "combination"), list(transformed()))
def test_transformations(name, combination):
    actual = jax.jit(partial(TRANSFORMATIONS[name], COMBINATIONS[combination]))()
    assert_agree(actual, expected(name))


def test_gradients_without_jit():
    scan = COMBINATIONS["step by step"]
    assert_agree(gradient(scan, *ARGUMENTS), gradient(jax.lax.scan, *ARGUMENTS))


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_one_leaf_of_xs_is_differentiated_and_the_others_are_data(combination):
    weight, init, xs = ARGUMENTS
    data = {"float": normal(5, L), "int": jnp.arange(L), "bool": jnp.arange(L) % 3 == 0}

    def value(scan, weight, moving):
        def body(z, x):
            moving, data = x
            z = jnp.where(data["bool"], jnp.tanh(weight @ z + data["float"]), z * moving)
            return z, z[data["int"] % 3]

        return scan(body, init, (moving, data))[1].sum()

    grad = jax.grad(value, argnums=(1, 2))
    assert_agree(
        jax.jit(partial(grad, COMBINATIONS[combination]))(weight, xs),
        jax.jit(partial(grad, jax.lax.scan))(weight, xs),
    )


def test_grad_of_integer_xs_is_float0_as_in_lax_scan():
    def value(scan, init, number):
        return scan(lambda z, n: (jnp.sin(z) * n.astype(z.dtype), z), init, number)[0]

    arguments = jnp.array(0.3), jnp.arange(1, 5)
    grads = [
        jax.grad(partial(value, scan), argnums=(0, 1), allow_int=True)(*arguments)
        for scan in (partial(deeppcr.scan, adjoint="backprop"), jax.lax.scan)
    ]
    assert_agree(grads[0][0], grads[1][0])
    assert grads[0][1].dtype == grads[1][1].dtype == jax.dtypes.float0


@pytest.mark.parametrize("combination", ["newton, pcr", "forward"])
def test_numbers_as_tangents(combination):
    """Under jit they come as they are: Python's, numpy's, or weakly typed."""
    layers = [lambda z: jnp.tanh(0.5 * z)] * 4

    def by_all(scan, init, weight, xs):
        if combination == "forward":
            method = {} if scan is jax.lax.scan else {"method": "newton", "adjoint": "pcr"}
            return deeppcr.forward(layers, init, **method) if method else by_loop(init)
        return scan(lambda z, x: (jnp.tanh(weight * z) + x, z * x), init, xs)

    def by_loop(z):
        for layer in layers:
            z = layer(z)
        return z

    def pushed(scan, init, weight, xs):
        by_number = jax.jvp(partial(by_all, scan, weight=weight, xs=xs), (init,), (1.0,))
        by_weight = jax.jvp(lambda w: by_all(scan, init, w, xs), (weight,), (np.float64(2.0),))
        weak = jax.jvp(
            lambda w, x: by_all(scan, init, w, x), (weight, xs), (jnp.asarray(3.0), np.ones(L))
        )
        twice = jax.jvp(
            lambda z: jax.jvp(partial(by_all, scan, weight=weight, xs=xs), (z,), (1.0,))[1],
            (init,),
            (1.0,),
        )
        return by_number, by_weight, weak, twice

    ours = COMBINATIONS.get(combination, COMBINATIONS["newton, pcr"])
    arguments = jnp.array(0.3), jnp.array(0.8), normal(0, L)
    assert_agree(
        jax.jit(partial(pushed, ours))(*arguments),
        jax.jit(partial(pushed, jax.lax.scan))(*arguments),
    )


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_captured_integers_and_keys_are_data(combination):
    table, key = jnp.arange(4), jax.random.key(3)

    def value(scan, init, xs):
        def body(z, x):
            return z * jax.random.uniform(key, (3,), z.dtype) + table[1:].astype(z.dtype), jnp.sin(
                z * x
            )

        return scan(body, init, xs)[1].sum()

    grad = jax.grad(value, argnums=(1, 2))
    scans = COMBINATIONS[combination], jax.lax.scan
    actual, wanted = (jax.jit(partial(grad, scan))(*ARGUMENTS[1:]) for scan in scans)
    assert_agree(actual, wanted)


@pytest.mark.parametrize(("name", "length"), [("gru", 12), ("batch norm", 13)])
def test_a_sequential_adjoint_in_several_chunks(monkeypatch, name, length):
    problem = PROBLEMS[name]
    monkeypatch.setattr("deeppcr.adjoint.jacobian.CHUNK", 3 * 8 * 9 * 4)
    scan = partial(deeppcr.scan, adjoint=deeppcr.Recurrence(), batch_ndim=problem.batch_ndim)
    weight, init, xs = problem.params, problem.init, problem.xs[:length]

    def both(scan, weight, init, xs):
        def whole(*arguments):
            return problem(scan, *arguments)

        out, pull = jax.vjp(whole, weight, init, xs)
        pushed = jax.jvp(whole, (weight, init, xs), (weight, init, xs))
        return pushed, pull(jax.tree.map(jnp.ones_like, out))

    actual, wanted = (jax.jit(partial(both, s))(weight, init, xs) for s in (scan, jax.lax.scan))
    assert_agree(actual, wanted)


@pytest.mark.parametrize("adjoint", ["sequential", "pcr"])
def test_one_example_that_is_nan_does_not_harm_the_others(adjoint):
    weight, xs = ARGUMENTS[0], ARGUMENTS[2]
    init = jnp.stack([normal(0, 3), jnp.full(3, jnp.nan), normal(1, 3)])

    def value(scan, init):
        def body(z, x):
            new = jnp.tanh(z @ weight + jnp.broadcast_to(x, z.shape))
            return new, new * z

        return jnp.sum(scan(body, init, xs)[1] ** 2, axis=(0, 2))

    def grads(scan):
        return jax.jit(jax.grad(lambda init: value(scan, init)[jnp.array([0, 2])].sum()))(init)

    actual = grads(partial(deeppcr.scan, method="newton", adjoint=adjoint, batch_ndim=1))
    wanted = grads(jax.lax.scan)
    assert_agree(actual[jnp.array([0, 2])], wanted[jnp.array([0, 2])])


def test_statistics_have_no_derivative():
    chain = deeppcr.Chain(lambda z, x: jnp.sin(z + x), normal(0, L))

    def value(z0):
        solution = deeppcr.solve(chain, z0, method="newton")
        return solution.value + solution.stats.residual

    assert_agree(
        jax.grad(value)(jnp.array(0.3)),
        jax.grad(lambda z: deeppcr.solve(chain, z, adjoint="autodiff").value)(jnp.array(0.3)),
    )


def test_float32():
    problem = PROBLEMS["lstm"].astype(jnp.float32)
    scan = partial(deeppcr.scan, method="newton", adjoint="pcr", batch_ndim=problem.batch_ndim)
    assert_agree(backpropagate(problem, scan), oracle(problem), 2e-5)


@pytest.mark.usefixtures("_nothing_older")
def test_no_tracer_leaks():
    with jax.checking_leaks():
        for scan in COMBINATIONS.values():
            jax.jit(partial(gradient, scan))(*ARGUMENTS)


def test_autodiff_is_lax_scan_itself():
    scan = partial(deeppcr.scan, adjoint="autodiff")
    ours, theirs = (str(jax.make_jaxpr(partial(run, s))(*ARGUMENTS)) for s in (scan, jax.lax.scan))
    assert ours == theirs
