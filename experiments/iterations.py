"""How many Newton iterations does each linearisation take, and does a result after k suffice?

forms       every linearisation on every chain: iterations, error, memory, time beside lax.scan
accuracy    the error after k iterations
width       time and memory of a GRU against its width
damping     Newton's method with and without damping on a trained GRU that samples waves from its
            own output, and on chaos

An error is the largest difference from the states of `jax.lax.scan`, relative to the largest state.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import deeppcr
import depth
from deeppcr import BlockDiagonal, Diagonal, Newton, Scalar, TrustRegion
from experiments.bench import command
from experiments.bench.columns import BENCH, BEST, LABELS
from experiments.bench.engine import Case, bench, distance, solve_statistics
from experiments.bench.plots import Figures, dots, lines, loops, styled
from experiments.bench.programs import baselines, by_loop, by_method, solver
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import autoregressive, chains
from experiments.models.chains import Model

TAKES = "3 min"
CASE = {"chain": "kind of chain", "w": LABELS["w"], "L": LABELS["L"]}
RATE = {"growth rate": "factor by which a step amplifies differences, in the mean"}
ROWS = {**CASE, **RATE, **{key: text for key, text in BENCH.items() if key not in LABELS}}
ACCURACY = {
    **CASE,
    "form": "linearisation",
    "k": "Newton iterations",
    "ended": BENCH["ended"],
    "error": BENCH["error"],
    "residual": BENCH["residual"],
}
TABLES = dict.fromkeys(("forms", "width", "damping"), ROWS)
TABLES |= {"accuracy": ACCURACY, "fastest programs": CASE | BEST}
PARTS = ("forms", "accuracy", "width", "damping")

Chain = tuple[str, int, int]  # kind, size, length
TRAINED: list[Chain] = [("residual", 32, 100), ("diffusion", 64, 200)]
SHORT: list[Chain] = [(kind, 16, 1000) for kind in ("tanh", "gru", "lstm")]
LONG: list[Chain] = [("gru", 4, 10_000), ("lstm", 4, 10_000)]
CHAINS = [*SHORT, *LONG, *TRAINED, ("chaotic", 1, 1000)]
CURVES: list[Chain] = [*SHORT[:2], *TRAINED, ("chaotic", 1, 256)]
COUNTS = {
    "dense": (1, 2, 3, 4, 6, 16, 64),
    "diagonal": (1, 4, 16),
    "scalar": (1, 4, 16, 64),
}
QUICK_COUNTS = {"dense": (1, 3), "diagonal": (4,), "scalar": (4,)}
QUICK_FORMS = ("dense", "scalar", "plain", "trust region")
WIDTHS, WIDE_LENGTH = (2, 8, 32, 128), 1024
WIDE = {  # which forms are compared over the width
    "dense": Newton(linearize="dense"),
    "diagonal": Newton(linearize=Diagonal(probes=0)),
    "blocks 4": Newton(linearize=BlockDiagonal(4)),
}
SEEDS, SAMPLED = 2, 1000
LOGISTIC, LOGISTIC_LENGTH = (3.2, 3.6, 3.9), 256
DAMPED = {  # at most 300 iterations
    "plain": Newton(max_iterations=300),
    "trust region": Newton(max_iterations=300, damping=TrustRegion()),
}
LOOP = 128  # the longest Python loop among the baselines
LONGEST = 10.0  # seconds; what is predicted to take longer is not run
IMAGES = 128  # of the classifier


@dataclasses.dataclass(frozen=True)
class Problem:
    """A chain to solve: its kind, and its model without a batch."""

    kind: str
    model: Model

    @property
    def width(self) -> int:
        """w, the numbers in a state."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.model.z0))

    @property
    def scalar(self) -> Any:
        """The best multiple of the identity that is known beforehand."""
        return Scalar(of_input=lambda x: x["a"]) if self.kind == "diffusion" else "identity"

    def labels(self, part: str) -> Row:
        """The first cells of its rows."""
        return {"part": part, "chain": self.kind, "w": self.width, "L": self.model.length}


def problem(kind: str, size: int, length: int) -> Problem:
    """A chain of a kind; ``size`` is its width unless its weights are trained."""
    key = jax.random.key(0)
    make: dict[str, Callable[[], Model]] = {
        "tanh": lambda: chains.mlp_chain(size, length, "tanh", key),
        "relu": lambda: chains.mlp_chain(size, length, "relu", key),
        "gru": lambda: chains.recurrent_chain("gru", size, length, key),
        "lstm": lambda: chains.recurrent_chain("lstm", size, length, key),
        "residual": lambda: chains.residual_chain(length),
        "diffusion": lambda: chains.ddim_chain(chains.diffusion_params(), length, key),
        "chaotic": lambda: chains.logistic_chain(length),
    }
    return Problem(kind, make[kind]())


