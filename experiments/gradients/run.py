"""How fast are gradients of recurrent networks by Newton's method and by parallel adjoints?

adjoints  a GRU with random weights over T steps with n units, alone or eight sequences at once: the
          forward pass, and the gradient of the states' mean square with respect to weights, first
          state and inputs
grid      GRU and LSTM over long sequences; the first case, a GRU of one unit over 100,000 steps, is
          the one in which DEER (Lim et al., ICLR 2024) reports its largest speedup
layers    `deeppcr.nn.RNN` beside `flax.nnx.RNN`: gradients of cells of both in several sizes
learning  a GRU learns to read handwritten digits row by row and pixel by pixel, to know nine men by
          recordings of several lengths (of aeon, if it is installed), and the parity of many bits,
          by `jax.lax.scan` and by deeppcr from the same weights; "nudged": from weights that differ
          in the last digit
speech    the LSTM of silero-vad, if it is installed, on synthetic speech

"auto" is what `deeppcr.plan` chooses. The other gradients follow a forward pass by `jax.lax.scan`:
"backprop" is backpropagation, "recurrence" computes the Jacobians of all steps at once and solves
their linear recurrence sequentially, "pcr" solves it by parallel cyclic reduction. The products of
weights and inputs are computed for all steps at once in every program.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import jax

import depth
from experiments.bench import command
from experiments.bench.columns import BENCH, BEST, LABELS
from experiments.bench.command import positive
from experiments.bench.engine import bench
from experiments.bench.programs import SCAN
from experiments.bench.progress import PROGRESS
from experiments.bench.summary import best
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.gradients import silero
from experiments.gradients.figure import pictures
from experiments.gradients.layers import layers
from experiments.gradients.learner import Learner
from experiments.gradients.network import DIRECTIONS, FEW, Network, Size
from experiments.gradients.speech import Detector
from experiments.gradients.tasks import tasks

TAKES = "6 min"
TRAINING = {
    **LABELS,
    "program": BENCH["program"],
    "steps": "training steps",
    "first loss": "loss before training",
    "last loss": "mean loss of the last 10 steps",
    "losses differ": "largest difference from the losses of lax.scan",
    "alike for": "steps until the losses differ by 0.001",
    "accuracy": "accuracy on the test set",
}
HEARD = {
    **LABELS,
    "program": BENCH["program"],
    "seconds": "length of the sound",
    "share of speech": "share of the frames with speech",
    "probabilities differ": "largest difference from the probabilities of lax.scan",
}
TABLES = dict.fromkeys(("adjoints", "grid", "layers", "learning", "speech"), BENCH)
TABLES |= {"training": TRAINING, "heard": HEARD, "fastest programs": BEST}
PARTS = ("adjoints", "grid", "layers", "learning", "speech")
BATCHES = (1, 8)
SIZES = ((10_000, 4), (10_000, 2), (10_000, 8), (2_000, 16))  # T and n of the adjoints
QUICK = ((1_000, 4),)
LEARNT_QUICKLY = ("rows",)
HEADLINE = Size(Network("gru", 1), 100_000)
UNITS = (1, 4, 16, 64)
ON_CPU = [
    *(("gru", n, length) for n in (1, 4) for length in (1000, 10_000)),
    ("lstm", 4, 10_000),
    ("gru", 16, 1000),
]
EVERYTHING: list[tuple[str, int, tuple[int, ...], tuple[int, ...]]]
EVERYTHING = [  # kind, batch, units, lengths
    ("gru", 1, UNITS, (10_000, 1000, 100_000)),
    ("gru", 16, UNITS, (10_000, 100_000)),
    ("lstm", 1, UNITS, (10_000, 1000, 100_000)),
    ("gru", 1, UNITS, (1_000_000,)),
    ("lstm", 1, UNITS, (1_000_000,)),
    ("gru", 8, UNITS, (10_000, 100_000)),
    ("lstm", 16, UNITS, (10_000,)),
    ("gru", 1, (2, 8, 32), (1000, 10_000, 100_000)),
    ("lstm", 1, (2, 8, 32), (1000, 10_000, 100_000)),
]
MOST_ENTRIES = 7e7  # of the inputs of a case: 280 MB


def adjoints(options: argparse.Namespace) -> list[Size]:
    """The sizes of the adjoints that the command line asks for."""
    usual: Sequence[tuple[int, int]] = QUICK if options.quick else SIZES
    batches = options.batches or (BATCHES[-1:] if options.quick else BATCHES)
    if options.lengths or options.widths:
        lengths = options.lengths or sorted({length for length, _ in usual})
        widths = options.widths or sorted({n for _, n in usual})
        usual = list(product(lengths, widths))
    return [
        Size(Network("gru", n), length, batch, "adjoints")
        for length, n in usual
        for batch in batches
    ]


def grid(quick: bool, platform: str) -> list[Size]:
    """The sizes of the grid, the most important first; all of them on an accelerator."""
    if quick:
        return [Size(Network("gru", 4), 1000, names=FEW)]
    if platform == "cpu":
        rest = [Size(Network(kind, n), length, names=FEW) for kind, n, length in ON_CPU]
        return [HEADLINE, *rest]
    found = [HEADLINE]
    for kind, batch, units, lengths in EVERYTHING:
        found += [Size(Network(kind, n), length, batch) for length in lengths for n in units]
    entries = {size: size.length * size.batch * size.network.n for size in found}
    return [size for size in entries if entries[size] <= MOST_ENTRIES]


def jobs(options: argparse.Namespace) -> list[command.Job]:
    """All cases that the command line asks for, the most important first."""
    on_cpu = jax.default_backend() == "cpu"
    device, effort = depth.at_hand(), Effort(options.repeats)
    found: dict[str, list[command.Job]] = {part: [] for part in PARTS}
    directions = dict.fromkeys(PARTS, options.directions or DIRECTIONS)
    if options.quick and not options.directions:
        directions |= {"adjoints": ["gradient"], "grid": ["forward"]}
    for part, sizes in (
        ("grid", grid(options.quick, jax.default_backend())),
        ("adjoints", adjoints(options)),
    ):
        each = product(sizes, directions[part])
        found[part] = [partial(size.rows, direction, device, effort) for size, direction in each]
    if "layers" in options.parts:
        found["layers"] = [partial(one.rows, device, effort) for one in layers(options.quick)]
    if "learning" in options.parts:
        every = tasks(options.aeon)
        if "vowels" not in every and not options.quick:
            where = f"in {options.aeon}" if options.aeon else "installed"
            PROGRESS.print(f"no vowels: aeon is not {where} (pip install --no-deps aeon)\n")
        for name in LEARNT_QUICKLY if options.quick else every:
            steps = options.steps or every[name].steps
            learner = Learner(every[name], steps)
            found["learning"].append(learner.train)
            if not options.quick:
                found["learning"].append(partial(_bench_learner, learner, device, effort))
    if "speech" in options.parts:
        arrays = silero.read_weights(options.silero)
        if arrays is None:
            where = f"in {options.silero}" if options.silero else "installed"
            PROGRESS.print(f"no speech: silero-vad is not {where}\n")
        else:
            detector = Detector(arrays, seconds=10 if options.quick else 60 if on_cpu else 240)
            found["speech"] = [
                lambda: bench(detector.case(), device, effort),
                detector.listen,
            ]
    chosen = {part: found[part] if part in options.parts else [] for part in PARTS}
    first = chosen["grid"][: len(directions["grid"])]
    rest = chosen["grid"][len(first) :]
    return [
        *chosen["adjoints"],
        *first,
        *chosen["layers"],
        *chosen["learning"],
        *chosen["speech"],
        *rest,
    ]


def _bench_learner(learner: Learner, device: depth.Device, effort: Effort) -> Iterator[Row]:
    return bench(learner.case(), device, effort)


def summary(rows: Sequence[Row]) -> Iterator[str | list[Row]]:
    """The fastest programs, and the speedups of "auto" in the adjoints."""
    yield command.part("fastest programs", best(rows))
    for part, direction in (*product(("adjoints",), DIRECTIONS), ("layers", "gradient")):
        ours = [row for row in rows if row["part"] == part and row["program"] == "auto"]
        found = [row for row in ours if row["direction"] == direction and "speedup" in row]
        if found:
            means, least = [], []
            for key in (f"over {SCAN}", "speedup"):
                each = [float(row[key]) for row in found]
                means.append(statistics.geometric_mean(each))
                least.append(min(each))
            yield (
                f"{part}, {direction}, auto: {means[0]:.2f}x {SCAN} (geometric mean; least "
                f"{least[0]:.2f}x), {means[1]:.2f}x the fastest loop (least {least[1]:.2f}x)"
            )


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    arguments = command.parser("gradients", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    add(
        "--directions",
        nargs="+",
        choices=DIRECTIONS,
        help="which directions (both; quick: one a part)",
    )
    add("--lengths", nargs="+", type=positive, metavar="T", help="numbers of steps (adjoints)")
    add("--widths", nargs="+", type=positive, metavar="N", help="numbers of units (adjoints)")
    add("--batches", nargs="+", type=positive, metavar="B", help="batch sizes (adjoints)")
    add("--steps", type=positive, metavar="N", help="training steps (by task)")
    add("--aeon", type=Path, metavar="PATH", help="read aeon's data from this wheel or folder")
    add("--silero", type=Path, metavar="PATH", help="read silero_vad from this wheel or folder")
    options = arguments.parse_args(argv)
    command.run(options, jobs(options), TABLES, summary=summary, pictures=pictures)
