"""How fast are gradients of recurrent networks by Newton's method and by parallel adjoints?

adjoints  a GRU with random weights over T steps with n units, alone or eight sequences at once: the
          forward pass, and the gradient of the states' mean square with respect to weights, first
          state and inputs
grid      GRU and LSTM over long sequences
layers    `deeppcr.nn.RNN` beside `flax.nnx.RNN`: gradients of cells of both in several sizes
training  a GRU learns to read handwritten digits row by row and pixel by pixel, and the parity of
          many bits, by `jax.lax.scan` and by deeppcr from the same weights; "nudged": from weights
          that differ in the last digit

"auto" is what `deeppcr.plan` chooses. The other gradients follow a forward pass by `jax.lax.scan`:
"backprop" is backpropagation, "recurrence" computes the Jacobians of all steps at once and solves
their linear recurrence sequentially, "pcr" solves it by parallel cyclic reduction. The products of
weights and inputs are computed for all steps at once in every program.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product

import jax

import depth
from experiments.bench import command
from experiments.bench.columns import BENCH, BEST, LABELS
from experiments.bench.engine import Case
from experiments.bench.plots import Figures, curves, dots, lines, loops, styled
from experiments.bench.summary import best, is_benchmark
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.gradients.layers import Layer, layers
from experiments.gradients.learner import Learner
from experiments.gradients.network import DIRECTIONS, Network, Size
from experiments.gradients.tasks import tasks

TAKES = "2 min"
TRAINING = {
    **LABELS,
    "program": BENCH["program"],
    "steps": "training steps",
    "last loss": "mean loss of the last 10 steps",
    "losses differ": "largest difference from the losses of lax.scan",
    "alike for": "steps until the losses differ by 0.001",
    "accuracy": "accuracy on the test set",
}
PARTS = ("adjoints", "grid", "layers", "training")
TABLES = dict.fromkeys(PARTS, BENCH)
TABLES |= {"training": TRAINING, "fastest programs": BEST}
BATCHES = (1, 8)
SIZES = ((10_000, 4), (2_000, 2), (2_000, 8), (2_000, 16))  # T and n of the adjoints
QUICK: tuple[tuple[int, int], ...] = ((1_000, 4),)
LEARNT_QUICKLY = ("rows",)
ON_CPU = [
    ("gru", 4, 1000),
    ("gru", 4, 10_000),
    ("gru", 1, 10_000),
    ("lstm", 4, 10_000),
]
ON_ACCELERATOR = [("lstm", 4, 10_000), ("gru", 16, 10_000), ("gru", 64, 1000)]


def adjoints(quick: bool) -> list[Size]:
    """The sizes of the adjoints."""
    on_cpu = jax.default_backend() == "cpu"
    sizes = QUICK if quick else SIZES if on_cpu else SIZES[:2]
    return [
        Size(Network("gru", n), length, batch, "adjoints")
        for length, n in sizes
        for batch in (BATCHES[-1:] if quick else BATCHES)
    ]


def grid(quick: bool) -> list[Size]:
    """The sizes of the grid, the most important first."""
    if quick:
        return [Size(Network("gru", 4), 1000)]
    rest = ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR
    return [Size(Network(kind, n), length) for kind, n, length in rest]


def jobs(options: argparse.Namespace) -> list[command.Job]:
    """All cases that the command line asks for."""
    quick, device, effort = options.quick, depth.at_hand(), Effort(options.repeats)
    are_few = quick or jax.default_backend() != "cpu"  # layers and trainings
    found: dict[str, list[command.Job]] = {part: [] for part in PARTS}
    for part, sizes, few in (
        ("adjoints", adjoints(quick), ["gradient"]),
        ("grid", grid(quick), ["forward"]),
    ):
        directions = few if quick else DIRECTIONS
        each = product(sizes, directions)
        found[part] = [partial(size.rows, direction, device, effort) for size, direction in each]
    if "layers" in options.parts:
        found["layers"] = [partial(one.rows, device, effort) for one in layers(are_few)]
    if "training" in options.parts:
        every = tasks()
        for name in LEARNT_QUICKLY if are_few else every:
            found["training"].append(Learner(every[name], every[name].steps).train)
    return [job for part in PARTS if part in options.parts for job in found[part]]


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Speedups of gradients, forward passes and layers; learning."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row["part"], []).append(row)
    found: Figures = {}
    better = "right of 1: deeppcr is faster"
    for direction, topic in (("gradient", "adjoints"), ("forward", "forward")):
        mine = [row for row in parts.get("adjoints", []) if row["direction"] == direction]
        ours = [row for row in mine if not row["baseline"] and "speedup" in row]
        if ours:
            ours.sort(key=lambda row: tuple(row[key] for key in ("L", "w", "batch")))
            found[topic] = dots(
                f"{direction.capitalize()} of a GRU: speedup over the best loop",
                ours,
                "speedup",
                f"speedup over the fastest of {loops(mine)} [times]\nopen: predicted; {better}",
                lambda row: f"T = {row['L']:,}, {row['w']} units, batch {row['batch']}",
                predicted="predicted speedup",
            )
    mine = [row for row in parts.get("grid", []) if row["batch"] == 1 and is_benchmark(row)]
    panels = {}
    for direction in DIRECTIONS:
        each = list(best([row for row in mine if row["direction"] == direction]))
        named = [row | {"net": f"{row['kind'].upper()}, {row['w']} units"} for row in each]
        if named:
            said = f"speedup over the fastest of\n{loops(mine)} [times]"
            panels[direction] = named, "speedup", said
    if panels:
        title, dashed = "GRU and LSTM, batch 1: the best parallel program", "predicted speedup"
        found["length"] = lines(
            title, panels, "L", "steps T", key="net", at=1, dashed=dashed, share=True
        )
    if ours := [row for row in parts.get("layers", []) if row["program"] == "auto"]:
        found["layers"] = dots(
            "Recurrent layers: gradient by deeppcr.nn.RNN",
            ours,
            "speedup",
            f"speedup over flax.nnx.RNN by {loops(parts['layers'])} [times]\n{better}",
            lambda row: str(row["kind"]),
            program=lambda row: f"T = {row['L']:,}, {row['w']} units, batch {row['batch']}",
        )
    if training := parts.get("training"):
        longest = sorted({(-row["L"], row["kind"], row["w"]) for row in training})[:3]
        tasks = {
            f"{kind}: T = {-length}, {n} units": [row for row in training if row["kind"] == kind]
            for length, kind, n in longest
        }
        found["training"] = curves("A GRU learns: the same curve by every program", tasks)
    return found


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    sizes = Size(Network("gru", 4), 300, 8, "adjoints"), Size(Network("lstm", 4), 300)
    cells = Layer("GRUCell", 50, 4, 8), Layer("ParaLSTM", 50, 4, 8)
    return [*(size.case("gradient") for size in sizes), *(cell.case() for cell in cells)]


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    options = command.parser("gradients", __doc__, PARTS).parse_args(argv)
    command.run(options, jobs(options), TABLES, summary=command.fastest, pictures=pictures)
