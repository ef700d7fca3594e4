"""Gradient and forward time of a recurrent network through deeppcr, beside `jax.lax.scan`."""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
from experiments.common import cells
from experiments.common.results import write
from experiments.common.table import table
from experiments.common.timing import build, interleave

Parameters = dict[str, Array]
SIZES = [(10_000, 2), (10_000, 4), (10_000, 8), (2_000, 16)]
BATCHES = [1, 8]


def loss(scan: Callable[..., Any], **options: Any) -> Callable[[Parameters, Array, Array], Array]:
    """A loss that needs every state of the chain."""

    def evaluate(parameters: Parameters, h: Array, xs: Array) -> Array:
        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = cells.gru(parameters, h, x)
            return h, h

        return jnp.square(scan(step, h, xs, **options)[1]).mean()

    return evaluate


ADJOINTS: dict[str, Any] = {
    "auto": "auto",
    "sequential": "sequential",
    "recurrence": deeppcr.Recurrence(),
    "pcr": "pcr",
}


def measure(length: int, width: int, batch: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Times of the gradient by every adjoint, and of the forward pass, in one interleaved run."""
    rng = np.random.default_rng(1)
    inputs = [
        (
            cells.gru_weights(width, seed=seed),
            jnp.zeros((batch, width), jnp.float32),
            jnp.asarray(rng.normal(size=(length, batch, width)), jnp.float32),
        )
        for seed in range(2)
    ]
    ours = {name: loss(deeppcr.scan, adjoint=adjoint, batch_ndim=1) for name, adjoint in ADJOINTS.items()}
    gradients = {"lax.scan": loss(jax.lax.scan)} | ours
    programs = {f"gradient {name}": jax.grad(f, argnums=(0, 1, 2)) for name, f in gradients.items()}
    programs |= {"forward lax.scan": gradients["lax.scan"], "forward auto": gradients["auto"]}
    built = {name: build(program, *inputs[0]) for name, program in programs.items()}
    check_equal({name: build.call(*inputs[1]) for name, build in built.items()})

    def rotating(call: Callable[..., Any]) -> Callable[[], Any]:
        turn = iter(range(10**9))
        return lambda: call(*inputs[next(turn) % len(inputs)])

    times = interleave({name: rotating(one.call) for name, one in built.items()}, repeats)
    for name, timing in times.items():
        what, _, by = name.partition(" ")
        yield {
            "length": length,
            "n": width,
            "batch": batch,
            "what": what,
            "by": by,
            "ms": 1e3 * timing.median,
            "min": 1e3 * timing.minimum,
            "max": 1e3 * timing.maximum,
            "speedup": times[f"{what} lax.scan"].median / timing.median,
            "temp MB": (built[name].temporary_bytes or 0) / 1e6,
            "blocks MB": 4e-6 * length * batch * width**2,
            "compile s": built[name].lower + built[name].compile,
        }


def check_equal(results: dict[str, Any], tolerance: float = 1e-3) -> None:
    """All gradients are the one of `jax.lax.scan`, before any is timed."""
    for name, result in results.items():
        expected = results[f"{name.partition(' ')[0]} lax.scan"]
        for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            error = float(jnp.abs(a - b).max() / jnp.abs(b).max())
            if not error < tolerance:
                raise AssertionError(f"{name} differs from lax.scan by {error:.1e}, relative to the largest entry")


def main(argv: list[str]) -> None:
    """Measure, print the tables, and keep them."""
    parser = argparse.ArgumentParser(prog="python -m experiments gradients", description=__doc__)
    parser.add_argument("--repeats", type=int, default=9, help="timed calls of each program")
    parser.add_argument("--quick", action="store_true", help="one size only; nothing is kept")
    options = parser.parse_args(argv)
    rows = []
    for length, width in SIZES[:1] if options.quick else SIZES:
        for batch in BATCHES:
            rows += list(measure(length, width, batch, options.repeats))
            print(table(rows[-len(rows) :][-7:]), flush=True)
            print()
    auto = [row["speedup"] for row in rows if (row["what"], row["by"]) == ("gradient", "auto")]
    ahead = [1 / row["speedup"] for row in rows if (row["what"], row["by"]) == ("forward", "auto")]
    print(f"gradient, adjoint=auto: {np.exp(np.mean(np.log(auto))):.2f}x lax.scan (geometric mean), least {min(auto):.2f}x")
    print(f"forward, method=auto: at most {max(ahead):.2f} of the time of lax.scan")
    if not options.quick:
        print("kept in", write("gradients", rows))
