"""What does it take to put a chain's layers, its batch, or both on 8 devices?

chain       a training step of a deep stack: its batch, its layers, or both over the devices
scaling     its layers over 1 to 8 devices, and predicted for up to 1024 devices with known links
tutorials   the examples of jax's own tutorials on sharded arrays, and the training of an MLP

On a CPU the devices are simulated: they share its cores, so speedups are below 1. Speedups are over
the fastest sequential program on one device (jax.lax.scan with unroll 1, 4 and 16, and up to 64
layers a Python loop), over plain lax.scan, and over the same method on one device.
"""

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax

import depth
from depth.report import nbytes
from experiments.bench import command
from experiments.bench.progress import PROGRESS
from experiments.bench.results import device, environment
from experiments.bench.table import Row, show, wrapped
from experiments.bench.timing import Effort
from experiments.sharding import chains, predicted, processes, stack, tutorials
from experiments.sharding.collectives import Sent
from experiments.sharding.figure import pictures
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
TAKES = "4 min"
ROW = {
    "row": "size of the stack, and what lies on how many devices",
    "ms": "time of a training step, in milliseconds (median)",
    "speedup": "sequential ms / ms; above 1 is faster",
    "over one device": "time of the same method on one device / ms",
    "predicted speedup": "speedup, predicted",
    "predicted ms": "predicted time",
    "of it messages": "part of it that devices wait for messages",
    "sequential ms": "time of the fastest sequential program on one device",
    "sequential": "that program",
    "lax.scan ms": "time of jax.lax.scan on one device",
    "over lax.scan": "lax.scan ms / ms",
    "depth speedup": "ratio of the depths: the limit on unlimited processors",
    "error": "largest difference of loss and weights from one device, relative",
}
SENT = {
    "collectives": "number of collective operations in the compiled program; loops count once",
    "received": "bytes that one device receives by them",
    "parameter bytes": "bytes of the parameters on one device",
}
CHAIN = {"row": ROW["row"], **ROW, "iterations": "Newton iterations", **SENT}
PAPER = {
    "on paper": "kind of devices",
    "scaling": "strong: of one stack; weak: 64 layers a device",
    "devices": "number of devices",
    "L": "number of layers",
    **{key: ROW[key] for key in ("lax.scan ms",)},
    "batch ms": "lax.scan with the batch over the devices",
    **{key: ROW[key] for key in ("predicted ms", "of it messages")},
    "predicted speedup": ROW["predicted speedup"],
    "depth speedup": ROW["depth speedup"],
    "parameter MB": "parameters on one device, in MB",
    "block MB": "Jacobian blocks on one device, in MB",
}
TUTORIALS = {
    "row": ROW["row"],
    "ms": ROW["ms"],
    "ms, one device": "time on one device",
    "over one device": ROW["over one device"],
    "loss": "mean square of the result, or the last loss",
    **SENT,
    "error": ROW["error"],
    "note": "what is wrong, or what jax says",
}
TABLES = {
    "chain": CHAIN,
    "measured scaling": {"scaling": PAPER["scaling"], **CHAIN},
    "scaling on paper": PAPER,
    "tutorials": TUTORIALS,
}
SECONDS = 120.0  # time limit of a run in several processes
STEPS = 4  # of training in it


def has_devices() -> bool:
    """Whether this process has 8 devices; on a CPU jax simulates them, if it has not started."""
    with contextlib.suppress(RuntimeError):  # jax has started, perhaps with enough of them
        jax.config.update("jax_num_cpu_devices", DEVICES)
    return jax.device_count() >= DEVICES


def machine_at_hand() -> Machine:
    """This machine: the model of a device, and the time of a message."""
    shared = environment()["cores"] if jax.default_backend() == "cpu" else None
    model = depth.at_hand()
    PROGRESS.say("measuring the time of a message")
    return Machine(model, link_at_hand(DEVICES), shared)


def chain_cases(options: Namespace, machine: Machine) -> Iterator[command.Job]:
    """A training step whose chain, batch, or both lie over devices."""
    # Quick stacks are longer than the longest Python loop, which takes long to compile.
    size = Size(128, 4, 8) if options.quick else Size(512, 16, 32)
    layouts = LAYOUTS[:2] if options.quick else LAYOUTS
    yield partial(_rows, "chain", size, layouts, machine, Effort(options.repeats))