def forms(problem: Problem) -> Iterator[tuple[str, Newton]]:
    """Name and method of every form for a chain."""
    blocks, width = 2 if problem.kind == "lstm" else 4, problem.width
    yield "dense", Newton(linearize="dense")
    if width > blocks:
        yield f"blocks {blocks}", Newton(linearize=BlockDiagonal(blocks))
    if width > 1:  # else the diagonal is all there is
        yield "diagonal", Newton(linearize=Diagonal(probes=0))
    if width > 4:
        yield "4 probes", Newton(linearize=Diagonal(probes=4))
    yield "scalar", Newton(linearize=problem.scalar)
    yield "zero", Newton(linearize="zero")


class Bench(NamedTuple):
    """The cases of all parts: the model that predicts times, how long programs are timed, forms."""

    device: depth.Device
    effort: Effort
    few: tuple[str, ...] | None = None  # names of the forms to run; None for all

    def case(self, labels: Row, model: Model, methods: Mapping[str, Newton]) -> Case:
        """Every loop and every method."""
        names = [name for name in methods if self.few is None or name in self.few]
        return Case(
            labels,
            arguments=[(model.z0, model.inputs)],
            baselines=baselines(partial(by_loop, model.step), model.length, LOOP),
            variants={name: by_method(model.step, methods[name]) for name in names},
        )

    def rows(self, labels: Row, model: Model, methods: Mapping[str, Newton]) -> Iterator[Row]:
        """A row for every loop and every method."""
        return bench(self.case(labels, model, methods), self.device, self.effort, LONGEST)

    def forms(self, chain: Chain) -> Iterator[Row]:
        """Every form on one chain."""
        found = problem(*chain)
        return self.rows(found.labels("forms"), found.model, dict(forms(found)))

    def width(self, width: int) -> Iterator[Row]:
        """Forms whose blocks differ in width, on a GRU."""
        found = problem("gru", width, WIDE_LENGTH)
        return self.rows(found.labels("width"), found.model, WIDE)

    def damping(self, name: str, make: Callable[[], Model]) -> Iterator[Row]:
        """Plain and damped, with the growth rate of differences."""
        model = make()
        once = partial(deeppcr.solve, method=Newton(max_iterations=1, record=True))
        solution = jax.jit(once)(deeppcr.Chain(model.step, model.inputs), model.z0)
        labels = Problem(name, model).labels("damping")
        rate = float(solution.stats.growth_rate)
        return self.rows(labels | {"growth rate": rate}, model, DAMPED)


def accuracy(chain: Chain, counts: Mapping[str, Sequence[int]]) -> Iterator[Row]:
    """The error of several linearisations after k iterations, until they converge."""
    found = problem(*chain)
    model = found.model
    if found.kind == "residual":
        model = chains.residual_chain(chain[2], batch=(IMAGES,))
    expected = jax.jit(by_loop(model.step, lax.scan))(model.z0, model.inputs)
    scalar = found.scalar if found.kind == "diffusion" else Scalar()
    methods = {"dense": Newton(linearize="dense"), "diagonal": Newton(linearize=Diagonal(probes=0))}
    methods |= {"scalar": Newton(linearize=scalar)}
    labels, batch_ndim = found.labels("accuracy"), jax.tree.leaves(model.z0)[0].ndim - 1

    def judged(states: Any) -> Row:
        return finite("error", distance(states, expected))

    for name, form in methods.items():
        if name == "diagonal" and found.width == 1:  # it is dense
            continue
        yield {**labels, "form": name, "k": 0, "ended": "not converged"} | judged(guessed(model))
        for count in counts[name]:
            PROGRESS.say(f"solving by {name}, {count} iterations")
            method = dataclasses.replace(form, max_iterations=count, on_failure="return")
            solution = jax.jit(solver(model.step, method, batch_ndim))(model.z0, model.inputs)
            found_by = solve_statistics([solution])
            row = {**labels, "form": name, "k": found_by["iterations"], "ended": found_by["ended"]}
            yield row | judged(solution.trajectory) | finite("residual", found_by["residual"])
            if solution.converged:
                break


