"""The rows of jax's own tutorials on parallel programs and distributed arrays, on 8 devices."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.sharding_rows.measured import Case, Row, mesh_of, put

SPECS: tuple[tuple[Any, ...], ...] = (
    ("a", "b"),
    ("b", "a"),
    ("a", None),
    (None, "b"),
    (("a", "b"), None),
)


def cases(size: int) -> Iterator[Case]:
    """All rows in which arrays have ``size`` times ``size`` entries; the products of a batch a quarter of them."""
    yield from batches(size // 2)
    yield from normalised(size)
    yield from laid_out(size)
    yield from constrained(size)
    yield from drawn(size)


def batches(size: int) -> Iterator[Case]:
    """A batch of 8 products of matrices."""
    operands = tuple(_numbers(8, size, size, seed=seed) for seed in range(2))
    products = jax.vmap(jnp.matmul)
    along = mesh_of((8,), ("batch",))
    yield Case("8 matmuls, one device", products, jax.device_put(operands, jax.devices()[0]))
    yield Case(
        "8 matmuls, pmap", jax.pmap(jnp.matmul), put(operands, along, "batch"), alone=products
    )
    yield Case("8 matmuls, jit of sharded arrays", products, put(operands, along, "batch"))


def normalised(size: int) -> Iterator[Case]:
    """Divided by the sum over all devices."""

    def own(x: Array) -> Array:
        return x / lax.psum(x, "i")

    along = mesh_of((8,), ("i",))
    x = put(_numbers(8, size, low=1.0), along, "i")

    def alone(x: Array) -> Array:
        return x / x.sum(axis=0, keepdims=True)

    yield Case("x / psum(x), pmap", jax.pmap(own, axis_name="i"), (x,), alone=alone)
    yield Case(
        "x / psum(x), shard_map",
        jax.shard_map(own, mesh=along, in_specs=P("i"), out_specs=P("i")),
        (x,),
        alone=alone,
    )


def laid_out(size: int) -> Iterator[Case]:
    """Arrays in blocks, rows and columns: what is elementwise follows its operand, a product may need a sum."""
    mesh = mesh_of((4, 2), ("a", "b"))
    x, y = (_numbers(size, size, seed=seed) for seed in range(2))
    for spec in SPECS:
        yield Case(f"sin of P{_written(spec)}", jnp.sin, (put(x, mesh, *spec),))
    yield Case(
        "P('a', None) @ P(None, 'b')",
        jnp.matmul,
        (put(x, mesh, "a", None), put(y, mesh, None, "b")),
    )
    yield Case(
        "P(None, 'b') @ P('b', None)",
        jnp.matmul,
        (put(x, mesh, None, "b"), put(y, mesh, "b", None)),
    )


def constrained(size: int) -> Iterator[Case]:
    """A constraint inside jit that moves an array to another layout."""
    mesh, other = mesh_of((4, 2), ("a", "b")), mesh_of((2, 4), ("a", "b"))
    x = put(_numbers(size, size), mesh, "a", "b")
    for name, there in {
        "4 x 2 to 2 x 4": NamedSharding(other, P("a", "b")),
        "replicated": NamedSharding(mesh, P()),
    }.items():

        def moved(x: Array, there: NamedSharding = there) -> Array:
            return lax.with_sharding_constraint(jnp.sin(x), there)

        # The layout of the result is said, too: where it is left open, the compiler may choose another one.
        yield Case(f"constraint, {name}", jax.jit(moved, out_shardings=there), (x,), alone=jnp.sin)


def drawn(size: int) -> Iterator[Case]:
    """Random numbers: every device draws its own, and they are those of one device."""
    mesh = mesh_of((4, 2), ("a", "b"))
    draw = partial(jax.random.normal, shape=(size, size), dtype=jnp.float32)
    key = jax.random.key(0)
    for spec in (SPECS[0], SPECS[-1]):
        # The same bits, whatever the layout.
        jitted = jax.jit(draw, out_shardings=NamedSharding(mesh, P(*spec)))
        yield Case(
            f"random.normal as P{_written(spec)}",
            jitted,
            (put(key, mesh),),
            alone=draw,
            here=(key,),
            tolerance=0.0,
        )


def apart() -> Row:
    """What jax says of operands that were put on different devices."""
    x, y = (jax.device_put(jnp.ones(4, jnp.float32), device) for device in jax.devices()[:2])
    try:
        jnp.add(x, y)
    except ValueError as error:
        return {
            "row": "operands on different devices",
            "result": f"ValueError: {str(error).partition('.')[0]}",
        }
    raise AssertionError("jax added arrays that are on different devices")


def _numbers(*shape: int, seed: int = 0, low: float = -1.0) -> Any:
    return np.random.default_rng(seed).uniform(low, 2.0, shape).astype(np.float32)


def _written(spec: tuple[Any, ...]) -> str:
    return repr(spec)
