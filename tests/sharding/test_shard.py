"""How a chain is said to be sharded, how its results are, and what is said of wrong axes."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr import Chain, Newton, Sharded
from deeppcr.sharding import shard
from tests.problems import assert_agree, normal
from tests.sharding.meshes import DEVICES, lies_along, mesh, placed, put, run, states

L = 2 * DEVICES
WEIGHT = normal(0, 3, 3, scale=0.5)
XS = {"x": normal(1, L, 3), "number": jnp.arange(L) % 3}
Z0 = normal(2, 3)
CHAIN = Chain(lambda z, x: jnp.tanh(WEIGHT @ z + x["x"]) + WEIGHT[x["number"]], XS)


EXPLICIT = mesh("explicit")


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
    assert placed(chain, EXPLICIT).inputs["x"].sharding.is_fully_replicated


def test_wrong_axes():
    with pytest.raises(ValueError, match="axis is 'layers', and the mesh has the axes 'chain'"):
        shard(CHAIN, mesh(), "layers")
    with pytest.raises(TypeError, match="mesh is 8, expected a jax"):
        shard(CHAIN, 8)
    with pytest.raises(TypeError, match=r"chain is list.*, expected a deeppcr"):
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
