"""A training step of a stack whose chain lies over devices, beside the sequential programs and beside one device."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax

import depth
from experiments.common.baselines import SCAN, baselines
from experiments.common.costs import analyze
from experiments.common.versus import Row, distance
from experiments.sharding_rows.measured import TOLERANCE, Measured, bytes_here, in_turn, wrong
from experiments.sharding_rows.predicted import Machine, counted, over_the_chain
from experiments.sharding_rows.stack import (
    Layout,
    Size,
    examples,
    laid_out,
    sequential_loss,
    told,
    training_step,
    weights,
)

LOOP = 64  # the longest Python loop among the sequential programs


def rows(size: Size, layouts: Sequence[Layout], machine: Machine, repeats: int) -> Iterator[Row]:
    """A row for every layout, all of them timed in turn.

    Args:
        size: of the stack.
        layouts: what lies where. One device with the same method is measured beside each.
        machine: what times are predicted with.
        repeats: timed calls of each program.

    Yields:
        "row", "devices", "L", "w", "batch"; the fastest "sequential" program of one device, "sequential ms" and "lax.scan ms"; of
        the layout's program what `Measured.cells` tells, "loss", "error" (of loss and weights, from those of `jax.lax.scan`,
        relative to the largest entry), "collectives", "parameter bytes", "iterations" and "residual"; "sequential depth",
        "depth", "depth speedup"; "predicted ms", "of it messages", "predicted speedup", "log2" of predicted over measured time;
        "speedup" over the fastest sequential program, "over lax.scan", "over one device". What is not known is not in the row;
        what is wrong has a "note" and no speedup.
    """
    here = jax.device_put((weights(size), examples(size)), jax.devices()[0])
    loops = baselines(lambda scan: training_step(sequential_loss(size, scan)), size.length, LOOP)
    alone = dict.fromkeys(
        Layout(method=layout.method) for layout in layouts if layout.method != SCAN
    )
    parallel = {
        layout: laid_out(size, layout) for layout in (*alone, *layouts)
    }  # equal layouts are one
    programs = {name: (loop, here) for name, loop in loops.items()}
    found = in_turn(
        programs | {layout.name: program for layout, program in parallel.items()}, repeats
    )
    # `jax.lax.scan` on one device is what all else is judged by: without it there is nothing to say.
    scan = _measured(found[SCAN])
    right = {
        name: one
        for name in loops
        if isinstance(one := found[name], Measured) and _error(one, scan) <= TOLERANCE
    }
    fastest = min(right, key=lambda name: right[name].timing.median)
    costs = {name: depth.analyze(loop, *here) for name, loop in loops.items()}
    foreseen = min(depth.predict(cost, machine.device) for cost in costs.values())
    for layout in layouts:
        row: Row = {
            "row": f"{size.length} layers of {size.width}, {layout.name}",
            "devices": layout.devices,
        }
        row |= {"L": size.length, "w": size.width, "batch": size.batch}
        row |= {
            "sequential": fastest,
            "sequential ms": 1e3 * right[fastest].timing.median,
            "lax.scan ms": scan.cells()["ms"],
        }
        many = found[layout.name]
        if isinstance(many, str):
            yield row | {"note": many}
            continue
        program, arguments = parallel[layout]
        row |= (
            many.cells()
            | _compared(many, scan)
            | {"parameter bytes": bytes_here(arguments[0]), "collectives": many.sent()}
        )
        if layout.method == "newton":
            row |= dict(zip(("iterations", "residual"), told(size), strict=True))
        cost = analyze(program, *arguments, turns=counted(row.get("iterations")))
        row |= {
            "sequential depth": costs[SCAN].depth,
            "depth": cost.depth,
            "depth speedup": costs[SCAN].depth / cost.depth,
        }
        if layout.method != SCAN:
            computed, sent = over_the_chain(size, layout, machine, row.get("iterations", 0))
            predicted = computed + sent
            row |= {
                "predicted ms": 1e3 * predicted,
                "of it messages": 1e3 * sent,
                "predicted speedup": foreseen / predicted,
            }
            row["log2"] = math.log2(predicted / many.timing.median)
        if "note" not in row:
            one = scan if layout.method == SCAN else found[Layout(method=layout.method).name]
            row |= _speedups(many, right[fastest], scan, one)
        yield row


def _measured(found: Measured | str) -> Measured:
    if isinstance(found, str):
        raise RuntimeError(f"{SCAN} on one device: {found}")
    return found


def _error(one: Measured, scan: Measured) -> float:
    return distance(one.result, scan.result)


def _compared(many: Measured, scan: Measured) -> Row:
    """Loss and error."""
    losses, error = [float(found.result[0]) for found in (many, scan)], _error(many, scan)
    row: dict[str, Any] = {"loss": losses[0], "loss, one device": losses[1]}
    row |= {"difference": abs(losses[0] - losses[1]) / abs(losses[1]), "error": error}
    return row if error <= TOLERANCE else row | {"note": wrong(error)}


def _speedups(many: Measured, fastest: Measured, scan: Measured, one: Measured | str) -> Row:
    others = {"speedup": fastest, "over lax.scan": scan, "over one device": one}
    return {
        key: other.timing.median / many.timing.median
        for key, other in others.items()
        if isinstance(other, Measured)
    }
