"""Under `jax.disable_jit` values and derivatives are those of the sequential programs."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

import deeppcr
from deeppcr import Newton
from deeppcr.lower import compiled_for
from tests.problems import assert_agree, normal

N, L = 2, 3
W, XS, Z0 = normal(0, N, N, scale=0.4), normal(1, L, N), normal(2, N)


def of_scan(scan, w, xs):
    def step(z, x):
        z = jnp.tanh(w @ z + x)
        return z, z

    return scan(step, Z0, xs)


def by_solve(step, init, xs, **options):
    found = deeppcr.solve(deeppcr.Chain(lambda z, x: step(z, x)[0], xs), init, **options)
    return jnp.where(found.converged, found.value, jnp.nan), found.trajectory


def of_layers(apply, w, xs):
    return apply([jax.tree_util.Partial(layer, w * (k + 1) / 2, x) for k, x in enumerate(xs)], Z0)


def layer(w, b, x):
    return jnp.tanh(w @ x + b)


def one_by_one(layers, x):
    for each in layers:
        x = each(x)
    return x


def of_map(solve, w, xs):
    return solve(lambda y: jnp.tanh((jnp.cumsum(y, 0) - y) @ w + xs), jnp.zeros_like(xs))


def entries(step, y):
    for k in range(len(y)):
        y = y.at[k].set(step(y)[k])
    return y


def of_blocks(solve, w, xs):
    return solve(jnp.stack([w * (k + 1) / 2 for k in range(L)]), xs)


def recurrence(blocks, b):
    return lax.scan(lambda y, x: (x[0] @ y + x[1],) * 2, jnp.zeros(N), (blocks, b))[1]


CELL = nnx.split(nnx.SimpleCell(N, N, dtype=float, param_dtype=float, rngs=nnx.Rngs(0)))


def of_cell(cls, w, xs):
    graph, state = CELL
    cell = nnx.merge(graph, jax.tree.map(jnp.asarray, state))
    cell.dense_h.kernel = nnx.Param(w)
    return cls(cell)(xs)


scan, forward, bidiagonal = deeppcr.scan, deeppcr.forward, deeppcr.solve_bidiagonal
CASES = {  # a program, by ours, by the sequential one
    "scan": (of_scan, scan, lax.scan),
    "scan, pcr": (of_scan, partial(scan, method="newton", adjoint="pcr"), lax.scan),
    "scan, recurrence": (of_scan, partial(scan, adjoint=deeppcr.Recurrence()), lax.scan),
    "solve": (of_scan, by_solve, lax.scan),
    "solve, in windows": (
        of_scan,
        partial(by_solve, method=Newton(window=2, linearize="diagonal"), adjoint="sequential"),
        lax.scan,
    ),
    "forward": (of_layers, forward, one_by_one),
    "a stack": (of_layers, lambda layers, x: deeppcr.stack(layers)(x), one_by_one),
    "unstack": (
        of_layers,
        lambda f, x: one_by_one(deeppcr.unstack(deeppcr.stack(f)), x),
        one_by_one,
    ),
    "triangular": (of_map, lambda f, y: deeppcr.triangular(f, y).value, entries),
    "solve_bidiagonal": (of_blocks, bidiagonal, recurrence),
    "solve_bidiagonal, prefix scan": (
        of_blocks,
        partial(bidiagonal, solver="prefix_scan"),
        recurrence,
    ),
    "RNN": (of_cell, deeppcr.nn.RNN, nnx.RNN),
}


def gradient(f):
    return jax.value_and_grad(
        lambda *a: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(f(*a))), (0, 1)
    )(W, XS)


def of_examples(f):
    """Their tangents."""
    many = jax.vmap(f, (None, 0))
    xss = jnp.stack([XS, 2 * XS])
    return jax.jvp(many, (W, xss), (jnp.cos(W), jnp.sin(xss)))


@cache
def expected(transformation, program, sequential):
    return jax.jit(lambda: transformation(partial(program, sequential)))()


@pytest.mark.parametrize("transformation", [gradient, of_examples])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_sequential_program(name, transformation):
    program, ours, sequential = CASES[name]
    right = expected(transformation, program, sequential)
    with jax.disable_jit():
        found = transformation(partial(program, ours))
    assert_agree(found, right)


FUSED = partial(scan, method=deeppcr.Sequential(fused=True))


def test_a_kernel_for_gpus():
    arrays = [x.astype(jnp.float32) for x in (W, XS, Z0)]

    def run(scan):
        w, xs, z0 = arrays
        return scan(lambda z, x: (jnp.tanh(w @ z + x),) * 2, z0, xs)

    right = jax.jit(lambda: run(lax.scan))()
    with compiled_for("cuda"):
        assert "kernel=fused_scan" in str(jax.make_jaxpr(lambda: run(FUSED))())
        with jax.disable_jit():
            assert_agree(run(FUSED), right, 1e-6)
