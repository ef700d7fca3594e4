"""Over 8 devices: arrays and training as jax's tutorials show them, chains by their layers, scaling, and several processes.

chain       a training step of a deep stack: its batch, its layers, or both over the devices
scaling     the same with its layers over 1 to 8 devices, and on paper, over up to 1024 of a kind that is linked in a known way
tutorials   what jax's own tutorials show of sharded arrays, and the training of a multilayer perceptron

On a CPU the devices are simulated: they share its cores, and waiting for one another costs more than what they wait for. Speedups
are over the fastest sequential program on one device (jax.lax.scan with unroll 1, 4 and 16, and up to 64 layers a Python loop),
over plain lax.scan there, and over the same method on one device. Predicted times are of `depth` and of the time that a message
takes here.
"""

import contextlib
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import jax

from experiments.common.options import conclude, in_time, model, parser, record
from experiments.common.progress import progress
from experiments.common.results import device, environment
from experiments.common.sharding_figure import draw, has_figure
from experiments.common.table import table
from experiments.common.versus import Row
from experiments.sharding_rows import chains, mlp, processes, scaling, stack, tutorials
from experiments.sharding_rows.links import ASSUMED, LINKS
from experiments.sharding_rows.measured import Case, measure, shown
from experiments.sharding_rows.messages import link_at_hand
from experiments.sharding_rows.predicted import Machine
from experiments.sharding_rows.stack import Layout

Job = Callable[[], Iterator[Row]]

DEVICES = 8
PARTS = ("chain", "scaling", "tutorials")
LAYOUTS = (
    Layout(batch=8, method="lax.scan"),
    Layout(chain=8),
    Layout(chain=8, method="sequential"),
    Layout(chain=4, batch=2),
    Layout(chain=4, batch=2, method="sequential"),
)
NOTE = """Bytes are those of one device. Collectives are those of the compiled program, with the bytes that a device gets; what is
in a loop counts once: a training step of the MLP, a layer of lax.scan, a Newton iteration. Loss: the mean square of the result
where nothing is trained."""
# Columns of the table of speed; the first of them are in the other one, too.
NAMES = ("scaling", "row")
SPEED = (
    *NAMES,
    *(
        "sequential",
        "sequential ms",
        "lax.scan ms",
        "ms",
        "sequential depth",
        "depth",
        "depth speedup",
        "predicted ms",
    ),
    *(
        "of it messages",
        "log2",
        "predicted speedup",
        "speedup",
        "over lax.scan",
        "over one device",
        "note",
    ),
)
# Seconds until a run of several processes is given up, and training steps in it.
SECONDS = 120.0
STEPS = 4


def has_devices() -> bool:
    """Whether this process has 8 devices; on a CPU it simulates them, unless jax has started with fewer."""
    with contextlib.suppress(RuntimeError):  # jax has started, perhaps with enough of them
        jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax.device_count() >= DEVICES


def machine_at_hand(options: Namespace) -> Machine:
    """This machine: the model of a device, the time of a message, and whether its devices are simulated."""
    shared = environment()["cores"] if jax.default_backend() == "cpu" else None
    return Machine(model(options), link_at_hand(DEVICES), shared)


def chain_jobs(options: Namespace, machine: Machine) -> Iterator[tuple[str, Job]]:
    """What only this project has."""
    size = stack.Size(32, 4, 8) if options.quick else stack.Size(512, 16, 32)
    yield "chain", partial(chains.rows, size, LAYOUTS, machine, options.repeats)


def scaling_jobs(options: Namespace, machine: Machine) -> Iterator[tuple[str, Job]]:
    """1 to 8 devices, the most of them first; and on paper."""
    sizes = scaling.sizes(options.quick)
    most = max(sizes)
    for count, size in sizes.items():
        counts = tuple(sorted(sizes)) if count == most else (count,)
        yield (
            "measured scaling",
            partial(scaling.measured_rows, size, counts, machine, options.repeats),
        )
    for name in LINKS:
        iterations, _ = stack.told(sizes[most])
        yield "scaling on paper", partial(scaling.paper_rows, name, iterations, options.quick)


