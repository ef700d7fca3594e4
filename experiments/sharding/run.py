"""Over 8 devices: chains by their layers, scaling, jax's own tutorials, several processes.

chain       a training step of a deep stack: its batch, its layers, or both over the devices
scaling     the same with its layers over 1 to 8 devices, and on paper, over up to 1024 of a kind
            that is linked in a known way
tutorials   what jax's own tutorials show of sharded arrays, and the training of a multilayer
            perceptron

On a CPU the devices are simulated: they share its cores, and waiting for one another costs more
than what they wait for. Speedups are over the fastest sequential program on one device
(jax.lax.scan with unroll 1, 4 and 16, and up to 64 layers a Python loop), over plain lax.scan
there, and over the same method on one device. Predicted times are of `depth` and of the time that a
message takes here.
"""

import contextlib
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial

import jax

from depth.report import nbytes
from experiments.bench import command
from experiments.bench.results import device, environment
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.sharding import chains, predicted, processes, stack, tutorials
from experiments.sharding.collectives import Sent, in_words
from experiments.sharding.figure import draw, has_figure
from experiments.sharding.links import ASSUMED, LINKS, link_at_hand
from experiments.sharding.predicted import SHARD, Machine
from experiments.sharding.stack import Layout, Size

DEVICES = 8
PARTS = ("chain", "scaling", "tutorials")
LAYOUTS = (
    Layout(batch=8, method="lax.scan"),
    Layout(chain=8),
    Layout(chain=8, method="sequential"),
    Layout(chain=4, batch=2),
    Layout(chain=4, batch=2, method="sequential"),
)
MEASURED = (8, 4, 2, 1)  # devices, for scaling
NOTE = """Bytes are those of one device. Collectives are those of the compiled program, with the
bytes that a device gets; what is in a loop counts once: a training step of the MLP, a layer of
lax.scan, a Newton iteration. Loss: the mean square of the result where nothing is trained."""
# Columns of the table of speed; the first of them are in the other one, too.
NAMES = ("scaling", "row")
SPEED = (
    *(*NAMES, "sequential", "sequential ms", "lax.scan ms", "ms", "sequential depth", "depth"),
    *("depth speedup", "predicted ms", "of it messages", "log2", "predicted speedup", "speedup"),
    *("over lax.scan", "over one device", "note"),
)
UNSEEN = ("part", "w", "batch", "loss, one device", "min ms", "max ms", "repeats", "trace s")
SECONDS = 120.0  # until a run of several processes is given up
STEPS = 4  # of training in it


def has_devices() -> bool:
    """Whether this process has 8 devices.

    On a CPU it simulates them, unless jax has started with fewer.
    """
    with contextlib.suppress(RuntimeError):  # jax has started, perhaps with enough of them
        jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax.device_count() >= DEVICES


def machine_at_hand(options: Namespace) -> Machine:
    """This machine.

    The model of a device, the time of a message, and whether its devices are simulated.
    """
    shared = environment()["cores"] if jax.default_backend() == "cpu" else None
    return Machine(command.model(options), link_at_hand(DEVICES), shared)


def chain_rows(options: Namespace, machine: Machine) -> Iterator[Row]:
    """What only this project has: a training step whose chain lies over devices."""
    size = Size(32, 4, 8) if options.quick else Size(512, 16, 32)
    for row in chains.rows(size, LAYOUTS, machine, Effort(options.repeats)):
        yield {"part": "chain"} | row


def scaling_rows(options: Namespace, machine: Machine) -> Iterator[Row]:
    """1 to 8 devices, the most of them first, with equal shards on all of them; and on paper.

    The largest stack is one of both kinds of scaling: its row on most devices is there twice.
    Simulated devices share cores, so that more of them can hardly be faster.
    """
    shard, width, batch = (8, 4, 8) if options.quick else (SHARD, 16, 32)
    devices = MEASURED[:: 3 if options.quick else 1]
    for count in devices:
        size, most = Size(shard * count, width, batch), count == max(devices)
        layouts = [Layout(chain=each) for each in (sorted(devices) if most else [count])]
        found = list(chains.rows(size, layouts, machine, Effort(options.repeats)))
        for kind, some in (("strong", found if most else []), ("weak", found[-1:])):
            yield from ({"part": "measured scaling", "scaling": kind} | row for row in some)
    iterations, _ = stack.solve_stack(Size(shard * max(devices), width, batch))
    for name in LINKS:
        for row in predicted.paper_rows(name, iterations, options.quick):
            yield {"part": "scaling on paper"} | row


