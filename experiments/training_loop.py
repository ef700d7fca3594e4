"""Seconds to trace and compile a whole training loop, and microseconds a step: a list of modules against stacked, packed ones.

The network has 16 equal residual modules of 12 small arrays, 26,624 parameters in all; the loop is a jitted `jax.lax.scan` of 200
Adam steps. Each way is traced and compiled anew several times, of which the least counts; then all of them run in turn. What is
compared is all that training leaves behind: parameters and losses. "speedup" is over the faster of a list of modules and a
`jax.lax.scan` over stacked ones, both with plain Adam.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

import deeppcr
import depth
from experiments.common.baselines import SCAN
from experiments.common.builds import Way, compare
from experiments.common.options import conclude, in_time, model, parser, positive, record
from experiments.common.plots import figure
from experiments.common.table import table

Row = dict[str, Any]

WIDTH, BATCH = 16, 32
BUILDS = 5
LIST, PLAIN = "list, adam", f"{SCAN}, adam"
HIDDEN = ("min ms", "max ms", "repeats", "work", "predicted ms")  # of a printed row


@dataclass(frozen=True)
class Size:
    """How many modules the network has, and steps the loop."""

    modules: int = 16
    steps: int = 200


Loop = Callable[[Any, Array], Any]


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
WAYS: dict[str, tuple[Callable[[int], Any], Callable[[], Loop]]] = {
    LIST: (parameters, lambda: training(by_hand, ADAM)),
    PLAIN: (arrays, lambda: training(by_scan, ADAM)),
    "list, packed adam": (parameters, lambda: training(by_hand, deeppcr.pack(ADAM))),
    "stack, adam": (stacked, lambda: training(deeppcr.forward, ADAM)),
    "stack, packed adam": (stacked, lambda: training(deeppcr.forward, deeppcr.pack(ADAM))),
    "stack and adam packed": (
        stacked,
        lambda: training(deeppcr.forward, deeppcr.pack(ADAM), packed=True),
    ),
}


def way(name: str, size: Size) -> Way:
    """Training in one of the ways."""
    make, loop = WAYS[name]

    def arguments() -> tuple[Any, Array]:
        return make(size.modules), jax.random.normal(jax.random.key(1), (size.steps, BATCH, WIDTH))

    def comparable(result: tuple[Any, Array]) -> Any:
        params, losses = result
        if make is stacked:  # what each module is a `jax.tree_util.Partial` of
            params = [layer.args[0] for layer in params.unstack()]
        return params if make is arrays else _stacked(params), losses

    def iterations(params: Any, xs: Array) -> int:
        return deeppcr.plan(params, xs[0]).main.forward[0].iterations

    def told(result: tuple[Any, Any]) -> Row:
        return {"last loss": result[1][-1]}

    return Way(arguments, loop, comparable, name in (LIST, PLAIN), iterations, told)


def measure(size: Size, device: depth.Device, builds: int, repeats: int) -> Iterator[Row]:
    """Rows of all ways."""
    seconds: dict[str, float] = {}
    for row in compare({name: way(name, size) for name in WAYS}, PLAIN, device, builds, repeats):
        name = row.pop("way")
        seconds[name] = row["total"]
        said = {
            "way": name,
            "modules": size.modules,
            "steps": size.steps,
            "seconds": row.pop("total"),
        }
        said |= {
            "against list": seconds[LIST] / seconds[name],
            "us a step": 1e3 * row["ms"] / size.steps,
        }
        yield said | row


def draw(rows: list[Row], path: Path) -> None:
    """Seconds to compile and microseconds a step, by way."""
    names = [row["way"] for row in rows]
    with figure(path, columns=2) as axes:
        for key, title, one in zip(
            ("seconds", "us a step"),
            ("seconds to trace and compile", "microseconds a training step"),
            axes,
            strict=True,
        ):
            one.barh(
                names,
                [row[key] for row in rows],
                color=["0.5" if name in (LIST, PLAIN) else "C0" for name in names],
            )
            one.invert_yaxis()
            one.set_title(title)


def main(argv: list[str]) -> None:
    """Trace, compile and run, the ways in turn; print a table, and with --keep write the rows and the figure."""
    command = parser("training_loop", __doc__)
    command.add_argument(
        "--builds",
        type=positive,
        metavar="N",
        help=f"times that each is compiled ({BUILDS}, quick: 1)",
    )
    command.add_argument(
        "--modules", type=positive, metavar="N", help=f"of the network ({Size.modules}, quick: 4)"
    )
    command.add_argument(
        "--steps", type=positive, metavar="N", help=f"of training ({Size.steps}, quick: 20)"
    )
    options = command.parse_args(argv)
    usual = Size(4, 20) if options.quick else Size()
    size = Size(options.modules or usual.modules, options.steps or usual.steps)
    builds = options.builds or (1 if options.quick else BUILDS)
    device, kept = model(options), record(options)
    for each in in_time([size], options.seconds):
        kept.add(*measure(each, device, builds, options.repeats))
    kept.finish()
    print(
        table(
            [{key: value for key, value in row.items() if key not in HIDDEN} for row in kept.rows]
        )
    )
    conclude(options, kept, partial(draw, kept.rows) if kept.rows else None)
