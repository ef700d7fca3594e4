"""`scan` over devices against `jax.lax.scan` on one: values and gradients, all kinds of chains."""

from functools import partial

import pytest

import deeppcr
from deeppcr import Newton, Sharded
from tests.problems import PROBLEMS, L, assert_agree, backpropagate, oracle
from tests.sharding.meshes import DEVICES, mesh, run

BY = Sharded(mesh(), "chain")
VARIANTS = {
    "custom vjp": {"method": Newton(linear=Sharded(mesh(), "chain", "cyclic_reduction"))},
    "odd": {"method": "sequential", "adjoint": BY},
    "batch norm": {"method": Newton(linear=BY), "batch_ndim": 1},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_devices_that_cannot_share_evenly(name):
    assert L % DEVICES
    scan = partial(deeppcr.scan, **VARIANTS[name])
    assert_agree(run(lambda: backpropagate(PROBLEMS[name], scan)), oracle(PROBLEMS[name]))
