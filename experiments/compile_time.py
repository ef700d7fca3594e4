"""Seconds to trace and to compile the gradient of a loss through L equal layers: a Python loop, a scan, deeppcr."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
from experiments.common.results import write
from experiments.common.table import table
from experiments.common.timing import build

WIDTH, BATCH = 16, 8


def modules(length: int) -> Any:
    """Equal flax modules, with 2 arrays each."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Array) -> Array:
            return x + jnp.tanh(self.linear(x))

    rngs = nnx.Rngs(0)
    return nnx.List([Block(rngs) for _ in range(length)])


def by_hand(layers: Any, x: Array) -> Array:
    """The Python loop."""
    for layer in layers:
        x = layer(x)
    return x


def scanned(layers: Any, x: Array) -> Array:
    """`flax.nnx.scan` over modules stacked beforehand."""
    from flax import nnx

    def step(x: Array, layer: Any) -> Array:
        return layer(x)

    result: Array = nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, layers)
    return result


def stacked_modules(length: int) -> Any:
    """The modules as one module of stacked arrays."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *modules(length))


WAYS: dict[str, tuple[Callable[[int], Any], Callable[[Any, Array], Array]]] = {
    "Python loop": (modules, by_hand),
    "nnx.scan, stacked": (stacked_modules, scanned),
    "lax.scan, stacked": (stacked_modules, lambda layers, x: lax.scan(lambda x, layer: (layer(x), None), x, layers)[0]),
    "deeppcr, list": (modules, deeppcr.forward),
    "deeppcr, stack": (lambda length: deeppcr.stack(modules(length)), deeppcr.forward),
}


def measure(name: str, length: int, repeats: int) -> dict[str, Any]:
    """One line: the least of several traces and compilations, each of a function made anew."""
    make, run = WAYS[name]
    layers, x = make(length), jnp.ones((BATCH, WIDTH))
    builds = []
    for _ in range(repeats):
        jax.clear_caches()

        def loss(layers: Any, x: Array) -> Array:
            return jnp.mean(run(layers, x) ** 2)

        builds.append(build(jax.grad(loss), layers, x))
    lower, compile_ = (min(getattr(each, part) for each in builds) for part in ("lower", "compile"))
    return {"way": name, "L": length, "trace": lower, "compile": compile_, "total": lower + compile_}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds against the number of layers, both logarithmic."""
    from experiments.common.plots import figure

    with figure(path) as (axes,):
        for name in WAYS:
            mine = [row for row in rows if row["way"] == name]
            axes.loglog([row["L"] for row in mine], [row["total"] for row in mine], marker="o", label=name)
        axes.set(title="gradient of a stack of layers", xlabel="layers", ylabel="seconds to trace and compile")
        axes.legend()


def main(argv: list[str]) -> None:
    """Trace and compile; print a table, in seconds."""
    parser = argparse.ArgumentParser(prog="python -m experiments compile_time", description=__doc__)
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 64, 256, 1024])
    parser.add_argument("--longest-loop", type=int, default=256, help="the most layers that the Python loop is compiled for")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the totals")
    parser.add_argument("--keep", metavar="NAME", help="write the rows to results/<device>/NAME.jsonl, too")
    options = parser.parse_args(argv)
    rows = []
    for name in WAYS:
        for length in options.lengths:
            if name != "Python loop" or length <= options.longest_loop:
                rows.append(measure(name, length, options.repeats))
    for row in rows:
        shortest = next(other for other in rows if other["way"] == row["way"])
        row["against shortest"] = row["total"] / shortest["total"]
    print(table(rows))
    if options.plot:
        plot(rows, options.plot)
        print("drawn in", options.plot)
    if options.keep:
        print("kept in", write(options.keep, rows))