def scaling_cases(options: Namespace, machine: Machine) -> Iterator[command.Job]:
    """1 to 8 devices, the most of them first, with equal shards; and predicted for others.

    The largest stack belongs to both kinds of scaling: its row on most devices is there twice.
    """
    shard, width, batch = (16, 4, 8) if options.quick else (SHARD, 16, 32)
    counts = MEASURED[:: 3 if options.quick else 1]
    most = max(counts)

    def measured(count: int) -> Iterator[Row]:
        size = Size(shard * count, width, batch)
        layouts = [Layout(chain=each) for each in (sorted(counts) if count == most else [count])]
        found = list(chains.rows(size, layouts, machine, Effort(options.repeats)))
        for kind, some in (("strong", found if count == most else []), ("weak", found[-1:])):
            yield from ({"part": "measured scaling", "scaling": kind} | row for row in some)

    def paper(name: str) -> Iterator[Row]:
        iterations, _ = stack.solve_stack(Size(shard * most, width, batch))
        for row in predicted.paper_rows(name, iterations, options.quick):
            PROGRESS.say(f"predicting {name}, {row['devices']} devices")
            yield {"part": "scaling on paper"} | row

    yield from (partial(measured, count) for count in counts)
    yield from (partial(paper, name) for name in LINKS)


def tutorial_cases(options: Namespace, machine: Machine) -> Iterator[command.Job]:
    """The examples of jax's tutorials."""
    quick, cpu, effort = options.quick, jax.default_backend() == "cpu", Effort(options.repeats)
    width, batch = (32, 32) if quick else (256, 256) if cpu else (8192, 8192)
    examples = list(tutorials.comparisons(64 if quick else 1024 if cpu else 8192))
    for case in (*examples, *tutorials.perceptrons(width, batch)):
        yield lambda case=case: iter([{"part": "tutorials"} | case.row(effort)])  # type: ignore[misc]
    yield lambda: iter([{"part": "tutorials"} | tutorials.apart()])


def _rows(part: str, *given: Any) -> Iterator[Row]:
    return ({"part": part} | row for row in chains.rows(*given))


CASES = {"chain": chain_cases, "scaling": scaling_cases, "tutorials": tutorial_cases}


def several_processes(number: int, quick: bool) -> None:
    """Train in one process and in several, and compare.

    Raises:
        SystemExit: a process failed, or the losses differ.
    """
    size = Size(16, 4, 8) if quick else Size(512, 16, 32)
    PROGRESS.reset(f"training in 1 and in {number} processes")
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
    PROGRESS.print(show(rows))
    if not worst <= processes.TOLERANCE:
        sys.exit(f"{number} processes: the loss differs by {worst:.1e} from that of one")


def printed(row: Row) -> Row:
    """A row as it is printed: bytes with units, collectives as their number and bytes."""
    cells = dict(row)
    if "collectives" in row:
        sent = [Sent(**one) for one in row["collectives"].values()]
        cells["collectives"] = sum(one.number for one in sent)
        cells["received"] = nbytes(sum(one.bytes for one in sent))
    if "parameter bytes" in row:
        cells["parameter bytes"] = nbytes(row["parameter bytes"])
    return cells


def main(argv: list[str]) -> None:
    """Measure, print the tables, and with --keep write the rows and the figure."""
    arguments = command.parser("sharding", __doc__)
    add = arguments.add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="which parts (all)")
    what = "only train in this many local processes, and compare the losses"
    add("--processes", type=int, choices=(2, 4, 8), help=what)
    options = arguments.parse_args(argv)
    if options.processes:
        several_processes(options.processes, options.quick)
        return
    if not has_devices():
        if os.environ.get("JAX_PLATFORMS") == "cpu":
            sys.exit(f"expected {DEVICES} devices, which jax simulates, got {jax.device_count()}")
        again = [sys.executable, "-m", "experiments", "sharding", *argv]
        os.execve(sys.executable, again, os.environ | {"JAX_PLATFORMS": "cpu"})

    machine = machine_at_hand()
    shared = f"simulated on {machine.cores} cores, which they share"
    kind = shared if jax.default_backend() == "cpu" else device()
    said = f"{jax.device_count()} devices, {kind}\n{machine.said}\n{ASSUMED}"
    PROGRESS.print(wrapped(said) + "\n")
    cases = [case for part in options.parts for case in CASES[part](options, machine)]
    command.run(options, cases, TABLES, pictures=pictures, together=TABLES, printed=printed)
