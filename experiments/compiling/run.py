"""How long do tracing and compiling take?

programs  gradients of loops whose steps have many equations, or few, and of jax's transformations
          of them: jax.lax.scan beside deeppcr.scan, stage by stage, in CPU seconds of all threads
layers    the gradient of a loss through L equal flax modules, in a list or stacked: a Python loop
          (up to 64 layers: of 1024 it takes minutes), a scan, deeppcr
training  a jitted `jax.lax.scan` of 200 Adam steps on 16 equal residual modules of 12 small arrays:
          a list of modules, stacked modules, and a list whose optimizer `optax.flatten` flattens.
          Parameters and losses are compared

Each program is traced and compiled from scratch several times, in turn with the others, and the
least times count. Of layers, the sequential programs are the Python loop and `jax.lax.scan` with
unroll 1, 4 and 16; of the training loops, the two with plain Adam.
"""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import geometric_mean
from typing import Any

import jax
import numpy as np
from jax import lax

import deeppcr
import depth
from experiments.bench import command
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, bench, distance
from experiments.bench.plots import Figures, lines, styled
from experiments.bench.programs import SCAN
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort, interleave
from experiments.compiling.layers import layers, training
from experiments.compiling.programs import PROGRAMS
from experiments.compiling.stages import Stages, seconds_of_llvm

PARTS = ("programs", "layers", "training")
SCANS = {SCAN: lax.scan, "deeppcr.scan": deeppcr.scan}
LENGTHS, QUICK_LENGTHS = (16, 64, 256, 1024), (4, 16)
QUICK_PROGRAMS = ("GRU, 16 units",)
BUILDS = {"programs": 2, "layers": 2, "training": 3}  # of each program; 1 with --quick
TAKES = "3 min"
PROGRAM = {
    "program": "what runs; sequential programs first",
    "seconds": "seconds to trace and compile together",
}
STAGES = {
    "title": "what is computed",
    **PROGRAM,
    "over lax.scan": "its seconds over those of jax.lax.scan",
    "trace s": "CPU seconds to trace",
    "lower s": "CPU seconds to lower to StableHLO",
    "compile s": "CPU seconds of XLA",
    "LLVM s": "wall-clock seconds of the tasks of LLVM, by a profile",
    "instructions": "of the optimised program",
    **{key: BENCH[key] for key in ("ms", "error", "note")},
}
COMMON = ("ms", "speedup", "over lax.scan", "predicted speedup", "depth speedup", "error", "note")
BOTH = {key: BENCH[key] for key in COMMON} | {"temp MB": BENCH["temp MB"]}
LAYERS = {
    "L": "number of layers",
    **PROGRAM,
    "trace s": "seconds to trace",
    "compile s": "seconds to compile",
    **BOTH,
}
TRAINING = {
    "modules": "number of modules",
    "steps": "training steps",
    **PROGRAM,
    "us a step": "time of a training step, in microseconds",
    **BOTH,
}
TABLES = {"programs": STAGES, "layers": LAYERS, "training": TRAINING}


def stages(title: str, effort: Effort, builds: int) -> Iterator[Row]:
    """The rows of a program of `PROGRAMS`, by each scan."""
    program = PROGRAMS[title]()
    functions = {name: program.by(scan) for name, scan in SCANS.items()}
    Stages.of(jax.grad(lambda x: x @ x), np.ones(3, np.float32))  # starts the compiler
    found: dict[str, Stages] = {}
    for _ in range(builds):
        for name, f in functions.items():
            PROGRESS.say(f"compiling {title} by {name}")
            new = Stages.of(f, program.parameters)
            found[name] = min(found.get(name, new), new, key=lambda each: each.total)
    calls: dict[str, Callable[[], Any]] = {
        name: partial(each.call, program.parameters) for name, each in found.items()
    }
    expected = jax.tree.map(np.asarray, calls[SCAN]())
    errors = {name: distance(call(), expected) for name, call in calls.items()}
    timings = interleave(calls, effort)
    for name, each in found.items():
        row: Row = {"part": "programs", "title": title, "program": name}
        row |= {"seconds": each.total, "over lax.scan": each.total / found[SCAN].total}
        row |= {"trace s": each.trace, "lower s": each.lower, "compile s": each.compile}
        llvm = seconds_of_llvm(functions[name], program.parameters)
        row |= {"LLVM s": llvm} if llvm is not None else {}
        row |= {"instructions": each.instructions, "ms": 1e3 * timings[name].median}
        yield row | {"error": errors[name]}


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """What the programs come to."""
    mine = [row for row in rows if row["part"] == "programs" and row["program"] != SCAN]
    if mine:
        ratios = [row["over lax.scan"] for row in mine]
        yield (
            f"deeppcr.scan takes {geometric_mean(ratios):.2f} times the seconds "
            f"of {SCAN} to trace and compile (geometric mean), {max(ratios):.2f} at worst.\n"
        )


@styled
def pictures(rows: Sequence[Row]) -> Figures:
    """Seconds to compile and times of a call by the number of layers."""
    found: Figures = {}
    if mine := [row for row in rows if row["part"] == "layers"]:
        title = "Gradient through equal layers (down is better)"
        keys = {"trace and compile": ("seconds", "time [s]"), "a call": ("ms", "time [ms]")}
        panels = {name: (mine, *key) for name, key in keys.items()}
        found["layers"] = lines(title, panels, "L", "layers")
    return found


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    programs = {name: PROGRAMS[name]() for name in ("GRU, 16 units", "Lotka-Volterra, RK4")}
    cases = [
        Case({"title": name}, [(one.parameters,)], {}, {"deeppcr.scan": one.by(deeppcr.scan)})
        for name, one in programs.items()
    ]
    return [*cases, layers(4), training(2, 3)]


def main(argv: list[str]) -> None:
    """Trace, compile and run."""
    options = command.parser("compiling", __doc__, PARTS).parse_args(argv)
    quick, device, effort = options.quick, depth.at_hand(), Effort(options.repeats)
    builds = dict.fromkeys(PARTS, 1) if quick else BUILDS

    def measured(part: str, *size: int) -> Iterator[Row]:
        case = layers(*size) if part == "layers" else training(*size)
        for row in bench(case, device, effort, builds=builds[part]):
            row |= {"seconds": row["trace s"] + row["compile s"]} if "compile s" in row else {}
            yield row | ({"us a step": 1e3 * row["ms"] / row["steps"]} if "steps" in row else {})

    jobs: list[command.Job] = []
    if "programs" in options.parts:
        names = QUICK_PROGRAMS if quick else tuple(PROGRAMS)
        jobs += [partial(stages, name, effort, builds["programs"]) for name in names]
    if "layers" in options.parts and not importlib.util.find_spec("flax"):
        PROGRESS.print("no layers: flax is not installed")
    elif "layers" in options.parts:
        lengths = QUICK_LENGTHS if quick else LENGTHS
        jobs += [partial(measured, "layers", length) for length in lengths]
    if "training" in options.parts:
        jobs.append(partial(measured, "training", *((4, 20) if quick else (16, 200))))
    command.run(options, jobs, TABLES, summary=summary, pictures=pictures, together=("programs",))
