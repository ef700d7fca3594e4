"""Strong and weak scaling of a stack over its chain: measured on this machine, and on paper to 1024 devices."""

import dataclasses
from collections.abc import Iterator

import depth
from experiments.common.versus import Row
from experiments.sharding_rows import chains
from experiments.sharding_rows.links import LINKS
from experiments.sharding_rows.predicted import (
    FLOAT,
    Machine,
    over_the_batch,
    over_the_chain,
    parallel_cost,
    sequential,
    sequential_cost,
)
from experiments.sharding_rows.stack import Layout, Size

MEASURED = (1, 2, 4, 8)  # devices
ON_PAPER = tuple(2**k for k in range(11))
STRONG = Size(8192, 16, 32)
PART = 64  # layers on each device, for weak scaling


def sizes(quick: bool) -> dict[int, Size]:
    """The stacks that are measured: for each number of devices, one with equal parts on all of them."""
    part, width, batch = (8, 4, 8) if quick else (PART, 16, 32)
    return {
        count: Size(part * count, width, batch)
        for count in reversed(MEASURED[:: 3 if quick else 1])
    }


def measured_rows(
    size: Size, counts: tuple[int, ...], machine: Machine, repeats: int
) -> Iterator[Row]:
    """A stack on several numbers of devices, or on one; simulated ones share cores, so that more of them can hardly be faster.

    The largest stack is one of both kinds of scaling: its row on most devices is there twice.
    """
    found = list(chains.rows(size, [Layout(chain=count) for count in counts], machine, repeats))
    if len(counts) > 1:
        yield from ({"scaling": "strong"} | row for row in found)
    yield {"scaling": "weak"} | found[-1]


def paper_rows(name: str, turns: int, quick: bool) -> Iterator[Row]:
    """A device model, strong and weak, 1 to 1024 devices.

    Args:
        name: one of `LINKS`.
        turns: how many Newton iterations a training step takes.
        quick: only 1, 32 and 1024 devices.
    """
    machine = Machine(depth.devices[name], LINKS[name])
    for kind in ("strong", "weak"):
        for count in ON_PAPER[:: 5 if quick else 1]:
            size = dataclasses.replace(
                STRONG, length=STRONG.length if kind == "strong" else PART * count
            )
            one = sequential(size, machine.device)
            over_batch = over_the_batch(size, count, machine)
            computed, sent = over_the_chain(size, Layout(chain=count), machine, turns)
            depths = sequential_cost(size).depth, parallel_cost(size, turns).depth
            yield {
                "on paper": name,
                "scaling": kind,
                "devices": count,
                "L": size.length,
                "sequential depth": depths[0],
                "depth": depths[1],
                "depth speedup": depths[0] / depths[1],
                "lax.scan ms": 1e3 * one,
                **({} if over_batch is None else {"batch ms": 1e3 * over_batch}),
                "predicted ms": 1e3 * (computed + sent),
                "of it messages": 1e3 * sent,
                "predicted speedup": one / (computed + sent),
                "parameter MB": 1e-6 * FLOAT * size.length * (size.width**2 + size.width) / count,
                "block MB": 1e-6 * FLOAT * size.length * size.batch * size.width**2 / count,
            }
