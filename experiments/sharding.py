"""What does it take to put a chain's layers, its batch, or both on 8 devices?

chain    a training step of a deep stack: its batch, its layers, or both over the devices
scaling  its layers over 1 to 8 devices: of one stack, and of a stack that grows with them

On a CPU the devices are simulated: they share its cores, so speedups are below 1. Speedups are over
the fastest sequential program on one device (jax.lax.scan with unroll 1, 4 and 16, and up to 64
layers a Python loop), over plain lax.scan, and over the same method on one device.
"""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import deeppcr
import depth
from deeppcr.sharding import shard
from experiments.bench import command
from experiments.bench.costs import analyze
from experiments.bench.engine import Case, Outcome, Variant, measure
from experiments.bench.plots import Figures, bars, lines, styled
from experiments.bench.programs import SCAN, Scan, baselines
from experiments.bench.table import Row
from experiments.bench.timing import Effort

DEVICES = 8
PARTS = ("chain", "scaling")
MEASURED = "measured scaling"  # the part of the rows of the second
COUNTS = (8, 4, 2, 1)  # devices
SHARD = 64  # layers on each device
LOOP = 64  # the longest Python loop among the sequential programs
TOLERANCE = 1e-5  # relative to the largest entry: float32 sums in another order
HORIZON = 4.0  # sum of the step sizes of all layers
RATE = 0.1
TAKES = "2 min"
ROW = {
    "row": "size of the stack, and what lies on how many devices",
    "ms": "time of a training step, in milliseconds (median)",
    "speedup": "sequential ms / ms; above 1 is faster",
    "over one device": "time of the same method on one device / ms",
    "sequential ms": "time of the fastest sequential program on one device",
    "sequential": "that program",
    "lax.scan ms": "time of jax.lax.scan on one device",
    "over lax.scan": "lax.scan ms / ms",
    "depth speedup": "ratio of the depths: the limit on unlimited processors",
    "error": "largest difference of loss and weights from one device, relative",
    "iterations": "Newton iterations",
    "parameter bytes": "bytes of the parameters on one device",
    "note": "what is wrong",
}
SCALING = {"scaling": "strong: of one stack; weak: 64 layers a device", **ROW}


