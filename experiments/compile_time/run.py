"""How long do tracing and compiling take, as a stack of layers gets deeper?

layers    the gradient of a loss through L equal flax modules, in a list or stacked: a Python loop
          (up to 256 layers: from there on it takes minutes), a scan, deeppcr
training  a jitted `jax.lax.scan` of 200 Adam steps on 16 equal residual modules of 12 small arrays:
          a list of modules, stacked modules, packed ones. Parameters and losses are compared

Each program is traced and compiled from scratch several times, and the least times count. The
sequential programs are the Python loop and `jax.lax.scan`, for layers with unroll 1, 4 and 16; of
the training loops, the two with plain Adam.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.command import positive
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.programs import SCAN, UNROLLS
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.compile_time import training
from experiments.compile_time.figure import pictures
from experiments.models.data import find_package

Run = Callable[[Any, Array], Array]

PARTS = ("layers", "training")
WIDTH, BATCH = 16, 8
LENGTHS = (16, 64, 256, 1024)
LOOP, PLAIN = "Python loop", f"{SCAN}, stacked"
TAKES = "8 min"
COMMON = ("ms", "speedup", "over lax.scan", "predicted speedup", "depth speedup", "error", "note")
BOTH = {key: BENCH[key] for key in COMMON} | {"temp MB": BENCH["temp MB"]}
PROGRAM = {"program": "what runs; sequential programs first"}
SECONDS = {"seconds": "seconds to trace and compile together"}
LAYERS = {
    "L": "number of layers",
    **PROGRAM,
    **SECONDS,
    "against shortest": "the same / seconds of this program for the fewest layers",
    "trace s": "seconds to trace",
    "compile s": "seconds to compile",
    **BOTH,
}
TRAINING = {
    "modules": "number of modules",
    "steps": "training steps",
    **PROGRAM,
    **SECONDS,
    "against list": "seconds of the list of modules / seconds of this program",
    "us a step": "time of a training step, in microseconds",
    "last loss": "loss of the last step",
    **BOTH,
}


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


PROGRAMS: dict[str, tuple[Callable[[int], Any], Run]] = {
    PLAIN: (stacked_modules, partial(by_scan, 1)),
    **{
        f"{PLAIN}, unroll {unroll}": (stacked_modules, partial(by_scan, unroll))
        for unroll in UNROLLS
    },
    LOOP: (modules, by_hand),
    "nnx.scan, stacked": (stacked_modules, scanned),
    "deeppcr, list": (modules, deeppcr.forward),
    "deeppcr, stack": (lambda length: deeppcr.stack(modules(length)), deeppcr.forward),
}


def variant(name: str, length: int) -> Variant:
    """The gradient with respect to all layers, by one of the programs."""
    make, run = PROGRAMS[name]
    arguments = jax.block_until_ready((make(length), jnp.ones((BATCH, WIDTH))))

    def comparable(gradients: Any) -> Any:
        layers = deeppcr.unstack(gradients) if isinstance(gradients, deeppcr.Stack) else gradients
        return jax.tree.leaves(layers if make is stacked_modules else _stacked(layers))

    return Variant(
        jax.grad(lambda layers, x: jnp.mean(run(layers, x) ** 2)),
        arguments=[arguments],
        iterations=lambda: deeppcr.plan(*arguments).main.forward[0].iterations,
        comparable=comparable,
    )


def case(length: int, longest_loop: int) -> Case:
    """All programs through so many layers."""
    left_out = {f"{PLAIN}, unroll {unroll}" for unroll in UNROLLS if unroll >= length}
    left_out |= {LOOP} if length > longest_loop else set()
    every = {name: variant(name, length) for name in PROGRAMS if name not in left_out}
    loops = {name: one for name, one in every.items() if name == LOOP or name.startswith(PLAIN)}
    others = {name: one for name, one in every.items() if name not in loops}
    return Case({"part": "layers", "L": length}, [], loops, others)


def in_seconds(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows with the seconds to trace and to compile in front."""
    for row in rows:
        seconds = {"seconds": row["trace s"] + row["compile s"]} if "compile s" in row else {}
        keys = list(row)
        labels = {key: row[key] for key in keys[: keys.index("baseline") + 1]}
        yield labels | seconds | row


def main(argv: list[str]) -> None:
    """Trace, compile and run."""
    arguments = command.parser("compile_time", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    add("--lengths", nargs="+", type=positive, metavar="L", help="numbers of layers")
    add(
        "--longest-loop",
        type=positive,
        default=256,
        metavar="L",
        help="most layers of a Python loop (%(default)s)",
    )
    add("--modules", type=positive, metavar="N", help="modules of the training loop (16, quick: 4)")
    add("--steps", type=positive, metavar="N", help="training steps (200, quick: 20)")
    add(
        "--builds",
        type=positive,
        metavar="N",
        help="compilations of each program (3, training 5, quick: 1)",
    )
    options = arguments.parse_args(argv)
    device, effort = depth.at_hand(), Effort(options.repeats)
    builds = {"layers": 3, "training": 5}
    if options.builds or options.quick:
        builds = dict.fromkeys(PARTS, options.builds or 1)
    shortest: dict[str, float] = {}

    def layers(length: int) -> Iterator[Row]:
        one = case(length, options.longest_loop)
        for row in in_seconds(bench(one, device, effort, builds=builds["layers"])):
            first = shortest.setdefault(row["program"], row["seconds"])
            yield row | {"against shortest": row["seconds"] / first}

    def loops() -> Iterator[Row]:
        size = training.Size(options.modules, options.steps, options.quick)
        rows = bench(training.case(size), device, effort, builds=builds["training"])
        yield from training.compared(in_seconds(rows), size)

    jobs: list[command.Job] = []
    if "layers" in options.parts and not find_package("flax"):
        PROGRESS.print("no layers: flax is not installed")
    elif "layers" in options.parts:
        lengths = options.lengths or ((4, 16) if options.quick else LENGTHS)
        jobs += [partial(layers, length) for length in sorted(set(lengths))]
    jobs += [loops] if "training" in options.parts else []
    command.run(options, jobs, {"layers": LAYERS, "training": TRAINING}, pictures=pictures)
