"""A plan of a step that takes its inputs from the last one on, as `deeppcr.scan` does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr._instance import instances_of
from tests.plan.chains import CHAINS

XS = np.arange(6.0)


def step(z, x):
    return jnp.tanh(z + x), z


def test_the_last_input_comes_first():
    _, (found,) = instances_of(step, jnp.ones(()), {"x": XS}, None, True, None)
    np.testing.assert_array_equal(found.chain.inputs["x"], XS[::-1])
    shapes = jax.ShapeDtypeStruct(XS.shape, XS.dtype)
    there, back = (
        deeppcr.plan(step, jnp.ones(()), shapes, reverse=reverse, device="H100")
        for reverse in (False, True)
    )
    assert str(there) == str(back)


def test_chains_have_an_order():
    with pytest.raises(TypeError, match="reverse was given, but program is a Chain"):
        deeppcr.plan(*CHAINS["gru"], reverse=True)