def guessed(model: Model) -> Any:
    """The states after no iteration: the steps applied to the initial guess."""
    apply = jax.vmap(model.step)
    shapes = jax.eval_shape(by_loop(model.step, lax.scan), model.z0, model.inputs)
    constant = jax.tree.map(lambda z, x: jnp.broadcast_to(z, x.shape), model.z0, shapes)
    guess = apply(constant, model.inputs)
    moved = jax.tree.map(lambda z, after: jnp.concatenate([z[None], after[:-1]]), model.z0, guess)
    return apply(moved, model.inputs)


def finite(name: str, value: float) -> Row:
    """The cell of a row; none after an overflow, for which JSON has no number."""
    return {name: value} if np.isfinite(value) else {}


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Iterations and speed by chain, errors by iteration, time and memory by width, damping."""
    parts: dict[str, list[Row]] = {part: [] for part in PARTS}
    for row in rows:
        parts[row["part"]].append(row)
    shown = ("dense", "blocks 2", "blocks 4", "diagonal", "4 probes", "scalar", "zero")
    solved = [row for row in parts["forms"] if row["program"] in shown]
    damped = [row for row in parts["damping"] if row["program"] in DAMPED]
    better = "right of 1: deeppcr is faster"
    over = f"speedup over the fastest of {loops(parts['forms'])} [times]\n{better}"
    few = "iterations (fewer is better); open: not converged"
    faster = "Newton's method forward: speedup over the best loop"
    drawn = {
        "forms": ("Iterations by chain and linearisation", solved, "iterations", few, None),
        "speed": (faster, solved, "speedup", over, 1),
        "damping": ("Hard chains with and without damping", damped, "iterations", few, None),
    }
    found: Figures = {}
    for topic, (title, mine, key, said, at) in drawn.items():
        if any(key in row for row in mine):
            ended = lambda row: row.get("ended") != "converged"  # noqa: E731
            found[topic] = dots(title, mine, key, said, _chain, is_open=ended, at=at)
    if mine := [row | {"case": _chain(row)} for row in parts["accuracy"] if "error" in row]:
        kinds = dict.fromkeys(row["form"] for row in mine)
        near = [row | {"error": min(max(row["error"], 1e-8), 1e2)} for row in mine]
        panels = {
            form: ([row for row in near if row["form"] == form], "error", "error [ratio]")
            for form in kinds
        }
        title = "Error after each iteration, by linearisation (down is better)"
        said = "iterations k"
        found["error"] = lines(title, panels, "k", said, key="case", xscale="linear", share=True)
    if mine := [row for row in parts["width"] if "ms" in row]:
        title = f"Forward pass of a GRU, L = {mine[0]['L']:,} (down is better)"
        keys = {"time of a solve": ("ms", "time [ms]"), "memory": ("temp MB", "temporaries [MB]")}
        panels = {name: (mine, *each) for name, each in keys.items()}
        found["width"] = lines(title, panels, "w", "width of the state")
    return found


def _chain(row: Row) -> str:
    return f"{row['chain']}, {row['w']} x {row['L']:,}"


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    found, bench = problem("gru", 4, 64), Bench(depth.at_hand(), Effort())
    return [bench.case(found.labels("forms"), found.model, {**dict(forms(found)), **DAMPED})]


def main(argv: list[str]) -> None:
    """Measure what the command line asks for."""
    options = command.parser("iterations", __doc__, PARTS).parse_args(argv)
    quick = options.quick
    bench = Bench(depth.at_hand(), Effort(options.repeats), QUICK_FORMS if quick else None)
    damped: dict[str, Callable[[], Model]] = {
        f"sampling gru, seed {seed}": partial(autoregressive.sampled, seed, SAMPLED)
        for seed in range(0 if quick else SEEDS)
    }
    for rate in LOGISTIC[:1] if quick else LOGISTIC:
        damped[f"logistic {rate}"] = partial(chains.logistic_chain, LOGISTIC_LENGTH, rate)
    curves, counts = (TRAINED[:1], QUICK_COUNTS) if quick else (CURVES, COUNTS)
    every = [("gru", 4, 256)] if quick else CHAINS
    jobs: dict[str, list[command.Job]] = {
        "forms": [partial(bench.forms, chain) for chain in every],
        "accuracy": [partial(accuracy, chain, counts) for chain in curves],
        "width": [partial(bench.width, width) for width in ((2, 8) if quick else WIDTHS)],
        "damping": [partial(bench.damping, name, make) for name, make in damped.items()],
    }
    command.run(
        options,
        [job for part in options.parts for job in jobs[part]],
        TABLES,
        summary=command.fastest,
        pictures=pictures,
    )
