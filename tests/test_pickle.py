"""What is data can be pickled and copied, and prints the same afterwards."""

import copy
import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from deeppcr import Chain, Newton

XS = jnp.linspace(0.0, 1.0, 24).reshape(8, 3)
COPIES = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def step(z, x):
    return jnp.tanh(z + x)


def layer(weight, x):
    return jnp.tanh(weight @ x)


LAYERS = [(layer, jax.device_put(k * np.eye(3))) for k in range(4)]
METHODS = [
    deeppcr.Sequential(unroll=4),
    Newton(),
    Newton(
        linearize=deeppcr.BlockDiagonal(3),
        linear=deeppcr.PrefixScan(),
        damping=deeppcr.TrustRegion(),
    ),
    Newton(acceleration=deeppcr.Anderson(), initial_guess=deeppcr.Coarse(3, step=step)),
    deeppcr.Adjoint(linear="pcr"),
]
MADE = {
    "plan": lambda: deeppcr.plan(Chain(step, XS), jnp.zeros(3)),
    "plan for another device": lambda: deeppcr.plan(Chain(step, XS), jnp.zeros(3), device="H200"),
    "solution": lambda: deeppcr.solve(Chain(step, XS), jnp.zeros(3), method=Newton(record=True)),
    "layers found": lambda: deeppcr.layers.describe(LAYERS, jnp.ones(3)),
    "schedule": lambda: deeppcr.diffusion.Schedule("DDIMScheduler", (("num_train_timesteps", 10),)),
    "methods": lambda: METHODS,
}


@cache
def make(name):
    return MADE[name]()


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", MADE)
def test_what_is_data_can_be_pickled_and_copied(name, how):
    made = make(name)
    again = COPIES[how](made)
    assert str(again) == str(made)
    assert repr(again) == repr(made)


def test_layers_that_were_stacked_and_pickled():
    stack = pickle.loads(pickle.dumps(deeppcr.stack(LAYERS)))
    assert jnp.array_equal(stack(jnp.ones(3)), deeppcr.forward(LAYERS, jnp.ones(3)))
    chain = pickle.loads(pickle.dumps(Chain(step, XS)))
    assert jnp.array_equal(jax.vmap(chain.step)(XS, chain.inputs), jax.vmap(step)(XS, XS))
