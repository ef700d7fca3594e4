"""Seconds to trace and to compile the gradient of a loss through L equal layers: a Python loop, a scan, deeppcr.

The layers are flax modules, in a list or stacked. Each way is traced and compiled anew several times, of which the least counts;
then all of them run in turn: "ms" is the median. "speedup" is over the fastest of the Python loop and of `jax.lax.scan` with
unroll 1, 4 and 16. A Python loop is compiled up to 256 layers: from there on it takes minutes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from experiments.common.baselines import SCAN, UNROLLS
from experiments.common.builds import Way, compare
from experiments.common.options import conclude, in_time, model, parser, positive, record
from experiments.common.packages import find_package
from experiments.common.plots import figure
from experiments.common.progress import progress
from experiments.common.table import table

Row = dict[str, Any]
Run = Callable[[Any, Array], Array]

WIDTH, BATCH = 16, 8
LENGTHS = (16, 64, 256, 1024)
BUILDS = 3
LOOP, PLAIN = "Python loop", f"{SCAN}, stacked"
HIDDEN = ("min ms", "max ms", "repeats", "work", "predicted ms")  # of a printed row


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


def by_scan(unroll: int, layers: Any, x: Array) -> Array:
    """`jax.lax.scan` over them."""
    return lax.scan(lambda x, layer: (layer(x), None), x, layers, unroll=unroll)[0]


def stacked_modules(length: int) -> Any:
    """The modules as one module of stacked arrays."""
    return _stacked(modules(length))


def _stacked(layers: Any) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


WAYS: dict[str, tuple[Callable[[int], Any], Run]] = {
    LOOP: (modules, by_hand),
    "nnx.scan, stacked": (stacked_modules, scanned),
    PLAIN: (stacked_modules, partial(by_scan, 1)),
    **{
        f"{PLAIN}, unroll {unroll}": (stacked_modules, partial(by_scan, unroll))
        for unroll in UNROLLS
    },
    "deeppcr, list": (modules, deeppcr.forward),
    "deeppcr, stack": (lambda length: deeppcr.stack(modules(length)), deeppcr.forward),
}


def way(name: str, length: int) -> Way:
    """The gradient with respect to all layers, in one of the ways."""
    make, run = WAYS[name]

    def program() -> Callable[..., Any]:
        return jax.grad(lambda layers, x: jnp.mean(run(layers, x) ** 2))

    def comparable(gradients: Any) -> Any:
        layers = gradients.unstack() if isinstance(gradients, deeppcr.Stack) else gradients
        return jax.tree.leaves(layers if make is stacked_modules else _stacked(layers))

    def iterations(layers: Any, x: Array) -> int:
        return deeppcr.plan(layers, x).main.forward[0].iterations

    baseline = name == LOOP or name.startswith(PLAIN)
    return Way(
        lambda: (make(length), jnp.ones((BATCH, WIDTH))), program, comparable, baseline, iterations
    )


def measure(
    length: int, longest_loop: int, device: depth.Device, builds: int, repeats: int
) -> Iterator[Row]:
    """Rows of all ways through so many layers."""
    left_out = {f"{PLAIN}, unroll {unroll}" for unroll in UNROLLS if unroll >= length}
    left_out |= {LOOP} if length > longest_loop else set()
    ways = {name: way(name, length) for name in WAYS if name not in left_out}
    for row in compare(ways, PLAIN, device, builds, repeats):
        yield {"way": row.pop("way"), "L": length} | row


def draw(rows: list[Row], path: Path) -> None:
    """Seconds to compile and milliseconds of a call against the number of layers, all logarithmic."""
    titles = {
        "total": "seconds to trace and compile",
        "ms": "milliseconds of a call; dashed: predicted",
    }
    with figure(path, columns=len(titles), height=3.6) as axes:
        for (key, label), half in zip(titles.items(), axes, strict=True):
            for k, name in enumerate(WAYS):
                mine = [row for row in rows if row["way"] == name]
                half.loglog(
                    [row["L"] for row in mine],
                    [row[key] for row in mine],
                    marker="o",
                    ms=4,
                    color=f"C{k}",
                    label=name,
                )
                if key == "ms":
                    known = [
                        (row["L"], row["predicted ms"]) for row in mine if "predicted ms" in row
                    ]
                    half.loglog(*zip(*known, strict=True), "--", color=f"C{k}", linewidth=1)
            half.set(title=label, xlabel="layers")
        axes[0].legend(fontsize=6.5)


def main(argv: list[str]) -> None:
    """Trace, compile and run; print a table, and with --keep write the rows and the figure."""
    command = parser("compile_time", __doc__)
    command.add_argument(
        "--lengths", nargs="+", type=positive, metavar="L", help="numbers of layers"
    )
    command.add_argument(
        "--longest-loop",
        type=positive,
        default=256,
        metavar="L",
        help="of the Python loop (%(default)s)",
    )
    command.add_argument(
        "--builds",
        type=positive,
        metavar="N",
        help=f"times that each is compiled ({BUILDS}, quick: 1)",
    )
    options = command.parse_args(argv)
    if not find_package("flax"):
        print("no compile times: flax is not installed")
        return
    lengths = sorted(set(options.lengths or ((4, 16) if options.quick else LENGTHS)))
    builds = options.builds or (1 if options.quick else BUILDS)
    device, kept = model(options), record(options)
    shortest: dict[str, float] = {}
    for length in progress(in_time(lengths, options.seconds), "compile_time", len(lengths)):
        rows = []
        for row in measure(length, options.longest_loop, device, builds, options.repeats):
            row["against shortest"] = row["total"] / shortest.setdefault(row["way"], row["total"])
            kept.add(row)
            rows.append({key: value for key, value in row.items() if key not in HIDDEN})
        print(table(rows) + "\n", flush=True)
    kept.finish()
    conclude(options, kept, partial(draw, kept.rows) if kept.rows else None)
