"""A mesh of two axes: the chain along one, the batch along the other; or one of the two."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp

import deeppcr
from deeppcr import Anderson, Chain, Newton, Sharded, TrustRegion
from tests.problems import assert_agree, normal
from tests.sharding.meshes import lies_along, mesh, put, run, states

L, BATCH, W = 8, 4, 3
XS = (normal(0, L, W, W, scale=0.4), normal(1, L, W))
Z0 = normal(2, BATCH, W)
GAIN = jnp.array(0.7)


def chain_of(xs, gain):
    def step(z, x):
        weight, bias = x
        return 0.5 * z + gain * jnp.tanh(z @ weight + jnp.broadcast_to(bias, z.shape))

    return Chain(step, xs)


def gradients(solve, z0, xs, gain):
    def loss(z0, xs, gain):
        value, trajectory = solve(chain_of(xs, gain), z0)
        return value.sum() + (trajectory**2).sum(), (value, trajectory)

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(z0, xs, gain)


def ours(method="newton", adjoint="auto"):
    def solve(chain, z0):
        solution = deeppcr.solve(chain, z0, method=method, adjoint=adjoint, batch_ndim=1)
        return solution.value, solution.trajectory

    return partial(gradients, solve)


@cache
def expected():
    return run(partial(gradients, states), Z0, XS, GAIN)


def assert_lies_on_both(found):
    (_, (value, trajectory)), (by_initial, by_inputs, _) = found
    assert lies_along(trajectory, "chain", "data")
    assert lies_along(value, "data")
    assert lies_along(by_initial, "data")
    assert all(lies_along(g, "chain") for g in by_inputs)


grid = partial(mesh, chain=4, data=2)
by_axis = Sharded(grid(), "chain")


def test_chain_and_batch():
    options = {"linearize": "zero", "acceleration": Anderson(2), "damping": TrustRegion()}
    method = Newton(linear=by_axis, **options)
    found = run(ours(method), put(Z0, "data", on=grid()), put(XS, "chain", on=grid()), GAIN)
    assert_agree(found, expected())
    assert_lies_on_both(found)


def test_chain_and_batch_of_explicit_axes():
    on = grid("explicit")
    found = run(ours(), put(Z0, "data", on=on), put(XS, "chain", on=on), GAIN)
    assert_agree(found, expected())
    assert_lies_on_both(found)


def test_a_sequential_chain_over_devices_keeps_the_batch():
    found = run(
        ours("sequential", by_axis), put(Z0, "data", on=grid()), put(XS, "chain", on=grid()), GAIN
    )
    assert_agree(found, expected())


def test_a_chain_of_a_length_that_devices_cannot_share():
    xs = jax.tree.map(lambda x: x[:7], XS)
    solve = partial(deeppcr.solve, method=Newton(linear=by_axis), batch_ndim=1)
    there = chain_of(xs, GAIN)
    found = run(
        solve, dataclasses.replace(there, inputs=put(xs, on=grid())), put(Z0, "data", on=grid())
    )
    assert_agree((found.value, found.trajectory), run(states, there, Z0))


def test_examples_alone():
    """A mesh on which no chain lies is none of the solver's business."""
    on = mesh("explicit", data=4)
    found = run(ours("newton", "pcr"), put(Z0, "data", on=on), put(XS, on=on), GAIN)
    assert_agree(found, expected())
    (_, (value, trajectory)), (by_initial, _, _) = found
    assert lies_along(trajectory, None, "data")
    assert lies_along(value, "data")
    assert lies_along(by_initial, "data")


def test_parameters_that_lie_along_the_other_axis():
    """Tensor parallelism inside the step is jax's own, along an axis free of the chain."""
    on = grid()
    wide = (normal(3, L, 4, 4, scale=0.4), normal(4, L, 4))
    z0 = normal(5, BATCH, 4)
    xs = (put(wide[0], "chain", None, "data", on=on), put(wide[1], "chain", "data", on=on))
    found = run(ours(Newton(linear=by_axis)), put(z0, None, "data", on=on), xs, GAIN)
    assert_agree(found, run(partial(gradients, states), z0, wide, GAIN))
