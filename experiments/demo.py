"""What does deeppcr.scan gain on this machine, where it takes the place of jax.lax.scan?

digits  a GRU of 8 units reads lines of handwritten digits, a row of 8 pixels in a step, and names
        each of them: 8 sequences of 512 steps
filter  a Kalman filter follows a body that it sees through noise, and learns how the body moves:
        4 states, 1000 steps

Each is trained from the same weights on the same data by both, some steps of each in turn. What
all steps at once would take on a GPU is predicted beside it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
from experiments.bench import command
from experiments.bench.columns import LABELS
from experiments.bench.plots import Figures, curves, styled
from experiments.bench.programs import SCAN, Scan
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import build
from experiments.models import cells, data
from experiments.models.training import adam

TAKES = "1 min"
OURS = "deeppcr.scan"
SCANS: Mapping[str, Scan] = {SCAN: jax.lax.scan, OURS: deeppcr.scan}
FAR = "H100"
TURN = 25  # steps of a training before it is the other's turn: a machine that slows down slows both
RATE = 1e-2  # of Adam
TRAINING = {
    **LABELS,
    "steps": "training steps",
    "program": "what runs the steps of the chain",
    "compile s": "seconds to trace and compile a training step",
    "train s": "seconds of all training steps",
    "first loss": "of the first training step",
    "last loss": "of the last one",
    "losses differ": "largest difference from the losses of lax.scan, relative to the largest loss",
    "accuracy": "accuracy on held-out digits",
}
STEP = {
    "training": "which one",
    "device": "of a training step that was measured, or of a gradient that is predicted",
    f"{SCAN} ms": "time by lax.scan, in milliseconds",
    f"{OURS} ms": "time by deeppcr.scan",
    "speedup": "of deeppcr.scan over lax.scan",
    "by": "what deeppcr.scan runs: forward / backward",
}


class Task(NamedTuple):
    """What is trained.

    Attributes:
        labels: the cells that say what the chain is.
        first: the weights before the first step.
        batches: the data of each step.
        loss: ``(scan, weights, *batch) -> loss``, which calls the scan once.
        accuracy: of weights; None if there is none.
    """

    labels: Row
    first: Any
    batches: Sequence[tuple[Array, ...]]
    loss: Callable[..., Array]
    accuracy: Callable[[Any], float] | None = None


def digits(steps: int, length: int = 64, lines: int = 8, units: int = 8) -> Task:
    """Lines of handwritten digits, cut into rows of pixels.

    Args:
        steps: of the training.
        length: digits in a line: 8 steps of the network each.
        lines: in a batch.
        units: of the network.
    """
    split, classes = data.digits(), 10

    def batch(x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
        """Rows of pixels ``[8 length, lines, 8]``, and the class of each digit."""
        lines = len(y) // length
        rows = x.reshape(lines, 8 * length, 8)
        return jnp.asarray(rows.swapaxes(0, 1)), jnp.asarray(y.reshape(lines, length).T)

    def scores(scan: Scan, weights: Any, rows: Array) -> Array:
        """``[length, lines, classes]``, from the state after the last row of each digit."""

        def step(h: Array, x: Array) -> tuple[Array, Array]:
            h = cells.gru(weights["cell"], h, x)
            return h, h

        states = scan(step, jnp.zeros((rows.shape[1], units)), rows)[1]
        return cells.read(weights["out"], states[7::8])

    def loss(scan: Scan, weights: Any, rows: Array, y: Array) -> Array:
        chances = jax.nn.log_softmax(scores(scan, weights, rows))
        return -jnp.take_along_axis(chances, y[..., None], axis=-1).mean()

    def accuracy(weights: Any) -> float:
        count = len(split.test_y) // length * length
        rows, y = batch(split.test_x[:count], split.test_y[:count])
        found = jax.jit(partial(scores, jax.lax.scan))(weights, rows).argmax(axis=-1)
        return float(np.mean(found == y))

    chosen = data.batches(len(split.train_y), steps, lines * length, seed=0)
    out = {"W": jnp.zeros((units, classes)), "b": jnp.zeros(classes)}
    return Task(
        {"kind": "GRU", "L": 8 * length, "w": units, "batch": lines},
        {"cell": cells.gru_weights(units, 8), "out": out},
        [batch(split.train_x[rows], split.train_y[rows]) for rows in chosen],
        loss,
        accuracy,
    )


def tracking(steps: int, length: int = 1000) -> Task:
    """A body on a ring, seen through noise, and the Kalman filter that follows it.

    Args:
        steps: of the training.
        length: times at which the body is seen.
    """
    # Position and velocity in a plane: the body is pulled to the centre, and pushed at random.
    draw = np.random.default_rng(0).standard_normal
    z, seen = np.array([3.0, 0.0, 0.0, 3.0]), []
    for _ in range(length):
        z = z + 0.1 * np.concatenate([z[2:], -z[:2]]) + 0.1 * np.concatenate([[0, 0], draw(2)])
        seen.append(z[:2] + draw(2))

    def loss(scan: Scan, weights: Any, seen: Array) -> Array:
        """The negative log likelihood of an observation, without its constant."""
        F, H, Q, R = weights["F"], weights["H"], *(jnp.exp(weights[name]) for name in "qr")

        def step(carry: tuple[Array, Array], y: Array) -> tuple[tuple[Array, Array], Array]:
            mean, cov = F @ carry[0], F @ carry[1] @ F.T + jnp.diag(Q)
            S = H @ cov @ H.T + jnp.diag(R)
            gain = jax.scipy.linalg.solve(S, H @ cov, assume_a="pos").T
            off, root = y - H @ mean, jnp.linalg.cholesky(S)
            white = jax.scipy.linalg.solve_triangular(root, off, lower=True)
            surprise = 0.5 * white @ white + jnp.log(jnp.diag(root)).sum()
            return (mean + gain @ off, cov - gain @ S @ gain.T), surprise

        return scan(step, (jnp.zeros(4), 10 * jnp.eye(4)), seen)[1].mean()

    first = {"F": 0.9 * jnp.eye(4), "H": jnp.eye(2, 4), "q": jnp.zeros(4), "r": jnp.zeros(2)}
    batch = (jnp.asarray(np.array(seen), jnp.float32),)
    labels = {"kind": "Kalman filter", "L": length, "w": 4 + 4 * 4, "batch": 1}
    return Task(labels, first, [batch] * steps, loss)


def update(task: Task, scan: Scan) -> Callable[..., tuple[Any, Array]]:
    """A step of a training: ``((weights, mean, square, index), *batch) -> the same, loss``."""
    steps = len(task.batches)

    def step(training: Any, *batch: Array) -> tuple[Any, Array]:
        weights, mean, square, index = training
        value, gradient = jax.value_and_grad(partial(task.loss, scan))(weights, *batch)
        moved = adam(weights, mean, square, gradient, index, RATE, steps)
        return (*moved, index + 1), value

    return step


def train(name: str, task: Task) -> Iterator[Row]:
    """A row for each scan: seconds, and all losses."""
    zeros = jax.tree.map(jnp.zeros_like, task.first)
    first, steps = (task.first, zeros, zeros, jnp.int32(0)), len(task.batches)
    built, trainings = {}, dict.fromkeys(SCANS, first)
    for program, scan in SCANS.items():
        PROGRESS.say(f"compiling the training of {name} by {program}")
        built[program] = build(update(task, scan), first, *task.batches[0])
        jax.block_until_ready(built[program].call(first, *task.batches[0]))  # is not timed
    losses: dict[str, list[Array]] = {program: [] for program in SCANS}
    seconds = dict.fromkeys(SCANS, 0.0)
    turns = list(pairwise([*range(0, steps, TURN), steps]))
    for begin, end in PROGRESS.steps(f"training {name}", turns, len(turns)):
        for program in SCANS:
            start = time.perf_counter()
            for batch in task.batches[begin:end]:
                trainings[program], loss = built[program].call(trainings[program], *batch)
                losses[program].append(loss)
            jax.block_until_ready(trainings[program])
            seconds[program] += time.perf_counter() - start
    found = {program: np.array(values) for program, values in losses.items()}
    apart = np.abs(found[OURS] - found[SCAN]).max() / np.abs(found[SCAN]).max()
    for program in SCANS:
        row: Row = {"part": name, **task.labels, "steps": steps, "program": program}
        row["compile s"] = built[program].lower + built[program].compile
        row["train s"] = seconds[program]
        row["first loss"], row["last loss"] = (float(found[program][k]) for k in (0, -1))
        row |= {"losses differ": float(apart)} if program == OURS else {}
        row |= {"accuracy": task.accuracy(trainings[program][0])} if task.accuracy else {}
        yield row | {"losses": found[program].tolist()}


def planned(task: Task, device: str | None) -> deeppcr.Plan:
    """What `deeppcr.plan` says of the scan that a task calls."""
    found = []

    def scan(step: Any, init: Any, xs: Any) -> Any:
        found.append(deeppcr.plan(step, init, xs, device=device))
        return jax.lax.scan(step, init, xs)

    task.loss(scan, task.first, *task.batches[0])
    return found[0]


def measure(name: str, task: Task) -> Iterator[Row]:
    """A row for each training; then a training step here, and a gradient on a GPU."""
    trained = []
    for row in train(name, task):
        trained.append(row)
        yield row
    PROGRESS.say(f"planning {name}")
    here, far = planned(task, None), planned(task, FAR)
    measured = [1e3 * row["train s"] / row["steps"] for row in trained]
    predicted = [1e3 * one.seconds for one in (far.autodiff, far.gradient[0])]
    for device, plan, (plain, ours) in (
        ("here, measured", here, measured),
        (f"{FAR}, predicted", far, predicted),
    ):
        row = {"part": "a step", "training": name, "device": device, f"{SCAN} ms": plain}
        yield row | {f"{OURS} ms": ours, "speedup": plain / ours, "by": plan.gradient[0].name}


def conclusion(rows: Sequence[Row]) -> Iterator[str]:
    """What was gained here, in one sentence."""
    pairs: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] != "a step":
            pairs.setdefault(row["part"], []).append(row)
    gains, whole, apart = [], [], 0.0
    for name, (plain, ours) in ((name, pair) for name, pair in pairs.items() if len(pair) == 2):
        gains.append(f"{name} {plain['train s'] / ours['train s']:.1f}")
        both = [row["compile s"] + row["train s"] for row in (plain, ours)]
        whole.append(f"{both[0] / both[1]:.1f}")
        apart = max(apart, ours["losses differ"])
    if gains:
        yield (
            f"{OURS} trained {' and '.join(gains)} times as fast as {SCAN}, compiling included "
            f"{' and '.join(whole)} times, and the losses are the same to {apart:.0e}."
        )


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """The losses by training step, where they lie on each other, and by time."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] != "a step":
            end = row["compile s"] + row["train s"]
            seconds = np.linspace(row["compile s"], end, row["steps"])
            title = f"{row['part']}: {row['kind']}, {row['L']} steps"
            panels.setdefault(title, []).append(row | {"seconds": seconds})
    by_time = "The same losses sooner", panels, "seconds, from compiling on", "seconds"
    return {
        "losses": curves(f"{SCAN} and {OURS} learn the same", panels),
        "seconds": curves(*by_time),
    }


def main(argv: list[str]) -> None:
    """Train and plan."""
    options = command.parser("demo", __doc__).parse_args(argv)
    digit_steps, filter_steps = (50, 10) if options.quick else (1600, 400)
    tasks = {"digits": partial(digits, digit_steps), "filter": partial(tracking, filter_steps)}

    def rows(name: str) -> Iterator[Row]:
        return measure(name, tasks[name]())

    tables = {**dict.fromkeys(tasks, TRAINING), "a step": STEP}
    jobs = [partial(rows, name) for name in tasks]
    command.run(options, jobs, tables, summary=conclusion, pictures=pictures, together=["a step"])
