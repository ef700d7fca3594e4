"""`DeviceAxis`: on four devices every operation along the chain gives what it gives on one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr.axis import ChainAxis
from deeppcr.sharding import DeviceAxis
from tests.problems import normal
from tests.sharding.meshes import DEVICES, P, mesh

LENGTH = 3 * DEVICES
STATES, ENTRY = normal(0, LENGTH, 2), normal(1, 2)
AXES = {"forwards": (False, False), "backwards": (True, False), "descending": (False, True)}


def along(axis, states, flags):
    """By name, arrays along the chain; and what is the same on all devices."""
    mine = {
        "before": axis.before(ENTRY, states),
        "first": axis.set_first(states, ENTRY),
        "index": axis.index(len(states)),
        "largest so far": axis.cummax(states),
        "sum so far": axis.cumsum(states),
        "sum so far, of columns": axis.cumsum(states.T, axis=1).T,
        "states": axis.scan(lambda z, x: (jnp.sin(z + x),) * 2, ENTRY, states)[1],
    }
    found = axis.survey([jnp.abs(states)], [flags, jnp.ones_like(flags)])
    return mine, {"survey": found, "last": axis.last(states), "total": axis.total(len(states))}


@pytest.mark.parametrize("direction", AXES)
def test_every_operation(direction):
    backwards, descending = AXES[direction]
    axis = DeviceAxis(backwards, mesh(), "chain", descending)
    flags = (STATES[2, 0] if backwards else STATES[8, 1]) != STATES  # false once, in one shard

    def placed(x):
        """The shards in the order of the devices, and back."""
        shards = x.reshape((DEVICES, -1, *x.shape[1:]))
        return (shards[::-1] if descending else shards).reshape(x.shape)

    ours = jax.shard_map(
        partial(along, axis),
        mesh=mesh(),
        in_specs=P("chain"),
        out_specs=(P("chain"), P()),
        check_vma=False,
    )
    found, shared = jax.jit(ours)(placed(STATES), placed(flags))
    expected, of_all = jax.jit(partial(along, ChainAxis(backwards)))(STATES, flags)
    for name, each in expected.items():
        np.testing.assert_allclose(placed(found[name]), each, rtol=1e-12, err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, shared, of_all)
    assert 0 < of_all["survey"][1][0] < LENGTH
