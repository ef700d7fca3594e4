"""A deep stack of layers and its training step, over devices by its chain and by its batch."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import deeppcr
from deeppcr.sharding import place
from experiments.sharding_rows.measured import Case, mesh_of, put

Weights = dict[str, Any]
Loss = Callable[[Any, Array, Array], Array]
HORIZON = 4.0  # what all layers add up to: as layers get more, each does less
RATE = 0.1


@dataclasses.dataclass(frozen=True)
class Size:
    """How deep, how wide, how many examples."""

    length: int
    width: int
    batch: int


def weights(size: Size) -> Weights:
    """Weights of all layers ``[L, w, w]`` and biases ``[L, w]``, on the host: every process draws the same."""
    draw = np.random.default_rng(0).normal
    matrices = draw(size=(size.length, size.width, size.width)) / size.width**0.5
    return {"w": matrices.astype(np.float32), "b": 0.1 * draw(size=(size.length, size.width)).astype(np.float32)}


def examples(size: Size) -> tuple[Any, Any]:
    """Inputs and targets, each ``[batch, w]``, on the host."""
    draw = np.random.default_rng(1).normal
    shape = (size.batch, size.width)
    return draw(size=shape).astype(np.float32), draw(size=shape).astype(np.float32)


def layer_of(size: Size) -> Callable[[Array, Any], Array]:
    """A residual layer: ``z + h tanh(z w + b)``."""
    h = HORIZON / size.length
    return lambda z, p: z + h * jnp.tanh(z @ p["w"] + p["b"][None])


def sequential_loss(size: Size) -> Loss:
    """By `jax.lax.scan`."""
    layer = layer_of(size)

    def loss(weights: Any, z: Array, targets: Array) -> Array:
        last, _ = lax.scan(lambda z, p: (layer(z, p), None), z, weights)
        return jnp.square(last - targets).mean()

    return loss


def chain_loss(chain: deeppcr.Chain, **options: Any) -> Loss:
    """By deeppcr: ``chain`` says where its steps are, and ``options`` how it is solved."""

    def loss(weights: Any, z: Array, targets: Array) -> Array:
        solution = deeppcr.solve(dataclasses.replace(chain, inputs=weights), z, batch_ndim=1, **options)
        return jnp.square(solution.value - targets).mean()

    return loss


def training_step(loss: Loss) -> Callable[..., Any]:
    """A step of gradient descent: ``(weights, (z, targets)) -> (loss, weights)``."""

    def step(weights: Any, batch: tuple[Array, Array]) -> tuple[Array, Any]:
        value, slopes = jax.value_and_grad(loss)(weights, *batch)
        return value, jax.tree.map(lambda p, g: p - RATE * g, weights, slopes)

    return step


def placed(size: Size, mesh: Mesh) -> tuple[deeppcr.Chain, Any]:
    """The chain along the axis "chain" of a mesh, and the examples along "batch", if it has one."""
    chain = place(deeppcr.Chain(layer_of(size), weights(size)), mesh)
    return chain, put(examples(size), mesh, *(["batch"] if "batch" in mesh.axis_names else []))


def parallel_step(chain: deeppcr.Chain, mesh: Mesh, method: Any = "newton") -> Callable[..., Any]:
    """A training step over the devices; its weights stay where they are."""
    step = training_step(chain_loss(chain, method=method, adjoint=deeppcr.Sharded(mesh, "chain")))
    along = {name: NamedSharding(mesh, P("chain")) for name in ("w", "b")}
    return jax.jit(step, out_shardings=(NamedSharding(mesh, P()), along))


def cases(size: Size) -> Iterator[Case]:
    """Over 8 devices by its batch, by its chain, and by 4 x 2 of both."""
    alone = training_step(sequential_loss(size))
    name = f"{size.length} layers of {size.width}"

    def case(label: str, program: Callable[..., Any], arguments: tuple[Any, ...]) -> Case:
        return Case(f"{name}, {label}", program, arguments, alone, loss=lambda found: float(found[0]), parameters=0)

    over = mesh_of((8,), ("batch",))
    yield case("batch 8-way, lax.scan", alone, (put(weights(size), over), put(examples(size), over, "batch")))
    for sizes, names in (((8,), ("chain",)), ((4, 2), ("chain", "batch"))):
        mesh = mesh_of(sizes, names)
        chain, batch = placed(size, mesh)
        for method in ("newton", "sequential"):
            where = " x ".join(f"{axis} {count}" for axis, count in zip(names, sizes, strict=True))
            where = where if len(sizes) > 1 else f"{where}-way"
            yield case(f"{where}, {method}", parallel_step(chain, mesh, method), (chain.inputs, batch))
