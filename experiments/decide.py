"""Does "auto" choose what is fastest? Regret on chains of every kind, where parallel pays off, and what giving up costs."""

import argparse
import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import deeppcr
import depth
from deeppcr import Newton, Sequential
from deeppcr.adjoint import Autodiff
from deeppcr.chain import pose
from deeppcr.plan import Candidate, Field, Pieces, best_gradient, best_method
from experiments.common import zoo
from experiments.common.decide_figure import draw
from experiments.common.results import FOLDER, device, write
from experiments.common.table import table
from experiments.common.timing import build, clock

Row = dict[str, Any]
PARTS = ("regret", "map", "giving-up")
CHAINS = 60
ROUNDS = 5
SECONDS = 0.3  # for each program
MOST_BYTES = 5e8  # of Jacobians of all steps: what is larger is not run
HOPELESS = 25  # times the least predicted time: nor is this; no prediction of 400 was off by so much
FAR_DEVICES = ("H200", "A100", "TPU v5e")
MAP_WIDTHS = (1, 4, 16, 64)
MAP_LENGTHS = (16, 128, 1024, 8192)
AGAIN = "lax.scan, again"  # the same program, compiled a second time: how far apart the times of one program lie


# -- what is compared


@dataclasses.dataclass(frozen=True)
class Choice:
    """A fixed choice of method and adjoint; None for `jax.lax.scan` itself."""

    label: str
    method: Any = None
    adjoint: Any = None

    def run(self, f: Any, init: Any, xs: Any) -> Any:
        """The scan."""
        if self.method is None:
            return lax.scan(f, init, xs)
        return deeppcr.scan(f, init, xs, method=self.method, adjoint=self.adjoint or "sequential", batch_ndim=1)


def choices(candidates: list[Candidate], gradient: bool) -> Iterator[Choice]:
    """`jax.lax.scan`, an unrolled loop, and all that the planner has in the running."""
    yield Choice("lax.scan")
    yield Choice(AGAIN)
    adjoint = Autodiff(with_states=True) if gradient else None
    yield Choice("sequential, unrolled" + (" / autodiff" if gradient else ""), Sequential(unroll=4), adjoint)
    for candidate in candidates:
        method = candidate.method
        if isinstance(method, Newton):  # a fixed choice has no budget but its own
            method = dataclasses.replace(method, max_iterations=None)
        yield Choice(candidate.name, method, candidate.adjoint)


def field_of(task: zoo.Task, specimen: zoo.Specimen, model: depth.Device) -> Field:
    """The chain of a specimen, as the planner sees it."""

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        state = task.step(task.weights, state, x)
        return state, jax.tree.leaves(state)[0]

    return Field(Pieces.of(pose(step, task.init, task.inputs, specimen.length, 1, "init")), model)


def running(field: Field, gradient: bool) -> list[Candidate]:
    """All candidates; of those for a gradient only the two best forward passes."""
    if not gradient:
        return best_method(field, everything=True)
    every = best_gradient(field, None, everything=True)
    forward = {candidate.method for candidate in best_method(field, everything=True)[:2]}
    return [candidate for candidate in every if candidate.method in forward]


