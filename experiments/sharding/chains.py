"""A training step of a stack over devices, beside the sequential programs and one device."""

import math
from collections.abc import Iterator, Sequence

import jax

import depth
from experiments.bench.costs import analyze
from experiments.bench.engine import Case, Outcome, Variant, measure
from experiments.bench.programs import SCAN, baselines
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.sharding.collectives import collectives
from experiments.sharding.predicted import Machine, over_the_chain
from experiments.sharding.stack import (
    Layout,
    Size,
    batch_of,
    bytes_here,
    laid_out,
    sequential_loss,
    solve_stack,
    training_step,
    weights,
)

LOOP = 64  # the longest Python loop among the sequential programs
TOLERANCE = 1e-5  # relative to the largest entry: float32 sums in another order


def rows(size: Size, layouts: Sequence[Layout], machine: Machine, effort: Effort) -> Iterator[Row]:
    """A row for every layout, all of them timed interleaved.

    Args:
        size: of the stack.
        layouts: of the programs. One device with the same method is measured beside each.
        machine: predicts times.
        effort: how long programs are timed.

    Yields:
        "row", "devices", "L", "w", "batch"; the fastest "sequential" program of one device,
        "sequential ms" and "lax.scan ms"; of the layout's program its times, "loss", "error" (of
        loss and weights, from those of `jax.lax.scan`, relative to the largest entry),
        "collectives", "parameter bytes", "iterations" and "residual"; "sequential depth", "depth",
        "depth speedup"; "predicted ms", "of it messages", "predicted speedup", "log2" of predicted
        over measured time; "speedup" over the fastest sequential program, "over lax.scan", "over
        one device". Unknown cells are missing; a wrong program has a "note" and no speedup.
    """
    here = jax.device_put((weights(size), batch_of(size)), jax.devices()[0])
    loops = baselines(lambda scan: training_step(sequential_loss(size, scan)), size.length, LOOP)
    alone = [Layout(method=layout.method) for layout in layouts if layout.method != SCAN]
    programs = {layout: laid_out(size, layout) for layout in dict.fromkeys([*alone, *layouts])}
    variants = {
        layout.name: Variant(run, [arguments], statistics=_loss)
        for layout, (run, arguments) in programs.items()
    }
    plain = {name: Variant(loop, statistics=_loss) for name, loop in loops.items()}
    found = measure(Case({}, [here], plain, variants, TOLERANCE), effort)
    scan = found[SCAN]
    if not scan.timing:  # all others are compared with it
        raise RuntimeError(f"{SCAN} on one device: {scan.note}")
    right = [name for name in loops if found[name].is_right]
    fastest = min(right, key=lambda name: _seconds(found[name]))
    costs = {name: depth.analyze(loop, *here) for name, loop in loops.items()}
    foreseen = min(depth.predict(cost, machine.device) for cost in costs.values())
    for layout in layouts:
        row: Row = {"row": f"{size.length} layers of {size.width}, {layout.name}"}
        row |= {"devices": layout.devices, "L": size.length, "w": size.width, "batch": size.batch}
        row |= {"sequential": fastest, "sequential ms": 1e3 * _seconds(found[fastest])}
        row["lax.scan ms"] = 1e3 * _seconds(scan)
        many = found[layout.name]
        if not many.timing:
            yield row | {"note": many.note}
            continue
        program, arguments = programs[layout]
        row |= many.times() | compared(many, scan)
        row["parameter bytes"] = bytes_here(arguments[0])
        if layout.method == "newton":
            row |= dict(zip(("iterations", "residual"), solve_stack(size), strict=True))
        cost = analyze(program, *arguments, trips=row.get("iterations"))
        row |= {"sequential depth": costs[SCAN].depth, "depth": cost.depth}
        row["depth speedup"] = costs[SCAN].depth / cost.depth
        if layout.method != SCAN:
            computed, sent = over_the_chain(size, layout, machine, row.get("iterations", 0))
            predicted = computed + sent
            row |= {"predicted ms": 1e3 * predicted, "of it messages": 1e3 * sent}
            row |= {"predicted speedup": foreseen / predicted}
            row["log2"] = math.log2(predicted / _seconds(many))
        if many.is_right:
            one = scan if layout.method == SCAN else found[Layout(method=layout.method).name]
            others = {"speedup": found[fastest], "over lax.scan": scan, "over one device": one}
            for key, other in others.items():
                if other.timing:
                    row[key] = _seconds(other) / _seconds(many)
        yield row


def compared(many: Outcome, one: Outcome) -> Row:
    """The cells that compare a program with one device, and its collectives."""
    assert many.build is not None
    losses = [outcome.row["loss"] for outcome in (many, one)]
    sent = collectives(many.build.text)
    row = many.row | {"loss, one device": losses[1]}
    row |= {"difference": abs(losses[0] - losses[1]) / abs(losses[1])}
    row |= {"collectives": {kind: each._asdict() for kind, each in sent.items()}}
    return row if many.is_right else row | {"note": wrong(many)}


def wrong(many: Outcome) -> str:
    """The note of a result that differs from that of one device."""
    return f"wrong: differs from one device by {many.error:.1e}"


def _loss(result: tuple[jax.Array, object]) -> Row:
    return {"loss": float(result[0])}


def _seconds(one: Outcome) -> float:
    return one.timing.median if one.timing else math.inf
