"""At which depth and width is a stack of layers faster all at once than layer by layer?

Multilayer perceptrons of L layers with w units, z_l = a(z_{l-1} W_l + b_l), where a is tanh or relu
and weights and biases are uniform in +-1/sqrt(w), as in torch: the network of DeepPCR (Danieli et
al., NeurIPS 2023, section 4.1), which reports speedups of up to 30 forward and 200 backward on a
GPU. "forward" is the last state, "gradient" that of its mean square with respect to all weights,
biases and the input, "backward" the rest of the gradient after the forward pass, timed alone
(``--directions backward``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH, BEST
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.plots import Figures, loops, speedup_maps, styled
from experiments.bench.programs import Scan, baselines, fused, solver
from experiments.bench.summary import best, is_benchmark
from experiments.bench.table import Row
from experiments.bench.timing import Effort

TAKES = "2 min"
DIRECTIONS = ("forward", "gradient")
# The longest Python loop among the baselines:
LOOPS = {"forward": 64, "gradient": 64, "backward": 64}
LONGEST = 5.0  # seconds of one call
INPUTS = 2  # tuples of arguments

NEWTON = deeppcr.Newton(linearize="dense")
BLOCKS = deeppcr.Adjoint(linearize="dense")  # the adjoint of all layers at once
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "forward": {"auto": {}, "newton": {"method": NEWTON}},
    "gradient": {
        "auto": {},
        "sequential / blocks": {"method": "sequential", "adjoint": BLOCKS},
        "newton / blocks": {"method": NEWTON, "adjoint": BLOCKS},
    },
    "backward": {
        "auto": {"method": "sequential"},
        "blocks": {"method": "sequential", "adjoint": BLOCKS},
    },
}


@dataclass(frozen=True)
class Size:
    """A network and its batch."""

    kind: str
    length: int
    width: int
    batch: int


def sizes(quick: bool, on_cpu: bool) -> list[Size]:
    """What is measured, the most important first: on an accelerator narrow networks."""
    if quick:
        return [Size("tanh", length, 4, 1) for length in (1024, 512)]
    widths = (2, 8, 32) if on_cpu else (2, 8)
    found = [Size("tanh", *each, 1) for each in product((1024, 4096, 64), widths)]
    return found + [Size(kind, 1024, 8, n) for kind, n in (("tanh", 8), ("relu", 1))]


def network(size: Size, seed: int) -> tuple[dict[str, Array], Array]:
    """Layers, stacked, ``w: [L, w, w]`` and ``b: [L, w]``; and an input ``[batch, w]``."""
    # By numpy: jax would compile its generators anew for every case.
    random, bound = np.random.default_rng(seed), size.width**-0.5
    drawn = (
        random.uniform(-bound, bound, (size.length, size.width, size.width)),
        random.uniform(-bound, bound, (size.length, size.width)),
        random.standard_normal((size.batch, size.width)),
    )
    w, b, x = (jnp.asarray(array.astype(np.float32)) for array in drawn)
    return {"w": w, "b": b}, x


def step(kind: str, z: Array, layer: dict[str, Array]) -> Array:
    """One layer."""
    act = jnp.tanh if kind == "tanh" else jax.nn.relu
    return act(z @ layer["w"] + layer["b"][None])


def forward(kind: str, scan: Scan) -> Callable[..., Array]:
    """The last state, by ``scan``."""
    return lambda layers, x: scan(lambda z, layer: (step(kind, z, layer), None), x, layers)[0]


def gradient(kind: str, scan: Scan) -> Callable[..., Any]:
    """The gradient of its mean square."""
    run = forward(kind, scan)
    return jax.grad(lambda layers, x: jnp.mean(run(layers, x) ** 2), (0, 1))


def backward(kind: str, scan: Scan) -> Variant:
    """The rest of the gradient after the forward pass: a program that takes its residuals."""
    run = forward(kind, scan)

    def prepare(layers: dict[str, Array], x: Array) -> tuple[Any, Array]:
        last, pull = jax.vjp(run, layers, x)
        return pull, 2 * last / last.size

    return Variant(lambda pull, slope: pull(slope), prepare=jax.jit(prepare))


MAKERS: dict[str, Callable[[str, Scan], Any]] = {
    "forward": forward,
    "gradient": gradient,
    "backward": backward,
}


def case(size: Size, direction: str) -> Case:
    """The programs of a size and a direction."""
    make = partial(MAKERS[direction], size.kind)
    variants: dict[str, Any] = {}
    for name, options in VARIANTS[direction].items():
        variants[name] = make(partial(deeppcr.scan, batch_ndim=1, **options))
        if (method := options.get("method", "auto")) != "sequential":
            solve = solver(partial(step, size.kind), method, batch_ndim=1)
            solve = jax.jit(lambda layers, x, solve=solve: solve(x, layers))
            variants[name] = Variant(variants[name], solve=solve)
    labels = {"kind": size.kind, "L": size.length, "w": size.width, "batch": size.batch}
    loops: dict[str, Any] = baselines(make, size.length, LOOPS[direction])
    arguments = [network(size, seed) for seed in range(INPUTS)]
    return Case(
        labels | {"direction": direction},
        arguments=arguments,
        baselines=loops | fused(make, arguments[0], batch_ndim=1),
        variants=variants,
    )


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """A map of speedups for each direction, of tanh and batch 1."""
    baseline = loops([row for row in rows if is_benchmark(row)])
    found = [row for row in best(rows) if (row["kind"], row["batch"]) == ("tanh", 1)]
    drawn: Figures = {}
    for name in ("gradient", "forward"):
        if mine := [row for row in found if row["direction"] == name]:
            drawn[name] = speedup_maps(
                f"MLP, {name} (tanh, batch 1): speedup over the best loop",
                {"measured": (mine, "speedup"), "predicted": (mine, "predicted speedup")},
                ("L", "layers"),
                ("w", "units of a layer"),
                f"best parallel program over the fastest of {baseline}",
            )
    return drawn


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    return [case(Size("tanh", 64, 4, 1), direction) for direction in MAKERS]


def main(argv: list[str]) -> None:
    """Measure the sizes that the command line asks for."""
    arguments = command.parser("mlp", __doc__)
    add, what = arguments.add_argument, "which directions (forward, gradient)"
    add("--directions", nargs="+", choices=MAKERS, default=DIRECTIONS, help=what)
    options = arguments.parse_args(argv)
    device, effort = depth.at_hand(), Effort(options.repeats)
    chosen = sizes(options.quick, jax.default_backend() == "cpu")

    def rows(size: Size, direction: str) -> Iterator[Row]:
        return bench(case(size, direction), device, effort, LONGEST)

    command.run(
        options,
        [partial(rows, size, direction) for size in chosen for direction in options.directions],
        {"": BENCH, "fastest programs": BEST},
        summary=command.fastest,
        pictures=pictures,
    )
