"""How fast are gradients of recurrent programs of the sizes that people train?

networks  LSTM, GRU, a cell with layer norm, a linear RNN, peepholes, two layers and two directions,
          `flax.nnx.RNN`: value and gradient of the outputs' mean square by the weights, beside
          torch where it is installed, and beside an LSTM whose derivative is written by hand
wide      states that are matrices, selective state spaces, large batches, beside nested loops of 32
          steps under a `jax.checkpoint`
buffers   a step updates one entry of n: time and memory of n steps, which should be linear in n
forward   GRUs, forward pass
"""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, cast

import depth
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, bench
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.gradients.layers import Layer
from experiments.recurrent.compared import COLUMNS, compared, said
from experiments.recurrent.networks import TRAINED, Size
from experiments.recurrent.wide import BUFFERS, NETWORKS, PROGRAMS, beside_checkpoints

TAKES = "3 min"
PATIENCE = 5.0  # seconds of all calls of a program: wide states take seconds each
PARTS = ("networks", "wide", "buffers", "forward")
TABLES = dict.fromkeys(PARTS, BENCH) | {f"{part}, compared": COLUMNS for part in PARTS}
LAYER = Layer("OptimizedLSTMCell", 200, 128, 16, features=128)
FORWARD = [
    Size("GRU", units, 200 if units > 128 else 1000, batch)
    for units, batch in product((8, 64, 512), (1, 16))
]
QUICK: dict[str, list[Any]] = {
    "networks": [Size("LSTM", 64, 50, 8), LAYER._replace(length=50)],
    "wide": [PROGRAMS[0]._replace(length=64)],
    "buffers": [BUFFERS[0]],
    "forward": [FORWARD[0]],
}


def sizes(quick: bool) -> dict[str, list[Any]]:
    """What is measured, by part, the most important first."""
    if quick:
        return QUICK
    every: tuple[list[Any], ...] = [*TRAINED, LAYER], [*PROGRAMS, *NETWORKS], BUFFERS, FORWARD
    return dict(zip(PARTS, every, strict=True))


def measured(part: str, one: Any, device: depth.Device, effort: Effort) -> Iterator[Row]:
    """The rows of a program of a part."""
    if isinstance(one, Layer):
        return bench(layer(one), device, effort)
    if part in ("wide", "buffers"):
        return beside_checkpoints(one).rows(device, effort)
    direction = "forward" if part == "forward" else "gradient"
    return cast(Size, one).problem(part, direction).rows(device, effort)


def layer(one: Layer) -> Case:
    """`flax.nnx.RNN` and `deeppcr.nn.RNN`, among the networks."""
    labels = {"part": "networks", "kind": "LSTM, nnx.RNN", "w": one.units, "L": one.length}
    labels |= {"batch": one.batch, "direction": "gradient"}
    return dataclasses.replace(one.case(), labels=labels)


def summary(rows: Sequence[Row]) -> Iterator[Any]:
    """A table of all cases of each part, and what it comes to."""
    for part in PARTS:
        if lines := compared(rows, part):
            yield command.part(f"{part}, compared", lines)
            yield "\n".join(said(lines))


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    sizes = Size("LSTM", 16, 20, 8), Size("GRU", 8, 20, 1)
    wide = beside_checkpoints(PROGRAMS[0]._replace(size=8, length=32))
    return [layer(LAYER._replace(length=20)), wide.case(), *(one.problem().case() for one in sizes)]


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    options = command.parser("recurrent", __doc__, PARTS).parse_args(argv)
    device, effort = depth.at_hand(), Effort(options.repeats, patience=PATIENCE)
    jobs = [
        partial(measured, part, one, device, effort)
        for part, every in sizes(options.quick).items()
        if part in options.parts
        for one in every
    ]
    command.run(options, jobs, TABLES, summary=summary)
