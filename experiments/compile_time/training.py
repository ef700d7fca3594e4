"""A whole training loop, of listed and of stacked modules, with plain and with packed Adam."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import deeppcr
from experiments.bench.engine import Case, Variant
from experiments.bench.programs import SCAN
from experiments.bench.table import Row

Loop = Callable[[Any, Array], Any]

WIDTH, BATCH = 16, 32
LIST, PLAIN = "list, adam", f"{SCAN}, adam"


class Size:
    """How many modules the network has, and steps the loop; None for what is usual."""

    def __init__(self, modules: int | None = None, steps: int | None = None, quick: bool = False):
        self.modules = modules or (4 if quick else 16)
        self.steps = steps or (20 if quick else 200)


def module(weights: dict[str, Array], x: Array) -> Array:
    """Six layers with their biases, added to what came in."""
    y = x
    for layer in range(6):
        y = jnp.tanh(y @ weights[f"w{layer}"] + weights[f"b{layer}"])
    return x + y


def parameters(count: int) -> list[dict[str, Array]]:
    """Those of so many modules."""
    keys = jax.random.split(jax.random.key(0), (count, 6))

    def one(keys: Array) -> dict[str, Array]:
        weights = {
            f"w{i}": WIDTH**-0.5 * jax.random.normal(keys[i], (WIDTH, WIDTH)) for i in range(6)
        }
        return weights | {f"b{i}": jnp.zeros(WIDTH) for i in range(6)}

    return [one(own) for own in keys]


def arrays(count: int) -> dict[str, Array]:
    """The same, each array that of all modules."""
    return _stacked(parameters(count))


def _stacked(layers: list[dict[str, Array]]) -> dict[str, Array]:
    stacked: dict[str, Array] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return stacked


def stacked(count: int) -> Any:
    """The same, as a `deeppcr.Stack`."""
    return deeppcr.stack([jax.tree_util.Partial(module, weights) for weights in parameters(count)])


def by_hand(layers: list[dict[str, Array]], x: Array) -> Array:
    """The Python loop."""
    for weights in layers:
        x = module(weights, x)
    return x


def by_scan(layers: dict[str, Array], x: Array) -> Array:
    """A loop over stacked modules."""
    return lax.scan(lambda x, weights: (module(weights, x), None), x, layers)[0]


def training(network: Callable[[Any, Array], Array], optimizer: Any, packed: bool = False) -> Loop:
    """The loop: the parameters after all steps, on batches ``xs: [steps, batch, width]``."""

    def train(params: Any, xs: Array) -> Any:
        packing = deeppcr.Packing.of(params)
        pack, unpack = (
            (packing.pack, packing.unpack) if packed else (lambda tree: tree, lambda tree: tree)
        )

        def step(carry: Any, x: Array) -> tuple[Any, Array]:
            held, state = carry
            loss, gradients = jax.value_and_grad(lambda params: jnp.mean(network(params, x) ** 2))(
                unpack(held)
            )
            updates, state = optimizer.update(pack(gradients), state, held)
            return (optax.apply_updates(held, updates), state), loss

        held = pack(params)
        (held, _), losses = lax.scan(step, (held, optimizer.init(held)), xs)
        return unpack(held), losses

    return train


ADAM = optax.adam(1e-3)
PACKED = deeppcr.pack(ADAM)
PROGRAMS: dict[str, tuple[Callable[[int], Any], Loop]] = {
    PLAIN: (arrays, training(by_scan, ADAM)),
    LIST: (parameters, training(by_hand, ADAM)),
    "list, packed adam": (parameters, training(by_hand, PACKED)),
    "stack, adam": (stacked, training(deeppcr.forward, ADAM)),
    "stack, packed adam": (stacked, training(deeppcr.forward, PACKED)),
    "stack and adam packed": (stacked, training(deeppcr.forward, PACKED, packed=True)),
}


def variant(name: str, size: Size) -> Variant:
    """Training by one of the programs."""
    make, loop = PROGRAMS[name]
    xs = jax.random.normal(jax.random.key(1), (size.steps, BATCH, WIDTH))
    params = jax.block_until_ready(make(size.modules))

    def comparable(result: tuple[Any, Array]) -> Any:
        params, losses = result
        if make is stacked:  # what each module is a `jax.tree_util.Partial` of
            params = [layer.args[0] for layer in deeppcr.unstack(params)]
        return params if make is arrays else _stacked(params), losses

    return Variant(
        loop,
        arguments=[(params, xs)],
        iterations=lambda: deeppcr.plan(params, xs[0]).main.forward[0].iterations,
        comparable=comparable,
        statistics=lambda result: {"last loss": float(result[1][-1])},
    )


def case(size: Size) -> Case:
    """All programs."""
    every = {name: variant(name, size) for name in PROGRAMS}
    loops = {name: every.pop(name) for name in (PLAIN, LIST)}
    labels = {"part": "training", "modules": size.modules, "steps": size.steps}
    return Case(labels, [], loops, every)


def compared(rows: Iterator[Row], size: Size) -> Iterator[Row]:
    """The rows with microseconds a step, and with seconds relative to the list of modules."""
    found = list(rows)
    seconds = {row["program"]: row["seconds"] for row in found}
    for row in found:
        more: Row = {"against list": seconds[LIST] / row["seconds"]}
        yield row | more | ({"us a step": 1e3 * row["ms"] / size.steps} if "ms" in row else {})
