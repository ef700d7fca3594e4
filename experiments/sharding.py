"""Over 8 devices: arrays and training as jax's tutorials show them, chains by their layers, scaling, and several processes."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import jax

from experiments.common.results import FOLDER, device, environment, write
from experiments.common.sharding_figure import draw
from experiments.common.table import table
from experiments.sharding_rows import mlp, processes, scaling, stack, tutorials
from experiments.sharding_rows.links import ASSUMED
from experiments.sharding_rows.measured import Row, measure, shown

DEVICES = 8
PARTS = ("tutorials", "chain", "scaling")
NOTE = """Bytes are those of one device. Collectives are those of the compiled program, with the bytes that a device gets; what is
in a loop counts once: a training step of the MLP, a layer of lax.scan, a Newton iteration. Loss: the mean square of the result
where nothing is trained."""
# Seconds until a run of several processes is given up, and training steps in it.
SECONDS = 120.0
STEPS = 4


def has_devices() -> bool:
    """Whether this process has 8 devices; on a CPU it simulates them, unless jax has started with fewer."""
    with contextlib.suppress(RuntimeError):  # jax has started, perhaps with enough of them
        jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax.device_count() >= DEVICES


def tutorial_rows(quick: bool, repeats: int) -> Iterator[Row]:
    """What jax's tutorials show."""
    cpu = jax.default_backend() == "cpu"
    for case in tutorials.cases(64 if quick else 1024 if cpu else 8192):
        yield measure(case, repeats)
    yield tutorials.apart()
    width, batch = (32, 32) if quick else (256, 256) if cpu else (8192, 8192)
    for case in mlp.cases(width, batch):
        yield measure(case, repeats)


def chain_rows(quick: bool, repeats: int) -> Iterator[Row]:
    """What only this project has."""
    for case in stack.cases(stack.Size(32, 4, 8) if quick else stack.Size(512, 16, 32)):
        yield measure(case, repeats)


def several_processes(number: int, quick: bool) -> None:
    """Train in one process and in several, and compare.

    Raises:
        SystemExit: a process failed, or the losses differ.
    """
    size = stack.Size(16, 4, 8) if quick else stack.Size(512, 16, 32)
    try:
        found = {count: processes.run(count, size, STEPS, SECONDS) for count in (1, number)}
    except processes.Failed as error:
        sys.exit(str(error))
    if len(found[1]) != len(found[number]):
        sys.exit(f"{len(found[1])} steps by one process, {len(found[number])} by {number}")
    rows = [
        {"step": step, "loss, 1 process": one, f"loss, {number} processes": many, "difference": abs(many - one) / abs(one)}
        for step, (one, many) in enumerate(zip(found[1], found[number], strict=True))
    ]
    names = [f"loss, {count} process{'es' * (count > 1)}" for count in (1, number)]
    print(table([row | {name: f"{row[name]:.8f}" for name in names} for row in rows]))
    worst = max(row["difference"] for row in rows)
    if not worst <= processes.TOLERANCE:
        sys.exit(f"{number} processes: the loss differs by {worst:.1e} from that of one")


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    parser = argparse.ArgumentParser(prog="python -m experiments sharding", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each program")
    parser.add_argument("--quick", action="store_true", help="small arrays, and a stack of few layers")
    parser.add_argument("--keep", metavar="NAME", help="write results/<device>/NAME.jsonl and NAME.png, too")
    parser.add_argument("--processes", type=int, choices=(2, 4, 8), help="instead: train in as many local processes")
    options = parser.parse_args(argv)
    if options.processes:
        several_processes(options.processes, options.quick)
        return
    if not has_devices():
        again = [sys.executable, "-m", "experiments", "sharding", *argv]
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            sys.exit(f"jax has {jax.device_count()} devices, and does not simulate {DEVICES}")
        sys.exit(subprocess.run(again, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=False).returncode)

    repeats = 2 if options.quick else options.repeats
    rows: list[Row] = []
    makers = {"tutorials": tutorial_rows, "chain": chain_rows}
    kind = f"simulated on {environment()['cores']} cores, which they share" if jax.default_backend() == "cpu" else device()
    tables = [f"{jax.device_count()} devices, {kind}"]
    for part in filter(makers.__contains__, options.parts):
        for row in makers[part](options.quick, repeats):
            print(f"{row['row']}: {row['ms']:.3g} ms" if "ms" in row else row["row"], file=sys.stderr, flush=True)
            rows.append({"part": part} | row)
    if rows:
        tables += [table([shown(row) for row in rows]), NOTE]
    if "scaling" in options.parts:
        measured = list(scaling.measured_rows(options.quick, repeats))
        paper = list(scaling.paper_rows(measured[-1]["iterations"], options.quick))
        rows += [{"part": "measured scaling"} | row for row in measured] + [{"part": "scaling on paper"} | row for row in paper]
        tables += [table(measured), ASSUMED, table([shown(row) for row in paper])]
    print("\n\n".join(tables))
    if options.keep:
        print("kept in", write(options.keep, rows))
        if "scaling" in options.parts:
            picture = FOLDER / device() / f"{options.keep}.png"
            draw(rows, picture)
            print("drawn in", picture)
