"""Several processes, each with devices of its own, train a chain that lies over all of them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 120
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
count, rank, port = map(int, sys.argv[1:])
jax.config.update("jax_num_cpu_devices", 4 // count)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", count, rank, initialization_timeout=60)
import deeppcr

mesh = jax.make_mesh((4,), ("chain",), axis_types=(jax.sharding.AxisType.Auto,))
draw = np.random.default_rng(0).normal
weights = 0.3 * draw(size=(16, 4, 4)).astype(np.float32)
z = draw(size=(8, 4)).astype(np.float32)
chain = deeppcr.sharding.shard(deeppcr.Chain(lambda z, w: z + jnp.tanh(z @ w), weights), mesh)
adjoint = deeppcr.Sharded(mesh, "chain")

def loss(weights, z):
    filled = deeppcr.Chain(chain.step, weights, sharding=chain.sharding)
    value = deeppcr.solve(filled, z, method="newton", adjoint=adjoint, batch_ndim=1).value
    return jnp.square(value).mean()

def step(weights, z):
    value, slopes = jax.value_and_grad(loss)(weights, z)
    return value, weights - 0.1 * slopes

places = NamedSharding(mesh, P()), NamedSharding(mesh, P("chain"))
step, weights, losses = jax.jit(step, out_shardings=places), chain.inputs, []
for _ in range(3):
    value, weights = jax.block_until_ready(step(weights, jax.device_put(z, places[0])))
    losses.append(float(value))
print(json.dumps(losses))
"""


def losses(count: int) -> list[float]:
    """Of so many processes that share 4 devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    around = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    around.pop("JAX_NUM_CPU_DEVICES", None)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, (count, rank, port))],
            env=around,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        found = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()  # SIGKILL: under jax.distributed they ignore SIGTERM
            process.wait()
    assert not any(process.returncode for process in processes), found[0][1][-2000:]
    first, *others = (json.loads(out.splitlines()[-1]) for out, _ in found)
    assert all(other == first for other in others)
    return first


def alone() -> list[float]:
    """By `jax.lax.scan`."""
    draw = np.random.default_rng(0).normal
    weights = 0.3 * draw(size=(16, 4, 4)).astype(np.float32)
    z0 = draw(size=(8, 4)).astype(np.float32)

    def loss(weights: jax.Array) -> jax.Array:
        last, _ = jax.lax.scan(lambda z, w: (z + jnp.tanh(z @ w), None), z0, weights)
        return jnp.square(last).mean()

    def step(weights: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        value, slopes = jax.value_and_grad(loss)(weights)
        return weights - jnp.float32(0.1) * slopes, value

    found: list[float] = jax.lax.scan(step, weights, length=3)[1].tolist()
    return found


def test_several_processes_train_as_the_sequential_program_does() -> None:
    assert losses(2) == pytest.approx(alone(), rel=1e-5)
