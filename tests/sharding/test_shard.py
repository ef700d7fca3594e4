"""How a chain is said to be sharded, how its results are, and what is said of wrong axes."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import deeppcr
from deeppcr import Adjoint, Chain, Newton, Sharded
from deeppcr.sharding import shard
from tests.problems import assert_agree, normal
from tests.sharding.meshes import DEVICES, lies_along, mesh, placed, put, run, states, wait

L = 2 * DEVICES
WEIGHT = normal(0, 3, 3, scale=0.5)
XS = {"x": normal(1, L, 3), "number": jnp.arange(L) % 3}
Z0 = normal(2, 3)
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x["x"]) + WEIGHT[x["number"]], XS)
SHARDED = Sharded(mesh(), "chain")


def gradients(solve, z0, xs):
    """Of value and trajectory: by initial state, inputs, and an array that the step closes over."""

    def loss(z0, x, weight):
        chain = Chain(
            lambda z, x: jnp.tanh(weight @ z + x["x"]) + weight[x["number"]], {**xs, "x": x}
        )
        value, trajectory = solve(chain, z0)
        return value[0] + (trajectory**2).sum(), (value, trajectory)

    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(z0, xs["x"], WEIGHT)


def ours(put_there=lambda chain: chain, **options):
    def solve(chain, z0):
        solution = deeppcr.solve(put_there(chain), z0, **options)
        return solution.value, solution.trajectory

    return partial(gradients, solve)


@cache
def expected():
    return run(partial(gradients, states), Z0, XS)


EXPLICIT = mesh("explicit")


SAID = {
    "by the adjoint": (run, ours(method="sequential", adjoint=SHARDED), XS),
    "by shard": (
        run,
        ours(partial(shard, mesh=mesh()), method="newton", adjoint=Adjoint(linearize="diagonal")),
        XS,
    ),
    "by the inputs, eagerly": (wait, ours(method="newton"), put(XS, "chain")),
}


@pytest.mark.parametrize("name", SAID)
def test_gradients_come_out_where_the_chain_is(name):
    call, differentiate, xs = SAID[name]
    found = call(differentiate, Z0, xs)
    assert_agree(found, expected())
    (_, (value, trajectory)), (by_initial, by_inputs, by_weight) = found
    assert lies_along(trajectory, "chain")
    assert lies_along(by_inputs, "chain")
    for x in (value, by_initial, by_weight):
        assert x.sharding.is_fully_replicated


def test_a_placed_chain_goes_in_and_out_of_jit():
    chain = placed(CHAIN, EXPLICIT)
    assert lies_along(chain.inputs["x"], "chain")
    assert lies_along(chain.inputs["number"], "chain")
    assert run(lambda chain: chain, chain).sharding == chain.sharding
    found = run(partial(deeppcr.solve, method="newton"), chain, Z0)
    assert_agree((found.value, found.trajectory), run(states, CHAIN, Z0))
    assert lies_along(found.trajectory, "chain")


def test_a_length_that_devices_cannot_share_is_on_all_of_them():
    chain = Chain(CHAIN.step, jax.tree.map(lambda x: x[:7], XS))
    there = placed(chain, EXPLICIT)
    assert there.inputs["x"].sharding.is_fully_replicated
    found = run(partial(deeppcr.solve, method="newton"), there, Z0)
    assert_agree((found.value, found.trajectory), run(states, chain, Z0))


def test_layers():
    params = [(normal(i, 3, 3, scale=0.5), normal(50 + i, 3)) for i in range(L)]

    def layer(z, params):
        return z + jnp.tanh(z @ params[0] + params[1])

    layers = [jax.tree_util.Partial(lambda params, z: layer(z, params), one) for one in params]
    expected = layer(Z0, params[0])
    for one in params[1:]:
        expected = layer(expected, one)
    chain = Chain.from_layers(layers, Z0)
    assert_agree(run(partial(deeppcr.forward, method=Newton(linear=SHARDED)), layers, Z0), expected)
    assert_agree(run(partial(deeppcr.forward, method="sequential"), placed(chain), Z0), expected)


def test_it_is_described(capsys):
    assert "devices" not in str(deeppcr.plan(CHAIN, Z0))
    chain = placed(Chain(CHAIN.step, jax.tree.map(lambda x: x[:7], XS)))
    assert "devices     4 along 'chain', up to 2 steps on each" in str(deeppcr.plan(chain, Z0))
    said = deeppcr.plan(
        CHAIN, Z0, method=Newton(linear=Sharded(mesh(data=2, chain=4), ("data", "chain")))
    )
    assert "devices     8 along" in str(said)
    jax.debug.visualize_array_sharding(placed(CHAIN).inputs["x"])
    drawn = capsys.readouterr().out
    assert all(f"CPU {device}" in drawn for device in range(DEVICES))


def test_wrong_axes():
    with pytest.raises(ValueError, match="axis is 'layers', and the mesh has the axes 'chain'"):
        shard(CHAIN, mesh(), "layers")
    with pytest.raises(TypeError, match="mesh is 8, expected a jax"):
        shard(CHAIN, 8)
    with pytest.raises(TypeError, match="list, expected"):
        shard([jnp.tanh], mesh())


def test_several_axes():
    grid = mesh(chain=4, data=2)
    xs = {"x": put(XS["x"], "chain", on=grid), "number": put(XS["number"], "data", on=grid)}
    with pytest.raises(ValueError, match=r"several mesh axes, \['chain', 'data'\]"):
        deeppcr.solve(Chain(CHAIN.step, xs), Z0, method="newton")
    with pytest.raises(ValueError, match="several mesh axes"):
        run(
            partial(deeppcr.solve, method=Newton(linear=Sharded(grid, "data"))),
            placed(CHAIN, grid),
            Z0,
        )
    with pytest.raises(ValueError, match="several mesh axes"):
        run(
            partial(deeppcr.solve, method="newton", adjoint=Sharded(grid, "data")),
            placed(CHAIN, grid),
            Z0,
        )


def test_devices_of_two_kinds_are_jaxs_own_error():
    few = Mesh(np.array(jax.devices()[:2]), ("chain",))
    with pytest.raises(ValueError, match="incompatible devices"):
        run(partial(deeppcr.solve, method="newton"), placed(CHAIN), put(Z0, on=few))
    chain = Chain(
        CHAIN.step, {"x": put(XS["x"], "chain"), "number": put(XS["number"], "chain", on=few)}
    )
    with pytest.raises(ValueError, match="devices"):
        wait(partial(deeppcr.solve, method="newton"), chain, Z0)
