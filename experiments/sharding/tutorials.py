"""The examples of jax's own tutorials on distributed arrays and training, on 8 devices."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.bench.engine import Case, Variant, measure
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.sharding.chains import TOLERANCE, compared
from experiments.sharding.stack import bytes_here, mesh_of, put

Program = Callable[..., Any]


@dataclass(frozen=True)
class Comparison:
    """A program on sharded arguments, beside the same on one device.

    Attributes:
        name: of the row.
        program: what is measured; its result has to be that of ``alone``.
        arguments: arrays on the devices of the mesh.
        alone: the same program for one device; None for ``program`` itself.
        here: arguments of ``alone``; None for the same numbers.
        loss: of the result; None for the mean of its squares, where nothing is trained.
        parameters: index of the argument with the parameters, if there is one.
        steps: training steps in a call.
        comparable: the part of the result that has to be that of one device.
        tolerance: relative to its largest entry.
    """

    name: str
    program: Program
    arguments: tuple[Any, ...]
    alone: Program | None = None
    here: tuple[Any, ...] | None = None
    loss: Callable[[Any], float] | None = None
    parameters: int | None = None
    steps: int = 1
    comparable: Callable[[Any], Any] = lambda result: result
    tolerance: float = TOLERANCE

    def row(self, effort: Effort) -> Row:
        """The row; a result that differs from that of one device has a note and no speedup."""
        here = self.here
        if here is None:
            here = jax.device_put(jax.device_get(self.arguments), jax.devices()[0])
        # A function of its own: jax would find the second compilation in its cache.
        alone = self.alone or (lambda *arguments: self.program(*arguments))
        one, many = (
            Variant(run, [arguments], comparable=self.comparable, statistics=self._statistics)
            for run, arguments in ((alone, here), (self.program, self.arguments))
        )
        case = Case({}, [], {"one device": one}, {"many": many}, self.tolerance)
        single, found = measure(case, effort).values()
        row: Row = {"row": self.name}
        if not (single.timing and found.timing):
            return row | {"note": found.note or f"on one device: {single.note}"}
        scale = 1e3 / self.steps  # of one of the training steps that a call makes
        row |= found.times(scale) | compared(found, single)
        row["ms, one device"] = single.times(scale)["ms"]
        if found.is_right:
            row["over one device"] = single.timing.median / found.timing.median
        if self.parameters is not None:
            row["parameter bytes"] = bytes_here(self.arguments[self.parameters])
        return row

    def _statistics(self, result: Any) -> Row:
        return {"result": _layout(result), "loss": (self.loss or _mean_square)(result)}


def _mean_square(result: Any) -> float:
    """Summed in float64 by the host."""
    return float(np.square(np.asarray(result, np.float64)).mean())


def _layout(result: Any) -> str:
    """The layout of a result that is one array: "P('a', 'b'): 8 x (4, 8)"."""
    if not isinstance(result, jax.Array):
        return ""
    sharding = result.sharding
    spec = "one device"
    if isinstance(sharding, NamedSharding):
        spec = str(sharding.spec).replace("PartitionSpec", "P")
    return f"{spec}: {len(sharding.device_set)} x {sharding.shard_shape(result.shape)}"


SPECS: tuple[tuple[Any, ...], ...] = (
    ("a", "b"),
    ("b", "a"),
    ("a", None),
    (None, "b"),
    (("a", "b"), None),
)


def comparisons(size: int) -> Iterator[Comparison]:
    """All examples, on arrays of ``size`` times ``size`` entries."""
    yield from batches(size // 2)
    yield from normalised(size)
    yield from laid_out(size)
    yield from constrained(size)
    yield from drawn(size)


def batches(size: int) -> Iterator[Comparison]:
    """A batch of 8 products of matrices."""
    operands = tuple(_numbers(8, size, size, seed=seed) for seed in range(2))
    products = jax.vmap(jnp.matmul)
    along = mesh_of((8,), ("batch",))
    yield Comparison("8 matmuls, one device", products, jax.device_put(operands, jax.devices()[0]))
    yield Comparison(
        "8 matmuls, pmap", jax.pmap(jnp.matmul), put(operands, along, "batch"), alone=products
    )
    yield Comparison("8 matmuls, jit of sharded arrays", products, put(operands, along, "batch"))


def normalised(size: int) -> Iterator[Comparison]:
    """Divided by the sum over all devices."""

    def own(x: Array) -> Array:
        return x / lax.psum(x, "i")

    def alone(x: Array) -> Array:
        return x / x.sum(axis=0, keepdims=True)

    along = mesh_of((8,), ("i",))
    x = put(_numbers(8, size, low=1.0), along, "i")
    mapped = jax.shard_map(own, mesh=along, in_specs=P("i"), out_specs=P("i"))
    yield Comparison("x / psum(x), pmap", jax.pmap(own, axis_name="i"), (x,), alone=alone)
    yield Comparison("x / psum(x), shard_map", mapped, (x,), alone=alone)


def laid_out(size: int) -> Iterator[Comparison]:
    """Arrays in blocks, rows and columns: an elementwise function, and products."""
    mesh = mesh_of((4, 2), ("a", "b"))
    x, y = (_numbers(size, size, seed=seed) for seed in range(2))
    for spec in SPECS:
        yield Comparison(f"sin of P{spec!r}", jnp.sin, (put(x, mesh, *spec),))
    rows, columns = put(x, mesh, "a", None), put(y, mesh, None, "b")
    yield Comparison("P('a', None) @ P(None, 'b')", jnp.matmul, (rows, columns))
    inner = put(x, mesh, None, "b"), put(y, mesh, "b", None)
    yield Comparison("P(None, 'b') @ P('b', None)", jnp.matmul, inner)


def constrained(size: int) -> Iterator[Comparison]:
    """Constraints inside jit that move an array to another layout."""
    mesh, other = mesh_of((4, 2), ("a", "b")), mesh_of((2, 4), ("a", "b"))
    x = put(_numbers(size, size), mesh, "a", "b")
    shardings = {"4 x 2 to 2 x 4": NamedSharding(other, P("a", "b"))}
    shardings["replicated"] = NamedSharding(mesh, P())
    for name, there in shardings.items():

        def moved(x: Array, there: NamedSharding = there) -> Array:
            return lax.with_sharding_constraint(jnp.sin(x), there)

        # The layout of the result is fixed, too: otherwise the compiler may choose another one.
        program = jax.jit(moved, out_shardings=there)
        yield Comparison(f"constraint, {name}", program, (x,), alone=jnp.sin)


def drawn(size: int) -> Iterator[Comparison]:
    """Random numbers: every device draws its own, and all agree with one device to the last bit."""
    mesh = mesh_of((4, 2), ("a", "b"))
    draw = partial(jax.random.normal, shape=(size, size), dtype=jnp.float32)
    key = jax.random.key(0)
    for spec in (SPECS[0], SPECS[-1]):
        name = f"random.normal as P{spec!r}"
        jitted = jax.jit(draw, out_shardings=NamedSharding(mesh, P(*spec)))
        alone = {"alone": draw, "here": (key,), "tolerance": 0.0}
        yield Comparison(name, jitted, (put(key, mesh),), **alone)  # type: ignore[arg-type]


def apart() -> Row:
    """The error of jax for operands on different devices."""
    x, y = (jax.device_put(jnp.ones(4, jnp.float32), device) for device in jax.devices()[:2])
    try:
        jnp.add(x, y)
    except ValueError as error:
        said = f"jax refuses: {str(error).partition('.')[0]}"
        return {"row": "operands on different devices", "note": said}
    raise AssertionError("jax added arrays that are on different devices")


def _numbers(*shape: int, seed: int = 0, low: float = -1.0) -> Any:
    return np.random.default_rng(seed).uniform(low, 2.0, shape).astype(np.float32)


# -- the perceptron of jax's tutorial, 784 - n - n - n - 10, trained with its batch and its layers
# over devices

STEPS = 30
RATE = 0.01
# Megatron's order: a layer cut by columns, then one cut by rows, with one sum over the devices
# after both.
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


def samples_of(batch: int) -> tuple[Any, Any]:
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


def perceptrons(width: int, batch: int) -> Iterator[Comparison]:
    """8-way data-parallel, and 4-way over the batch times 2-way over the layers' units."""
    meshes = {
        "batch 8-way": (mesh_of((8,), ("batch",)), REPLICATED),
        "batch 4 x tensor 2": (mesh_of((4, 2), ("batch", "model")), TENSOR),
    }
    for name, (mesh, specs) in meshes.items():
        yield _perceptron(f"MLP {width}, {name}", mesh, specs, width, batch)


def _perceptron(name: str, mesh: Mesh, specs: Any, width: int, batch: int) -> Comparison:
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda x: isinstance(x, P)
    )
    layers = jax.device_put(parameters(width), shardings)
    samples = jax.device_put(samples_of(batch), NamedSharding(mesh, P("batch")))
    return Comparison(
        name,
        jax.jit(train, out_shardings=(NamedSharding(mesh, P()), shardings)),
        (layers, samples),
        alone=train,
        loss=lambda result: float(result[0][-1]),
        parameters=0,
        steps=STEPS,
        # Rounding may move a unit across the kink of its relu: in float32 some weights then differ
        # by 1e-3 of the largest, in float64 by 1e-15.
        comparable=lambda result: result[0],
    )
