"""A chain over devices inside of jax's transformations gives what it gives on one device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import deeppcr
from deeppcr import Chain, Newton, Sharded
from tests.problems import assert_agree, normal
from tests.sharding.meshes import DEVICES, P, lies_along, mesh, placed, put, run, states

L = 2 * DEVICES
WEIGHT = normal(0, 3, 3, scale=0.5)
XS = normal(1, L, 3)
Z0 = normal(2, 3)
SHARDED = Sharded(mesh(), "chain")
NEWTON = Newton(linear=SHARDED)


def f(weight, z, x):
    z = jnp.tanh(weight @ z + x)
    return z, z * x


def loss(scan, z0, weight, xs):
    last, ys = scan(partial(f, weight), z0, xs)
    return jnp.sin(last).sum() + (ys**2).sum()


ours = partial(deeppcr.scan, method=NEWTON)


def both(make, *arguments):
    """What a transformation of the loss gives by `scan` over devices, and by `jax.lax.scan`."""
    assert_agree(
        run(make(partial(loss, ours)), *arguments),
        run(make(partial(loss, jax.lax.scan)), *arguments),
    )


ARGUMENTS = (Z0, WEIGHT, XS)
SEVERAL = (normal(3, 2, 3), WEIGHT, normal(4, 2, L, 3))


def hessian_times(f):
    def product(*at):
        return jax.jvp(jax.grad(f, argnums=(0, 1, 2)), at, tuple(map(jnp.cos, at)))[1]

    return product


def looped(f):
    def descend(z0, weight, xs):
        def descent(z, _):
            value, g = jax.value_and_grad(f)(z, weight, xs)
            return z - 0.1 * g, value

        return jax.lax.scan(descent, z0, length=2)

    return descend


TRANSFORMATIONS = {
    "hessian times vector": (hessian_times, ARGUMENTS),
    "vmap of grad in scan": (lambda f: jax.vmap(looped(f), in_axes=(0, None, 0)), SEVERAL),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_inside_of(name):
    make, arguments = TRANSFORMATIONS[name]
    both(make, *arguments)


def test_constraints_inside_of_a_program_are_respected():
    along, whole = (NamedSharding(mesh(), spec) for spec in (P("chain"), P()))

    def program(z0, xs):
        xs = jax.lax.with_sharding_constraint(xs, along)
        solution = deeppcr.solve(Chain(lambda z, x: f(WEIGHT, z, x)[0], xs), z0, method=NEWTON)
        kept = jax.lax.with_sharding_constraint(2 * solution.trajectory, along)
        gathered = jax.lax.with_sharding_constraint(solution.trajectory, whole)
        return kept, gathered

    kept, gathered = run(program, Z0, XS)
    expected = run(states, Chain(lambda z, x: f(WEIGHT, z, x)[0], XS), Z0)[1]
    assert_agree((kept, gathered), (2 * expected, expected))
    assert lies_along(kept, "chain")
    assert gathered.sharding.is_fully_replicated


def test_a_chain_after_a_chain():
    """What one chain leaves along the axis, the next one takes as its inputs."""

    def program(scan, z0, xs):
        _, ys = scan(partial(f, WEIGHT), z0, xs)
        last, _ = scan(partial(f, WEIGHT.T), z0, ys)
        return (last**2).sum()

    found = run(jax.value_and_grad(partial(program, ours), argnums=(0, 1)), Z0, put(XS, "chain"))
    assert_agree(
        found, run(jax.value_and_grad(partial(program, jax.lax.scan), argnums=(0, 1)), Z0, XS)
    )
    assert lies_along(found[1][1], "chain")


def test_random_numbers_do_not_depend_on_the_devices():
    """Keys are inputs, one a step: dropout is the same wherever a step is."""

    def step(z, key):
        kept = jax.random.bernoulli(key, 0.8, z.shape)
        return jnp.tanh(WEIGHT @ jnp.where(kept, z / 0.8, jnp.zeros_like(z)) + 1)

    chain = Chain(step, jax.random.split(jax.random.key(1), 13))
    found = run(partial(deeppcr.solve, method="newton"), placed(chain, mesh(chain=4, data=2)), Z0)
    assert_agree(found.trajectory, run(states, chain, Z0)[1])


def test_the_answer_does_not_depend_on_how_many_devices_there_are():
    chain = Chain(lambda z, x: f(WEIGHT, z, x)[0], XS)
    expected = run(states, chain, Z0)[1]
    found = run(partial(deeppcr.solve, method="newton"), placed(chain, mesh(chain=5)), Z0)
    assert_agree(found.trajectory, expected)
    assert {shard.device.id for shard in found.trajectory.addressable_shards} == set(range(5))


def test_called_twice_a_program_is_compiled_once():
    calls = []

    def step(z, x):
        calls.append(1)
        return f(WEIGHT, z, x)[0]

    solve = jax.jit(partial(deeppcr.solve, method="newton"))
    first = jax.block_until_ready(solve(placed(Chain(step, XS)), Z0))
    count = len(calls)
    second = jax.block_until_ready(solve(placed(Chain(step, XS)), Z0))
    assert len(calls) == count
    np.testing.assert_array_equal(first.trajectory, second.trajectory)
