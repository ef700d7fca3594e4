"""`scan` over devices against `jax.lax.scan` on one: values and gradients, all kinds of chains."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Newton, Sharded
from tests.problems import PROBLEMS, L, assert_agree, backpropagate, oracle
from tests.sharding.meshes import DEVICES, mesh, run

SHARDED = Sharded(mesh(), "chain")
VARIANTS = {
    "newton": (Newton(linear=SHARDED), "auto"),
    "newton, step by step": (
        Newton(linear=Sharded(mesh(), "chain", "cyclic_reduction")),
        "sequential",
    ),
    "step by step, blocks": ("sequential", SHARDED),
    "auto": ("auto", SHARDED),
}


def as_long_as(problem, length):
    """The same with more steps, whose inputs are those of the first ones again."""
    if problem.xs is None:
        return dataclasses.replace(problem, length=length)
    xs = jax.tree.map(lambda x: of_twice(x, length), problem.xs)
    return dataclasses.replace(problem, xs=xs)


def of_twice(x, length):
    """Without a program for each shape; keys are no arrays of numpy."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jnp.concatenate([x, x])[:length]
    return jax.device_put(np.concatenate([x, x])[:length])


TABLE = [("scalar", "auto"), ("batch norm", "newton")]
UNEVEN = [("custom vjp", "newton, step by step"), ("odd", "step by step, blocks")]


def assert_right(problem, variant):
    method, adjoint = VARIANTS[variant]
    scan = partial(deeppcr.scan, method=method, adjoint=adjoint, batch_ndim=problem.batch_ndim)
    assert_agree(run(lambda: backpropagate(problem, scan)), oracle(problem))


@pytest.mark.parametrize(("name", "variant"), TABLE, ids=str)
def test_agrees_with_lax_scan(name, variant):
    assert_right(as_long_as(PROBLEMS[name], 2 * DEVICES), variant)


@pytest.mark.parametrize(("name", "variant"), UNEVEN, ids=str)
def test_devices_that_cannot_share_evenly(name, variant):
    assert L % DEVICES
    assert_right(PROBLEMS[name], variant)