def tutorial_jobs(options: Namespace, machine: Machine) -> Iterator[tuple[str, Job]]:
    """What jax's tutorials show."""
    quick, cpu = options.quick, jax.default_backend() == "cpu"
    for case in tutorials.cases(64 if quick else 1024 if cpu else 8192):
        yield "tutorials", partial(_one, case, options.repeats)
    yield "tutorials", partial(iter, [tutorials.apart()])
    width, batch = (32, 32) if quick else (256, 256) if cpu else (8192, 8192)
    for case in mlp.cases(width, batch):
        yield "tutorials", partial(_one, case, options.repeats)


def _one(case: Case, repeats: int) -> Iterator[Row]:
    yield measure(case, repeats)


JOBS = {"chain": chain_jobs, "scaling": scaling_jobs, "tutorials": tutorial_jobs}


def jobs(options: Namespace) -> Iterator[tuple[str, Job]]:
    """All that is asked for: names of parts, and functions that make rows of them."""
    machine = machine_at_hand(options)
    print(machine.said, flush=True)
    for part in options.parts:
        yield from JOBS[part](options, machine)


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
        {
            "step": step,
            "loss, 1 process": one,
            f"loss, {number} processes": many,
            "difference": abs(many - one) / abs(one),
        }
        for step, (one, many) in enumerate(zip(found[1], found[number], strict=True))
    ]
    names = [f"loss, {count} process{'es' * (count > 1)}" for count in (1, number)]
    print(table([row | {name: f"{row[name]:.8f}" for name in names} for row in rows]))
    worst = max(row["difference"] for row in rows)
    if not worst <= processes.TOLERANCE:
        sys.exit(f"{number} processes: the loss differs by {worst:.1e} from that of one")


def tables(rows: list[Row]) -> Iterator[str]:
    """Tables for every part that has rows, and what is to be known of them: of chains, one of what they are, and one of speed."""
    notes = {"chain": NOTE, "measured scaling": "", "scaling on paper": ASSUMED, "tutorials": NOTE}
    for part, note in notes.items():
        found = [shown(row) for row in rows if row["part"] == part]
        columns = dict.fromkeys(key for row in found for key in row)
        speed = [key for key in SPEED if key in columns]
        groups = (
            [[key for key in columns if key not in SPEED[len(NAMES) :]], speed]
            if "row" in speed and "depth" in speed
            else [columns]
        )
        texts = [
            table([{key: row.get(key, "") for key in group} for row in found]) for group in groups
        ]
        yield from ["\n\n".join(filter(None, [part, *texts, note]))] if found else []


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    command = parser("sharding", __doc__)
    command.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (all)"
    )
    command.add_argument(
        "--processes", type=int, choices=(2, 4, 8), help="instead: train in as many local processes"
    )
    options = command.parse_args(argv)
    if options.processes:
        several_processes(options.processes, options.quick)
        return
    if not has_devices():
        again = [sys.executable, "-m", "experiments", "sharding", *argv]
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            sys.exit(f"jax has {jax.device_count()} devices, and does not simulate {DEVICES}")
        sys.exit(
            subprocess.run(again, env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=False).returncode
        )

    kept = record(options)
    kind = (
        f"simulated on {environment()['cores']} cores, which they share"
        if jax.default_backend() == "cpu"
        else device()
    )
    print(f"{jax.device_count()} devices, {kind}", flush=True)
    for part, job in progress(in_time(jobs(options), options.seconds), "sharding"):
        for row in job():
            kept.add({"part": part} | row)
            if "ms" in row:
                print(f"{row['row']}: {row['ms']:.3g} ms", file=sys.stderr, flush=True)
    kept.finish()
    print("\n" + "\n\n".join(tables(kept.rows)))
    conclude(options, kept, partial(draw, kept.rows) if has_figure(kept.rows) else None)
