"""Loops that a CPU runs as one function: jax's own gradient of them is chosen."""

import jax.numpy as jnp
import pytest

import deeppcr
from deeppcr._plan.candidates import is_whole
from depth import devices
from depth.device import generic_cpu
from tests.plan.chains import like


def plan_of(width, device):
    chain, z0 = like(width, step=lambda z, x: jnp.maximum(0.5 * z + x, 0))
    return deeppcr.plan(chain, z0, device=device)


def test_the_gradient_of_a_narrow_loop_is_jaxs():
    plan = plan_of(1, generic_cpu(2))
    assert plan.adjoint == "autodiff"
    assert "each of its loops is one function" in str(plan)


def test_that_of_a_wider_loop_is_not():
    plan = plan_of(64, generic_cpu(2))
    assert plan.adjoint != "autodiff"
    assert "one function" not in str(plan)


@pytest.mark.parametrize("device", ["H100", "TPU v5e"])
def test_other_devices_have_no_such_loops(device):
    assert not is_whole(plan_of(1, device).main.autodiff, devices[device])
