"""Seconds to trace and compile a whole training loop, and microseconds a step: a list of modules against stacked, packed ones.

The network has 16 equal residual modules of 12 small arrays, 26,624 parameters in all; the loop is a jitted `jax.lax.scan` of
Adam steps.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import deeppcr
from experiments.common.results import write
from experiments.common.table import table
from experiments.common.timing import build, clock

MODULES, WIDTH, BATCH, STEPS = 16, 16, 32, 200

Loop = Callable[[Any, Array], Any]


def module(weights: dict[str, Array], x: Array) -> Array:
    """Six layers with their biases, added to what came in."""
    y = x
    for layer in range(6):
        y = jnp.tanh(y @ weights[f"w{layer}"] + weights[f"b{layer}"])
    return x + y


def parameters() -> list[dict[str, Array]]:
    """Those of all modules."""
    keys = jax.random.split(jax.random.key(0), (MODULES, 6))

    def one(keys: Array) -> dict[str, Array]:
        weights = {f"w{i}": WIDTH**-0.5 * jax.random.normal(keys[i], (WIDTH, WIDTH)) for i in range(6)}
        return weights | {f"b{i}": jnp.zeros(WIDTH) for i in range(6)}

    return [one(own) for own in keys]


def stacked() -> Any:
    """The same, as a `deeppcr.Stack`."""
    return deeppcr.stack([jax.tree_util.Partial(module, weights) for weights in parameters()])


def by_hand(layers: list[dict[str, Array]], x: Array) -> Array:
    """The Python loop."""
    for weights in layers:
        x = module(weights, x)
    return x


def training(network: Callable[[Any, Array], Array], optimizer: Any, packed: bool = False) -> Loop:
    """The loop: the parameters after all steps, on batches ``xs: [steps, batch, width]``."""

    def train(params: Any, xs: Array) -> Any:
        packing = deeppcr.Packing.of(params)
        pack, unpack = (packing.pack, packing.unpack) if packed else (lambda tree: tree, lambda tree: tree)

        def step(carry: Any, x: Array) -> tuple[Any, Array]:
            held, state = carry
            loss, gradients = jax.value_and_grad(lambda params: jnp.mean(network(params, x) ** 2))(unpack(held))
            updates, state = optimizer.update(pack(gradients), state, held)
            return (optax.apply_updates(held, updates), state), loss

        held = pack(params)
        (held, _), losses = lax.scan(step, (held, optimizer.init(held)), xs)
        return unpack(held), losses

    return train


ADAM = optax.adam(1e-3)
WAYS: dict[str, tuple[Callable[[], Any], Callable[[], Loop]]] = {
    "list, adam": (parameters, lambda: training(by_hand, ADAM)),
    "list, packed adam": (parameters, lambda: training(by_hand, deeppcr.pack(ADAM))),
    "stack, adam": (stacked, lambda: training(deeppcr.forward, ADAM)),
    "stack, packed adam": (stacked, lambda: training(deeppcr.forward, deeppcr.pack(ADAM))),
    "stack and adam packed": (stacked, lambda: training(deeppcr.forward, deeppcr.pack(ADAM), packed=True)),
}


def main(argv: list[str]) -> None:
    """Trace, compile and run, the ways in turn; print a table of medians and of the last loss."""
    parser = argparse.ArgumentParser(prog="python -m experiments training_loop", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", metavar="NAME", help="write the rows to results/<device>/NAME.jsonl, too")
    options = parser.parse_args(argv)
    xs = jax.random.normal(jax.random.key(1), (STEPS, BATCH, WIDTH))
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    steps: dict[str, list[float]] = {name: [] for name in WAYS}
    losses = {}
    for _ in range(options.repeats):
        for name, (make, loop) in WAYS.items():
            jax.clear_caches()
            params = make()
            jax.block_until_ready(params)
            start = time.perf_counter()
            call = build(loop(), params, xs).call
            seconds[name].append(time.perf_counter() - start)
            losses[name] = float(call(params, xs)[1][-1])
            steps[name] += [1e6 * clock(partial(call, params, xs)) / STEPS for _ in range(3)]
    first = statistics.median(seconds["list, adam"])
    rows = [
        {
            "way": name,
            "seconds": statistics.median(seconds[name]),
            "against list": first / statistics.median(seconds[name]),
            "us a step": statistics.median(steps[name]),
            "last loss": losses[name],
        }
        for name in WAYS
    ]
    print(table(rows))
    if options.keep:
        print("kept in", write(options.keep, rows))
