"""Evaluations of a window spread over devices: the same answer, a share of the steps on each."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding

import deeppcr
from deeppcr import Chain, Newton, Scalar
from deeppcr.diffusion import Schedule, sample
from tests.problems import assert_agree, normal
from tests.sharding.meshes import (
    EXAMPLES,
    SIMULATED,
    WEIGHT,
    XS,
    Z0,
    P,
    expected,
    gradients,
    mesh,
    placed,
    put,
    run,
    states,
)
from tests.sharding.meshes import LENGTH as L
from tests.sharding.meshes import WIDTH as W
from tests.sharding.test_resources import messages

CHAIN = Chain(lambda z, x: z + 0.1 * jnp.tanh(WEIGHT @ z + x), XS)


@cache
def over(kind="auto", **axes):
    """Steps over the first axis of a mesh; of all devices if no axes are given."""
    on = mesh(kind, **(axes or {"devices": SIMULATED}))
    return NamedSharding(on, P(on.axis_names[0]))


OPTIONS = {
    "uneven shares": {"linearize": "dense", "window": 11, "jacobian_every": 2},
    "numbers by step": {"linearize": Scalar(jnp.linspace(0.5, 1, L)), "window": 5},
    "all steps": {"linearize": "diagonal"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_answer(name):
    options = OPTIONS[name]
    there, *here = (
        run(partial(deeppcr.solve, method=Newton(**options, **more)), CHAIN, Z0)
        for more in ({"sharding": over()}, {})[: 1 + ("jacobian_every" in options)]
    )
    assert_agree((there.value, there.trajectory), run(states, CHAIN, Z0))
    assert there.converged
    assert all(there.stats.iterations == one.stats.iterations for one in here)
    assert there.trajectory.sharding.is_fully_replicated


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_batch_over_another_axis_and_derivatives(kind):
    """By initial states, inputs, and what the step captures, which is on the mesh."""
    along = over(kind, devices=4, data=2)
    batch = put(EXAMPLES, "data", on=along.mesh)
    xs, weight = (put(x, on=along.mesh) for x in (XS, WEIGHT))

    newton = Newton(window=6, sharding=along)
    together = partial(deeppcr.scan, method=newton, batch_ndim=1)
    assert_agree(run(partial(gradients, together), batch, xs, weight), expected())


def test_a_sampler():
    schedule = Schedule.from_config({"_class_name": "DDPMScheduler"})
    x_T, weight = normal(4, 2, W), normal(5, W, W)

    def gradient(x_T, weight, **options):
        def loss(x_T, weight):
            found = sample(
                lambda x, t, weight: jnp.tanh(x @ weight),
                schedule,
                x_T,
                steps=L,
                args=(weight,),
                key=jax.random.key(0),
                **options,
            )
            return jnp.square(found.value).sum(), found.value

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x_T, weight)

    right = run(partial(gradient, method="sequential"), x_T, weight)
    options = {"method": "picard", "window": SIMULATED, "sharding": over()}
    assert_agree(run(partial(gradient, **options), x_T, weight), right)


# What it costs


def compiled_solve(length, window):
    weight = normal(3, 24, 24, scale=0.1).astype(jnp.float32)
    newton = Newton("identity", window=window, sharding=over(), on_failure="return")
    chain = Chain(lambda z, x: z + jnp.tanh(z @ weight + x), jnp.zeros((length, 24), jnp.float32))
    solve = jax.jit(lambda chain, z0: deeppcr.solve(chain, z0, method=newton).trajectory)
    return solve.lower(chain, jnp.zeros(24, jnp.float32)).compile()


def test_each_device_evaluates_its_share_and_sends_it():
    program = compiled_solve(100, 2 * SIMULATED)
    products = re.findall(r"= f32\[(\d+),24\]\S* dot\(", program.as_text())
    # The first trajectory, its residuals, and each iteration.
    assert products == ["2", "2", "2"]
    assert messages(program) == [("all-gather", 4 * 2 * SIMULATED * 24)] * 3


BAD = {
    "a spec": (P("devices"), TypeError, "sharding is .*expected a jax.sharding.NamedSharding"),
    "no axis": (NamedSharding(mesh(), P()), ValueError, "expected one that shards axis 0"),
    "two axes": (NamedSharding(mesh(), P(None, "chain")), ValueError, "and no other axis"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shardings_are_named(name):
    sharding, error, message = BAD[name]
    with pytest.raises(error, match=message):
        Newton(sharding=sharding)


def test_a_chain_that_is_sharded_itself_is_named():
    with pytest.raises(ValueError, match="the chain itself is sharded over 4 devices"):
        deeppcr.solve(placed(CHAIN), Z0, method=Newton(sharding=over()))
