"""A deep stack of layers and its training step, with chain and batch over devices."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import deeppcr
from deeppcr.sharding import shard
from experiments.bench.programs import SCAN, Scan

Weights = dict[str, Any]
Loss = Callable[[Any, Array, Array], Array]
HORIZON = 4.0  # sum of the step sizes of all layers
RATE = 0.1


def mesh_of(sizes: Sequence[int], names: Sequence[str]) -> Mesh:
    """A mesh of the first devices, with Auto axes."""
    devices, types = jax.devices()[: int(np.prod(sizes))], (AxisType.Auto,) * len(names)
    return jax.make_mesh(tuple(sizes), tuple(names), axis_types=types, devices=devices)


def put(tree: Any, mesh: Mesh, *spec: Any) -> Any:
    """Arrays on a mesh, each sharded as ``P(*spec)``."""
    return jax.device_put(tree, NamedSharding(mesh, P(*spec)))


def bytes_here(tree: Any) -> int:
    """The bytes of arrays on the first of their devices."""
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Size:
    """Number of layers, their width, and the batch size."""

    length: int
    width: int
    batch: int


def weights(size: Size) -> Weights:
    """Weights of all layers ``[L, w, w]`` and biases ``[L, w]``, on the host.

    Every process draws the same.
    """
    draw = np.random.default_rng(0).normal
    matrices = draw(size=(size.length, size.width, size.width)) / size.width**0.5
    biases = 0.1 * draw(size=(size.length, size.width))
    return {"w": matrices.astype(np.float32), "b": biases.astype(np.float32)}


def batch_of(size: Size) -> tuple[Any, Any]:
    """Inputs and targets, each ``[batch, w]``, on the host."""
    draw = np.random.default_rng(1).normal
    shape = (size.batch, size.width)
    return draw(size=shape).astype(np.float32), draw(size=shape).astype(np.float32)


def layer_of(size: Size) -> Callable[[Array, Any], Array]:
    """A residual layer: ``z + h tanh(z w + b)``."""
    h = HORIZON / size.length
    return lambda z, p: z + h * jnp.tanh(z @ p["w"] + p["b"][None])


def sequential_loss(size: Size, scan: Scan = lax.scan) -> Loss:
    """By a loop."""
    layer = layer_of(size)

    def loss(weights: Any, z: Array, targets: Array) -> Array:
        last, _ = scan(lambda z, p: (layer(z, p), None), z, weights)
        return jnp.square(last - targets).mean()

    return loss


def chain_loss(chain: deeppcr.Chain, **options: Any) -> Loss:
    """By deeppcr: ``chain`` has the sharding, ``options`` are those of `deeppcr.solve`."""

    def loss(weights: Any, z: Array, targets: Array) -> Array:
        filled = dataclasses.replace(chain, inputs=weights)
        solution = deeppcr.solve(filled, z, batch_ndim=1, **options)
        return jnp.square(solution.value - targets).mean()

    return loss


def training_step(loss: Loss) -> Callable[..., Any]:
    """A step of gradient descent: ``(weights, (z, targets)) -> (loss, weights)``."""

    def step(weights: Any, batch: tuple[Array, Array]) -> tuple[Array, Any]:
        value, slopes = jax.value_and_grad(loss)(weights, *batch)
        return value, jax.tree.map(lambda p, g: p - RATE * g, weights, slopes)

    return step


def sharded(size: Size, mesh: Mesh) -> tuple[deeppcr.Chain, Any]:
    """The chain along the axis "chain" of a mesh, and its batch along "batch", if it has one."""
    chain = shard(deeppcr.Chain(layer_of(size), weights(size)), mesh)
    return chain, put(batch_of(size), mesh, *(["batch"] if "batch" in mesh.axis_names else []))


def parallel_step(chain: deeppcr.Chain, mesh: Mesh, method: Any = "newton") -> Callable[..., Any]:
    """A training step over the devices; its weights stay where they are."""
    step = training_step(chain_loss(chain, method=method, adjoint=deeppcr.Sharded(mesh, "chain")))
    along = {name: NamedSharding(mesh, P("chain")) for name in ("w", "b")}
    return jax.jit(step, out_shardings=(NamedSharding(mesh, P()), along))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a training step on devices, and its method.

    Attributes:
        chain: number of devices for the layers.
        batch: number of devices for the batch, for each of these.
        method: of `deeppcr.solve`; or "lax.scan".
    """

    chain: int = 1
    batch: int = 1
    method: str = "newton"

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.chain * self.batch

    @property
    def name(self) -> str:
        """In words: "chain 4 x batch 2, newton"."""
        counts = {"chain": self.chain, "batch": self.batch}
        axes = [f"{axis} {count}" for axis, count in counts.items() if count > 1]
        return f"{' x '.join(axes) or 'one device'}{'-way' * (len(axes) == 1)}, {self.method}"


def laid_out(size: Size, layout: Layout) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """The training step of a layout, and its arguments: weights, and inputs with targets."""
    if layout.method == SCAN:
        mesh = mesh_of((layout.batch,), ("batch",))
        arguments = put(weights(size), mesh), put(batch_of(size), mesh, "batch")
        return training_step(sequential_loss(size)), arguments
    shape, names = (layout.chain, layout.batch), ("chain", "batch")
    axes = 2 if layout.batch > 1 else 1
    mesh = mesh_of(shape[:axes], names[:axes])
    chain, batch = sharded(size, mesh)
    return parallel_step(chain, mesh, layout.method), (chain.inputs, batch)


@cache
def solve_stack(size: Size) -> tuple[int, float]:
    """Newton iterations of the chain, and the final residual."""

    def solve(weights: Any, z: Array) -> deeppcr.Stats:
        chain = deeppcr.Chain(layer_of(size), weights)
        return deeppcr.solve(chain, z, method="newton", batch_ndim=1).stats

    stats = jax.jit(solve)(weights(size), batch_of(size)[0])
    return int(stats.iterations), float(stats.residual)
