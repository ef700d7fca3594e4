"""Stacks of equal layers, and training loops of them: programs that grow with their number."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
from experiments.bench.engine import Case, Variant
from experiments.bench.programs import SCAN, UNROLLS
from experiments.models.training import affine

Network = Callable[[Any, Array], Array]

WIDTH, BATCH, TRAINED_BATCH = 16, 8, 32
LONGEST_LOOP = 64  # layers
LOOP, PLAIN = "Python loop", f"{SCAN}, stacked"


def stacked(layers: Any) -> Any:
    """Equal pytrees as one of stacked arrays."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def by_hand(layers: Any, x: Array) -> Array:
    """The Python loop."""
    for layer in layers:
        x = layer(x)
    return x


def by_scan(layers: Any, x: Array, unroll: int = 1) -> Array:
    """`jax.lax.scan` over stacked layers."""
    return lax.scan(lambda x, layer: (layer(x), None), x, layers, unroll=unroll)[0]


def modules(length: int) -> Any:
    """Equal flax modules, with 2 arrays each."""
    from flax import nnx

    scale = length**-0.5  # or else rounding errors grow a millionfold over a thousand layers

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Array) -> Array:
            return x + scale * jnp.tanh(self.linear(x))

    rngs = nnx.Rngs(0)
    return nnx.List([Block(rngs) for _ in range(length)])


def flax_scan(layers: Any, x: Array) -> Array:
    """`flax.nnx.scan` over modules stacked beforehand."""
    from flax import nnx

    step = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    result: Array = step(x, layers)
    return result


def layers(length: int) -> Case:
    """The gradient with respect to so many layers, by all programs."""
    listed = modules(length)
    arguments = {"list": listed, "arrays": stacked(listed), "stack": deeppcr.stack(listed)}
    x = jnp.ones((BATCH, WIDTH))

    def gradient(form: str, run: Network) -> Variant:
        def comparable(found: Any) -> Any:
            found = deeppcr.unstack(found) if form == "stack" else found
            return jax.tree.leaves(found if form == "arrays" else stacked(found))

        def loss(layers: Any, x: Array) -> Array:
            return jnp.mean(run(layers, x) ** 2)

        return Variant(jax.grad(loss), [(arguments[form], x)], comparable=comparable)

    unrolls = [unroll for unroll in UNROLLS if unroll < length]
    loops = {PLAIN: gradient("arrays", by_scan)}
    for unroll in unrolls:
        loops[f"{PLAIN}, unroll {unroll}"] = gradient("arrays", partial(by_scan, unroll=unroll))
    if length <= LONGEST_LOOP:
        loops[LOOP] = gradient("list", by_hand)
    others = {
        "nnx.scan, stacked": gradient("arrays", flax_scan),
        "deeppcr, list": gradient("list", deeppcr.forward),
        "deeppcr, stack": gradient("stack", deeppcr.forward),
    }
    return Case({"part": "layers", "L": length}, [], loops, others)


def module(weights: dict[str, Array], x: Array) -> Array:
    """Six layers with their biases, added to what came in."""
    y = x
    for layer in range(6):
        y = jnp.tanh(affine(y, weights[f"w{layer}"], weights[f"b{layer}"]))
    return x + y


def parameters(count: int) -> list[Any]:
    """So many modules with random weights, as functions."""
    keys = jax.random.split(jax.random.key(0), (count, 6))

    def one(keys: Array) -> Any:
        draw = {f"w{i}": jax.random.normal(keys[i], (WIDTH, WIDTH)) for i in range(6)}
        weights = {name: WIDTH**-0.5 * w for name, w in draw.items()}
        weights |= {f"b{i}": jnp.zeros(WIDTH) for i in range(6)}
        return jax.tree_util.Partial(module, weights)

    return [one(own) for own in keys]


def training_loop(network: Network, optimizer: Any) -> Callable[[Any, Array], Any]:
    """The parameters after all steps and the losses, on batches ``xs: [steps, batch, width]``."""
    import optax

    def train(params: Any, xs: Array) -> Any:
        def step(carry: Any, x: Array) -> tuple[Any, Array]:
            params, state = carry
            loss, gradients = jax.value_and_grad(lambda p: jnp.mean(network(p, x) ** 2))(params)
            updates, state = optimizer.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), loss

        (params, _), losses = lax.scan(step, (params, optimizer.init(params)), xs)
        return params, losses

    return train


def training(count: int, steps: int) -> Case:
    """A whole training loop of listed and of stacked modules, and Adam on a flat array."""
    import optax

    adam = optax.adam(1e-3)
    listed = parameters(count)
    arguments = {"list": listed, "arrays": stacked(listed), "stack": deeppcr.stack(listed)}
    xs = jax.random.normal(jax.random.key(1), (steps, TRAINED_BATCH, WIDTH))

    def loop(form: str, network: Network, optimizer: Any) -> Variant:
        def comparable(result: tuple[Any, Array]) -> Any:
            params = deeppcr.unstack(result[0]) if form == "stack" else result[0]
            return jax.tree.leaves(params if form == "arrays" else stacked(params)), result[1]

        program = training_loop(network, optimizer)
        return Variant(program, [(arguments[form], xs)], comparable=comparable)

    loops = {
        f"{SCAN}, adam": loop("arrays", by_scan, adam),
        "list, adam": loop("list", by_hand, adam),
    }
    others = {
        "list, flat adam": loop("list", by_hand, optax.flatten(adam)),
        "stack, adam": loop("stack", deeppcr.forward, adam),
    }
    return Case({"part": "training", "modules": count, "steps": steps}, [], loops, others)