@dataclasses.dataclass(frozen=True)
class Size:
    """Number of layers, their width, and the batch size."""

    length: int
    width: int
    batch: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a training step on devices, and its method.

    Attributes:
        chain: number of devices for the layers.
        batch: number of devices for the batch, for each of these.
        method: of `deeppcr.solve`; or "lax.scan".
    """

    chain: int = 1
    batch: int = 1
    method: str = "newton"

    @property
    def name(self) -> str:
        """In words: "chain 4 x batch 2, newton"."""
        counts = {"chain": self.chain, "batch": self.batch}
        axes = [f"{axis} {count}" for axis, count in counts.items() if count > 1]
        return f"{' x '.join(axes) or 'one device'}{'-way' * (len(axes) == 1)}, {self.method}"


LAYOUTS = (
    Layout(batch=8, method=SCAN),
    Layout(chain=8),
    Layout(chain=8, method="sequential"),
    Layout(chain=4, batch=2),
    Layout(chain=4, batch=2, method="sequential"),
)


def weights(size: Size) -> dict[str, Any]:
    """Weights of all layers ``[L, w, w]`` and biases ``[L, w]``, on the host."""
    draw = np.random.default_rng(0).normal
    matrices = draw(size=(size.length, size.width, size.width)) / size.width**0.5
    biases = 0.1 * draw(size=(size.length, size.width))
    return {"w": matrices.astype(np.float32), "b": biases.astype(np.float32)}


def samples(size: Size) -> tuple[Any, Any]:
    """Inputs and targets, each ``[batch, w]``, on the host."""
    draw, shape = np.random.default_rng(1).normal, (size.batch, size.width)
    return draw(size=shape).astype(np.float32), draw(size=shape).astype(np.float32)


def layer_of(size: Size) -> Callable[[Array, Any], Array]:
    """A residual layer: ``z + h tanh(z w + b)``."""
    h = HORIZON / size.length
    return lambda z, p: z + h * jnp.tanh(z @ p["w"] + p["b"][None])


def training_step(last: Callable[[Any, Array], Array]) -> Callable[..., Any]:
    """A step of gradient descent, ``(weights, (z, targets)) -> (loss, weights)``."""

    def step(weights: Any, batch: tuple[Array, Array]) -> tuple[Array, Any]:
        def loss(weights: Any) -> Array:
            return jnp.square(last(weights, batch[0]) - batch[1]).mean()

        value, slopes = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda p, g: p - RATE * g, weights, slopes)

    return step


def by_loop(size: Size, scan: Scan = lax.scan) -> Callable[..., Any]:
    """The training step by a loop."""
    layer = layer_of(size)
    return training_step(lambda weights, z: scan(lambda z, p: (layer(z, p), None), z, weights)[0])


def by_chain(chain: deeppcr.Chain, mesh: Mesh, method: str) -> Callable[..., Any]:
    """The training step over the devices; its weights stay where they are."""
    options: Any = {"method": method, "adjoint": deeppcr.Sharded(mesh, "chain"), "batch_ndim": 1}

    def last(weights: Any, z: Array) -> Array:
        found: Array = deeppcr.solve(dataclasses.replace(chain, inputs=weights), z, **options).value
        return found

    along = {name: NamedSharding(mesh, P("chain")) for name in ("w", "b")}
    return jax.jit(training_step(last), out_shardings=(NamedSharding(mesh, P()), along))


def laid_out(size: Size, layout: Layout) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """The training step of a layout, and its arguments: weights, and inputs with targets."""
    axes = {"chain": layout.chain, "batch": layout.batch}
    if layout.method == SCAN:
        del axes["chain"]
    elif layout.batch == 1:
        del axes["batch"]
    devices = jax.devices()[: math.prod(axes.values())]
    types = (AxisType.Auto,) * len(axes)
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types, devices=devices)

    def put(tree: Any, *spec: Any) -> Any:
        return jax.device_put(tree, NamedSharding(mesh, P(*spec)))

    batch = put(samples(size), *(["batch"] if "batch" in axes else []))
    if layout.method == SCAN:
        return by_loop(size), (put(weights(size)), batch)
    chain = shard(deeppcr.Chain(layer_of(size), weights(size)), mesh)
    return by_chain(chain, mesh, layout.method), (chain.inputs, batch)


def iterations(size: Size) -> int:
    """Newton iterations of the chain."""
    chain = deeppcr.Chain(layer_of(size), weights(size))
    solve = partial(deeppcr.solve, method="newton", batch_ndim=1)
    return int(jax.jit(solve)(chain, samples(size)[0]).stats.iterations)


def rows(size: Size, layouts: Sequence[Layout], effort: Effort) -> Iterator[Row]:
    """A row for every layout, timed beside one device and the sequential programs there.

    Unknown cells are missing; a wrong program has a "note" and no speedup.
    """
    here = jax.device_put((weights(size), samples(size)), jax.devices()[0])
    loops = baselines(partial(by_loop, size), size.length, LOOP)
    alone = [Layout(method=layout.method) for layout in layouts if layout.method != SCAN]
    programs = {layout: laid_out(size, layout) for layout in dict.fromkeys([*alone, *layouts])}
    variants = {
        layout.name: Variant(run, [arguments], statistics=_loss)
        for layout, (run, arguments) in programs.items()
    }
    plain = {name: Variant(loop, statistics=_loss) for name, loop in loops.items()}
    found = measure(Case({}, [here], plain, variants, TOLERANCE), effort)
    scan, seconds = found[SCAN], {name: _seconds(one) for name, one in found.items()}
    if not scan.timing:  # all others are compared with it
        raise RuntimeError(f"{SCAN} on one device: {scan.note}")
    fastest = min((name for name in loops if found[name].is_right), key=seconds.__getitem__)
    sequential = depth.analyze(loops[SCAN], *here).depth
    for layout in layouts:
        row: Row = {"row": f"{size.length} layers of {size.width}, {layout.name}"}
        row |= {"devices": layout.chain * layout.batch, "L": size.length}
        row |= {"w": size.width, "batch": size.batch, "sequential": fastest}
        row |= {"sequential ms": 1e3 * seconds[fastest], "lax.scan ms": 1e3 * seconds[SCAN]}
        many, (program, arguments) = found[layout.name], programs[layout]
        row |= {"note": many.note} if many.note else {}
        if many.timing:
            row |= many.times() | many.row | {"loss, one device": scan.row["loss"]}
            leaves = jax.tree.leaves(arguments[0])
            row["parameter bytes"] = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
            if layout.method == "newton":
                row["iterations"] = iterations(size)
            deep = analyze(program, *arguments, trips=row.get("iterations")).depth
            row |= {"sequential depth": sequential, "depth": deep}
            row["depth speedup"] = sequential / deep
        if many.is_right:
            one = SCAN if layout.method == SCAN else Layout(method=layout.method).name
            others = {"speedup": fastest, "over lax.scan": SCAN, "over one device": one}
            row |= {key: seconds[name] / seconds[layout.name] for key, name in others.items()}
        yield row


def _loss(result: tuple[Array, object]) -> Row:
    return {"loss": float(result[0])}


def _seconds(one: Outcome) -> float:
    return one.timing.median if one.timing else math.inf


def scaling(
    count: int, counts: Sequence[int], size: tuple[int, int, int], effort: Effort
) -> Iterator[Row]:
    """Equal shards, on so many devices; the largest stack on fewer of them, too.

    The largest stack belongs to both kinds of scaling: its row on most devices is there twice.
    """
    largest = count == max(counts)
    layouts = [Layout(chain=each) for each in (sorted(counts) if largest else [count])]
    found = list(rows(Size(size[0] * count, *size[1:]), layouts, effort))
    for kind, some in (("strong", found if largest else []), ("weak", found[-1:])):
        yield from ({"part": MEASURED, "scaling": kind} | row for row in some)


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Times against the number of devices; without them, of what was measured."""
    title = "Training step over the devices of this machine (down is better)"
    measured = [row for row in rows if row["part"] == MEASURED]
    panels = {}
    for kind, said in {"strong": "same chain", "weak": "longer chain"}.items():
        mine = [row for row in measured if row["scaling"] == kind and "ms" in row]
        plain = {"program": "lax.scan, one device", "baseline": True}
        ours = [row | {"program": "Newton, chain over the devices"} for row in mine]
        mine = [row | {"ms": row["lax.scan ms"]} | plain for row in mine] + ours
        if mine:
            panels[said] = (mine, "ms", "time of a training step [ms]")
    if panels:
        said = "devices (on a CPU they share its cores)"
        return {"measured": lines(title, panels, "devices", said, share=True)}
    timed = [row for row in rows if "ms" in row]
    keys = {"ms": "time [ms]"}
    return {"times": bars(title, timed, keys, lambda row: str(row["row"]))} if timed else {}


