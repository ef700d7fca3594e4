"""The multi-layer perceptron of jax's tutorial, 784 - n - n - n - 10, trained with its batch and its layers over devices."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.sharding_rows.measured import Case, mesh_of

STEPS = 30
RATE = 0.01

# Megatron's order: a layer cut by columns, then one cut by rows, with one sum over the devices after both.
REPLICATED = [(P(), P())] * 4
TENSOR = [(P(), P()), (P(None, "model"), P("model")), (P("model", None), P()), (P(), P())]


def parameters(width: int) -> list[tuple[Any, Any]]:
    """Weights and biases of the four layers, on the host."""
    draw = np.random.default_rng(0).normal
    sizes = [784, width, width, width, 10]
    return [
        ((draw(size=(n, m)) / n**0.5).astype(np.float32), np.zeros(m, np.float32))
        for n, m in pairwise(sizes)
    ]


def data(batch: int) -> tuple[Any, Any]:
    """Random inputs and targets."""
    draw = np.random.default_rng(1).normal
    return draw(size=(batch, 784)).astype(np.float32), draw(size=(batch, 10)).astype(np.float32)


def loss(layers: list[tuple[Array, Array]], x: Array, targets: Array) -> Array:
    """The mean square error."""
    *hidden, (last, bias) = layers
    for weights, shift in hidden:
        x = jax.nn.relu(x @ weights + shift[None])
    return jnp.square(x @ last + bias[None] - targets).mean()


def train(layers: Any, batch: tuple[Array, Array]) -> tuple[Array, Any]:
    """30 steps of gradient descent: the loss before each, and what has been learned."""

    def step(layers: Any, _: None) -> tuple[Any, Array]:
        value, slopes = jax.value_and_grad(loss)(layers, *batch)
        return jax.tree.map(lambda p, g: p - RATE * g, layers, slopes), value

    layers, losses = lax.scan(step, layers, None, STEPS)
    return losses, layers


def cases(width: int, batch: int) -> Iterator[Case]:
    """8-way data-parallel, and 4-way over the batch times 2-way over the layers' units."""
    yield _case(f"MLP {width}, batch 8-way", mesh_of((8,), ("batch",)), REPLICATED, width, batch)
    yield _case(
        f"MLP {width}, batch 4 x tensor 2",
        mesh_of((4, 2), ("batch", "model")),
        TENSOR,
        width,
        batch,
    )


def _case(name: str, mesh: Mesh, specs: Any, width: int, batch: int) -> Case:
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P)
    )
    layers = jax.device_put(parameters(width), shardings)
    examples = jax.device_put(data(batch), NamedSharding(mesh, P("batch")))
    program = jax.jit(train, out_shardings=(NamedSharding(mesh, P()), shardings))
    return Case(
        name,
        program,
        (layers, examples),
        alone=train,
        loss=lambda result: float(result[0][-1]),
        parameters=0,
        turns=STEPS,
        # Rounding moves a unit across the kink of its relu now and then: in float32 some weights differ by 1e-3 of the largest,
        # in float64 by 1e-15.
        compared=lambda result: result[0],
    )