def measured(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The least time of each, of calls in turn; what is five times as slow as the fastest is called less often."""
    least = {name: min(clock(call), clock(call)) for name, call in calls.items()}
    for _ in range(ROUNDS):
        fastest = min(least.values())
        for name, call in calls.items():
            share = SECONDS / ROUNDS if least[name] < 5 * fastest else 0
            for _ in range(min(100, int(share / least[name]) or (1 if share else 0))):
                least[name] = min(least[name], clock(call))
    return least


# -- regret


def regret_rows(number: int, seed: int, model: depth.Device) -> Iterator[Row]:
    """Every chain, forward and gradient: what auto chooses, what is fastest, what the choice costs, and what choosing costs."""
    for specimen in zoo.specimens(number, seed):
        task = zoo.task(specimen)
        for gradient in (False, True):
            yield regret_of(specimen, task, gradient, model)


def regret_of(specimen: zoo.Specimen, task: zoo.Task, gradient: bool, model: depth.Device) -> Row:
    """One chain, one direction."""
    direction = task.gradient if gradient else task.forward
    field = field_of(task, specimen, model)
    start = time.perf_counter()
    chosen = best_gradient(field, None)[0] if gradient else best_method(field)[0]
    planning = time.perf_counter() - start
    every = running(field, gradient)
    predicted = {candidate.name: candidate.seconds for candidate in every}
    entries = specimen.length * specimen.batch * (specimen.width if specimen.kind == "elementwise" else specimen.width**2)
    calls, compiling, skipped = {}, {}, []
    hopeless = HOPELESS * min(predicted.values())
    for choice in choices(every, gradient):
        blocks = "Newton" in choice.label or "blocks" in choice.label
        if (blocks and 4 * entries > MOST_BYTES) or predicted.get(choice.label, 0.0) > hopeless:
            skipped.append(choice.label)
            continue
        program = build(direction(choice.run), *task.arguments)
        calls[choice.label] = partial(program.call, *task.arguments)
        compiling[choice.label] = program.lower + program.compile
    if chosen.name not in calls:
        raise RuntimeError(f"{specimen.name}: auto chose {chosen.name}, which is too large to be run here.")
    seconds = measured(calls)
    again = seconds.pop(AGAIN)
    fastest = min(seconds, key=seconds.__getitem__)
    return {
        "part": "regret",
        "kind": specimen.kind,
        "w": specimen.width,
        "L": specimen.length,
        "batch": specimen.batch,
        "direction": "gradient" if gradient else "forward",
        "chosen": chosen.name,
        "fastest": fastest,
        "regret %": 100 * (seconds[chosen.name] / seconds[fastest] - 1),
        "noise %": 100 * (max(again, seconds["lax.scan"]) / min(again, seconds["lax.scan"]) - 1),
        "lax.scan us": 1e6 * seconds["lax.scan"],
        "speedup": seconds["lax.scan"] / seconds[chosen.name],
        "predicted us": 1e6 * chosen.seconds,
        "planning %": 100 * planning / compiling[chosen.name],
        "seconds": seconds,
        "predicted": predicted,
        "not run": skipped,
    }


def family(name: str) -> str:
    """What kind of choice it is."""
    method, _, adjoint = name.partition(" / ")
    if name == "lax.scan":
        return name
    if method.startswith("Newton") and not adjoint:
        return "Newton"
    if adjoint.startswith("blocks"):
        return ("Newton, " if method.startswith("Newton") else "") + "blocks"
    return ("Newton, " if method.startswith("Newton") else "") + (adjoint or method)


def report_regret(rows: list[Row]) -> str:
    """Regret by kind and direction, and how often what was chosen where something was fastest."""
    lines = []
    for direction in ("forward", "gradient"):
        there = [row for row in rows if row["direction"] == direction]
        if not there:
            continue
        by_kind: list[Row] = []
        for kind in [*dict.fromkeys(row["kind"] for row in there), "all"]:
            found = [row for row in there if kind in (row["kind"], "all")]
            regrets = sorted(row["regret %"] for row in found)
            worst = max(found, key=lambda row: float(row["regret %"]))
            speedups = [row["speedup"] for row in found]
            by_kind.append(
                {
                    direction: kind,
                    "chains": len(found),
                    "median %": statistics.median(regrets),
                    "90th %": regrets[int(0.9 * (len(regrets) - 1) + 0.5)],
                    "worst %": regrets[-1],
                    "worst at": f"w={worst['w']} L={worst['L']} batch={worst['batch']}",
                    "noise, median %": statistics.median(row["noise %"] for row in found),
                    "noise, worst %": max(row["noise %"] for row in found),
                    "speedup over lax.scan": statistics.geometric_mean(speedups),
                    "least": min(speedups),
                    "planning %": statistics.median(row["planning %"] for row in found),
                    "most": max(row["planning %"] for row in found),
                }
            )
        lines += [table(by_kind), ""]
        pairs = Counter((family(row["chosen"]), family(row["fastest"])) for row in there)
        columns = sorted({fastest for _, fastest in pairs})
        matrix = [
            {"chosen, below; fastest, right": chosen} | {fastest: pairs.get((chosen, fastest), 0) for fastest in columns}
            for chosen in sorted({chosen for chosen, _ in pairs})
        ]
        lines += [table(matrix), ""]
    return "\n".join(lines)


# -- where parallel pays off


def map_rows(model: depth.Device, lengths: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[Row]:
    """A GRU over (L, w): the speedup of the best parallel candidate over the sequential program, predicted and realised."""
    for width in widths:
        for length in lengths:
            specimen = zoo.Specimen("gru", width, length, 1)
            task = zoo.task(specimen)
            for gradient in (False, True):
                yield map_row(specimen, task, gradient, model)


def map_row(specimen: zoo.Specimen, task: zoo.Task, gradient: bool, model: depth.Device) -> Row:
    """One cell, on this device and, predicted, on others."""
    row: Row = {
        "part": "map",
        "w": specimen.width,
        "L": specimen.length,
        "direction": "gradient" if gradient else "forward",
    }
    for name, there in {"here": model, **{name: depth.devices[name] for name in FAR_DEVICES}}.items():
        field = dataclasses.replace(field_of(task, specimen, there), memory=int(there.memory) // 2)
        every = best_gradient(field, None, everything=True) if gradient else best_method(field, everything=True)
        sequential = next(candidate for candidate in every if candidate.is_sequential)
        best = min((candidate for candidate in every if not candidate.is_sequential), key=lambda candidate: candidate.seconds)
        row[f"predicted, {name}"] = sequential.seconds / best.seconds
        if name == "here":
            row["parallel"] = best.name
            direction = task.gradient if gradient else task.forward
            pair = [Choice("sequential", Sequential(), sequential.adjoint), Choice("parallel", best.method, best.adjoint)]
            programs = {choice.label: build(direction(choice.run), *task.arguments).call for choice in pair}
            seconds = measured({label: partial(call, *task.arguments) for label, call in programs.items()})
            row["realised"] = seconds["sequential"] / seconds["parallel"]
    return row


# -- giving up


def hard_chains() -> Iterator[tuple[str, Callable[[Any, Any], Any], Any, Any]]:
    """Chains that amplify differences, on which Newton's method takes about as many iterations as there are steps."""
    key = jax.random.key(0)
    start = jax.random.uniform(key, (8, 1), minval=0.2, maxval=0.8)
    yield "logistic map, r = 3.9", lambda z, x: 3.9 * z * (1 - z) + 0 * x[None], start, jnp.zeros((1024, 1))
    weights = jax.random.normal(key, (16, 16))
    weights = 2 * weights / jnp.abs(jnp.linalg.eigvals(weights)).max()
    inputs = 0.1 * jax.random.normal(key, (1024, 16))
    yield "tanh RNN, spectral radius 2", lambda z, x: jnp.tanh(z @ weights + x[None]), jnp.zeros((8, 16)), inputs


def giving_up_rows() -> Iterator[Row]:
    """Chains that do not suit Newton: "auto" does not take it here, and one that was planned for a GPU stops at its budget."""
    for name, step, init, inputs in hard_chains():
        chain = deeppcr.Chain(step, inputs)
        found = deeppcr.plan(chain, init, device=FAR_DEVICES[0], batch_ndim=1)
        planned = found.method
        if not isinstance(planned, Newton):
            raise RuntimeError(f"{name}: the plan for {FAR_DEVICES[0]} is {planned}")
        methods: dict[str, Any] = {
            "sequential": Sequential(),
            "auto": "auto",
            f"planned for {FAR_DEVICES[0]}": planned,
            "no budget but its own": dataclasses.replace(planned, max_iterations=None),
        }
        wanted = _states(step, init, inputs)
        solutions, calls = {}, {}
        for label, method in methods.items():
            program = build(partial(_solve, chain.step, method), init, inputs).call
            calls[label] = partial(program, init, inputs)
            solutions[label] = calls[label]()
        seconds = measured(calls)
        sequential, newton = found.main.sequential, found.main.forward[0]
        for label, solution in solutions.items():
            iterations = int(solution.stats.iterations)
            yield {
                "part": "giving-up",
                "chain": name,
                "method": label,
                "iterations": iterations,
                "ended": deeppcr.Result(int(solution.result)).name.lower(),
                "error, lax.scan": float(jnp.abs(solution.trajectory - wanted).max()),
                "times sequential, here": seconds[label] / seconds["sequential"],
                f"predicted for {FAR_DEVICES[0]}": 1 + iterations * newton.iteration_seconds / sequential.seconds,
            }


def _states(step: Any, init: Any, inputs: Any) -> Any:
    def body(z: Any, x: Any) -> tuple[Any, Any]:
        z = step(z, x)
        return z, z

    return lax.scan(body, init, inputs)[1]


def _solve(step: Any, method: Any, init: Any, inputs: Any) -> Any:
    return deeppcr.solve(deeppcr.Chain(step, inputs), init, method=method, batch_ndim=1)


# -- the command line


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    parser = argparse.ArgumentParser(prog="python -m experiments decide", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--chains", type=int, default=CHAINS, help="how many chains, at least, for the regret")
    parser.add_argument("--seed", type=int, default=0, help="which chains are drawn")
    parser.add_argument("--kept", action="store_true", help="take the calibration that is kept, if there is one")
    parser.add_argument("--quick", action="store_true", help="a few small chains")
    parser.add_argument("--keep", metavar="NAME", help="write results/<device>/NAME.jsonl and NAME.png, too")
    options = parser.parse_args(argv)
    model = depth.calibrate(refresh=not options.kept)
    lengths, widths = ((16, 64), (1, 8)) if options.quick else (MAP_LENGTHS, MAP_WIDTHS)
    rows: list[Row] = []
    if "regret" in options.parts:
        found = []
        for row in regret_rows(6 if options.quick else options.chains, options.seed, model):
            found.append(row)
            cells = f"{row['kind']:13} w={row['w']:<3} L={row['L']:<5} batch={row['batch']:<2} {row['direction']:8}"
            print(f"{cells} {row['regret %']:6.1f} %  {row['chosen']}  (fastest: {row['fastest']})", flush=True)
        print("\n" + report_regret(found), flush=True)
        rows += found
    if "map" in options.parts:
        found = list(map_rows(model, lengths, widths))
        print(table([{key: value for key, value in row.items() if key != "part"} for row in found]) + "\n", flush=True)
        rows += found
    if "giving-up" in options.parts:
        found = list(giving_up_rows())
        print(table([{key: value for key, value in row.items() if key != "part"} for row in found]) + "\n", flush=True)
        rows += found
    if options.keep:
        print("kept in", write(options.keep, rows))
        if {"regret", "map"} & set(options.parts):
            picture = FOLDER / device() / f"{options.keep}.png"
            draw(rows, picture)
            print("drawn in", picture)