def has_devices() -> bool:
    """Whether this process has 8 devices; on a CPU jax simulates them, if it has not started."""
    with contextlib.suppress(RuntimeError):  # jax has started, perhaps with enough of them
        jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax.device_count() >= DEVICES


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    arguments = command.parser("sharding", __doc__)
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="which (all)")
    options = arguments.parse_args(argv)
    if not has_devices():
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            sys.exit(f"expected {DEVICES} devices, which jax simulates, got {jax.device_count()}")
        again = [sys.executable, "-m", "experiments", "sharding", *argv]
        os.execve(sys.executable, again, os.environ | {"JAX_PLATFORMS": "cpu"})
    effort, quick = Effort(options.repeats), options.quick
    # Quick stacks are longer than the longest Python loop, which takes long to compile.
    size, layouts = (Size(128, 4, 8), LAYOUTS[:2]) if quick else (Size(512, 16, 32), LAYOUTS)

    def chain() -> Iterator[Row]:
        return ({"part": "chain"} | row for row in rows(size, layouts, effort))

    counts, each = (COUNTS[::3], (16, 4, 8)) if quick else (COUNTS, (SHARD, 16, 32))
    cases: list[command.Job] = [chain] if "chain" in options.parts else []
    if "scaling" in options.parts:
        cases += [partial(scaling, count, counts, each, effort) for count in counts]
    tables = {"chain": ROW, MEASURED: SCALING}
    command.run(options, cases, tables, pictures=pictures, together=tables)
