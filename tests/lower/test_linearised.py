"""Backpropagation that linearises all steps at once: jax's gradients, and a lean loop."""

import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr.lower.steps import Loop
from deeppcr.lower.variants import CPU
from depth.jaxprs import equations
from tests.problems import assert_agree, normal, rounding

one_function = importlib.import_module("deeppcr.lower.cpu.one_function")  # a function, too
L, N, BATCH = 7, 3, 2
Z, W, XS = normal(0, BATCH, N), normal(1, N, N, scale=0.5), normal(2, L, BATCH, N)
OWN = normal(3, L, N, N, scale=0.5)
COUNTS, KEYS = jax.device_put(np.arange(L) % 3), jax.random.split(jax.random.key(0), L)


def gated(w, z, x):
    gate = jax.nn.sigmoid(z @ w + x)
    return gate * z + (1 - gate) * jnp.tanh((gate * z) @ w.T)


def branches(w, z, x):
    count, x = x
    return jax.lax.switch(count, [jnp.tanh, jnp.sin, lambda z: z @ w], z @ w + x)


def dropout(w, z, x):
    key, x = x
    return jnp.where(jax.random.bernoulli(key, 0.7, z.shape), jnp.tanh(z @ w), 0) + x


@jax.custom_jvp
def bent(z):
    return jnp.tanh(z)


bent.defjvp(lambda primals, tangents: (bent(*primals), 0.5 * tangents[0]))


def half(w, z, x):
    return jnp.tanh(z.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(z.dtype) + x


STEPS = {
    "captured weights": (gated, XS),
    "weights of their own": (lambda w, z, x: jnp.tanh(z @ x + z @ w.T), OWN),
    "branches": (branches, (COUNTS, XS)),
    "keys": (dropout, (KEYS, XS)),
    "custom_jvp": (lambda w, z, x: bent(z @ w) + x, XS),
    "bfloat16": (half, XS),
}


@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_lax_scan(name):
    step, xs = STEPS[name]

    def loss(scan, w, z, x):
        def body(z, t):
            new = step(w, z, merge(x, t)).astype(z.dtype)
            return new, new.sum(-1)

        last, ys = scan(body, z, jnp.arange(L))
        return jnp.sum(jnp.sin(ys)) + jnp.sum(last**2)

    def merge(moving, index):
        rest = iter(moving)
        leaves = [x if not is_float(x) else next(rest) for x in jax.tree.leaves(xs)]
        return jax.tree.unflatten(jax.tree.structure(xs), [x[index] for x in leaves])

    def ours(f, z, xs):
        return deeppcr.scan(f, z, xs, method="sequential", adjoint="backprop", batch_ndim=1)

    moving = [x for x in jax.tree.leaves(xs) if is_float(x)]

    def both(w, z, x):
        return [jax.grad(loss, (1, 2, 3))(scan, w, z, x) for scan in (ours, jax.lax.scan)]

    assert_agree(
        *jax.jit(both)(W, Z, moving), rounding(jnp.bfloat16, 4) if name == "bfloat16" else 1e-9
    )


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def test_only_the_linear_part_is_in_the_loop(monkeypatch):
    found, scan = {}, Loop.scan

    def recorded(loop, operands, *others):
        found[loop.kind.linear] = {each.primitive.name for each in equations(loop.program)}
        return scan(loop, operands, *others)

    def loss(z, xs):
        scan = partial(deeppcr.scan, method="sequential", adjoint="backprop", batch_ndim=1)
        return jnp.sum(scan(lambda z, x: (gated(W, z, x), None), z, xs)[0] ** 2)

    monkeypatch.setattr(Loop, "scan", recorded)
    monkeypatch.setattr(one_function, "is_hoisted", lambda: False)
    jax.jit(jax.grad(loss)).trace(Z, XS).lower(lowering_platforms=("cpu",))
    assert "mul" in found[True]
    assert not found[True] & {"tanh", "logistic", "exp", "transpose"}


@pytest.mark.parametrize("length", [0, 1])
def test_short_chains(length):
    def ours(f, z, xs):
        return deeppcr.scan(f, z, xs, method="sequential", adjoint="backprop", batch_ndim=1)

    def loss(scan, w, z, xs):
        return jnp.sum(scan(lambda z, x: (gated(w, z, x), z), z, xs)[0] ** 2)

    def both(w, z, xs):
        return [jax.grad(loss, (1, 2, 3))(scan, w, z, xs) for scan in (ours, jax.lax.scan)]

    assert_agree(*jax.jit(both)(W, Z, XS[:length]))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="only CPUs linearise all steps at once")
def test_memory_is_bounded_where_a_step_has_a_loop_inside():
    trips, length = 200, 2000

    def step(z, x):
        return jax.lax.scan(lambda z, _: (jnp.sin(z + x), None), z, length=trips)[0], None

    def loss(z, xs):
        states = deeppcr.scan(step, z, xs, method="sequential", adjoint="backprop")[0]
        return jnp.sum(states**2)

    shapes = jax.ShapeDtypeStruct((N,), "float64"), jax.ShapeDtypeStruct((length, N), "float64")
    found = jax.jit(jax.grad(loss, 1)).lower(*shapes).compile().memory_analysis()
    assert (
        found.temp_size_in_bytes < 4 * CPU.cache
    )  # not as if a step were one trip: 200 times as many