def tutorial_rows(options: Namespace, machine: Machine) -> Iterator[Row]:
    """What jax's tutorials show."""
    quick, cpu, effort = options.quick, jax.default_backend() == "cpu", Effort(options.repeats)
    for case in tutorials.comparisons(64 if quick else 1024 if cpu else 8192):
        yield {"part": "tutorials"} | case.row(effort)
    yield {"part": "tutorials"} | tutorials.apart()
    width, batch = (32, 32) if quick else (256, 256) if cpu else (8192, 8192)
    for case in tutorials.perceptrons(width, batch):
        yield {"part": "tutorials"} | case.row(effort)


ROWS = {"chain": chain_rows, "scaling": scaling_rows, "tutorials": tutorial_rows}


def several_processes(number: int, quick: bool) -> None:
    """Train in one process and in several, and compare.

    Raises:
        SystemExit: a process failed, or the losses differ.
    """
    size = Size(16, 4, 8) if quick else Size(512, 16, 32)
    try:
        found = {count: processes.run(count, size, STEPS, SECONDS) for count in (1, number)}
    except processes.Failed as error:
        sys.exit(str(error))
    if len(found[1]) != len(found[number]):
        sys.exit(f"{len(found[1])} steps by one process, {len(found[number])} by {number}")
    rows, worst = [], 0.0
    for step, (one, many) in enumerate(zip(found[1], found[number], strict=True)):
        difference = abs(many - one) / abs(one)
        losses = {"loss, 1 process": f"{one:.8f}", f"loss, {number} processes": f"{many:.8f}"}
        rows.append({"step": step, **losses, "difference": difference})
        worst = max(worst, difference)
    print(show(rows))
    if not worst <= processes.TOLERANCE:
        sys.exit(f"{number} processes: the loss differs by {worst:.1e} from that of one")


def tables(rows: list[Row]) -> Iterator[str]:
    """Tables for every part that has rows, and what is to be known of them.

    Of chains, one of what they are, and one of speed.
    """
    notes = {"chain": NOTE, "measured scaling": "", "scaling on paper": ASSUMED, "tutorials": NOTE}
    for part, note in notes.items():
        found = [in_units(row) for row in rows if row["part"] == part]
        columns = list(dict.fromkeys(key for row in found for key in row))
        groups = [columns]
        if "row" in columns and "depth" in columns:
            others = [key for key in columns if key not in SPEED[len(NAMES) :]]
            groups = [others, [key for key in SPEED if key in columns]]
        cells = [[{key: row.get(key, "") for key in group} for row in found] for group in groups]
        if found:
            yield "\n\n".join(filter(None, [part, *map(show, cells), note]))


def in_units(row: Row) -> Row:
    """A row as it is printed: bytes and what is sent in words."""
    cells = {key: value for key, value in row.items() if key not in UNSEEN}
    for key, value in cells.items():
        if key == "collectives":
            cells[key] = in_words({kind: Sent(**sent) for kind, sent in value.items()})
        elif key.endswith("bytes"):
            cells[key] = nbytes(value)
        elif key in ("difference", "error"):
            cells[key] = f"{value:.0e}" if value else "0"
    return cells


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    arguments = command.parser("sharding", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which of them (all)")
    what = "instead: train in as many local processes"
    add("--processes", type=int, choices=(2, 4, 8), help=what)
    options = arguments.parse_args(argv)
    if options.processes:
        several_processes(options.processes, options.quick)
        return
    on_cpu = {"JAX_PLATFORMS": "cpu"}
    if not has_devices():
        again = [sys.executable, "-m", "experiments", "sharding", *argv]
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            sys.exit(f"jax has {jax.device_count()} devices, and does not simulate {DEVICES}")
        sys.exit(subprocess.run(again, env=os.environ | on_cpu, check=False).returncode)

    kept, machine = command.record(options), machine_at_hand(options)
    shared = f"simulated on {machine.cores} cores, which they share"
    kind = shared if jax.default_backend() == "cpu" else device()
    print(f"{jax.device_count()} devices, {kind}\n{machine.said}", flush=True)
    rows = (row for part in options.parts for row in ROWS[part](options, machine))
    for row in command.progress(command.in_time(rows, options.seconds), "sharding"):
        kept.add(row)
        if "ms" in row:
            print(f"{row['row']}: {row['ms']:.3g} ms", file=sys.stderr, flush=True)
    kept.finish()
    print("\n" + "\n\n".join(tables(kept.rows)))
    command.conclude(options, kept, partial(draw, kept.rows) if has_figure(kept.rows) else None)
