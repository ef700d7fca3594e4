"""Where parallel pays off: a GRU over L and w, the best parallel candidate beside the sequential program."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import depth
from deeppcr._plan import Candidate, best_gradient, best_method
from experiments.common import zoo
from experiments.common.baselines import SCAN
from experiments.decide_parts.measured import Effort, Measured, measure
from experiments.decide_parts.programs import Chain, Choice

Row = dict[str, Any]

FAR_DEVICES = ("H200", "A100", "TPU v5e")
WIDTHS = (1, 4, 16, 64)
LENGTHS = (16, 128, 1024, 8192)
SEQUENTIAL, PARALLEL = "sequential", "parallel"  # candidates


def gru(width: int, length: int) -> zoo.Specimen:
    """What the map is of."""
    return zoo.Specimen("gru", width, length, 1)


def cell(chain: Chain, model: depth.Device, effort: Effort) -> Row:
    """One cell of the map: predicted and realised speedup on this device; predicted, on others."""
    row: Row = {
        "part": "map",
        "w": chain.specimen.width,
        "L": chain.specimen.length,
        "direction": chain.direction,
    }
    sequential, parallel = _rivals(chain, model)
    row["predicted, here"] = sequential.seconds / parallel.seconds
    row["parallel"] = parallel.name
    loops = chain.loops
    programs = dict(loops)
    for name, candidate in ((SEQUENTIAL, sequential), (PARALLEL, parallel)):
        programs[name] = chain.program(Choice.of(candidate).run)
    measured = measure(programs, chain.task.arguments, effort)
    row |= _realised(measured, parallel, list(loops)) | chain.depths(parallel)
    for name in FAR_DEVICES:
        before, after = _rivals(chain, depth.devices[name])
        row[f"predicted, {name}"] = before.seconds / after.seconds
    return row | measured.note


def _rivals(chain: Chain, model: depth.Device) -> tuple[Candidate, Candidate]:
    """The sequential program, and the best of all others."""
    field = dataclasses.replace(chain.field(model), memory=int(model.memory) // 2)
    every = (
        best_gradient(field, None, everything=True)
        if chain.is_gradient
        else best_method(field, everything=True)
    )
    sequential = next(candidate for candidate in every if candidate.is_sequential)
    return sequential, min(
        (other for other in every if not other.is_sequential),
        key=lambda candidate: candidate.seconds,
    )


def _realised(measured: Measured, parallel: Candidate, loops: Sequence[str]) -> Row:
    """What came of it; nothing where one of the programs did not run or is wrong."""
    seconds = measured.seconds
    if not {SCAN, SEQUENTIAL, PARALLEL} <= seconds.keys():
        return {}
    loop = measured.best(loops)
    return {
        "realised": seconds[SEQUENTIAL] / seconds[PARALLEL],
        "over lax.scan": seconds[SCAN] / seconds[PARALLEL],
        "best loop": loop,
        "over best loop": seconds[loop] / seconds[PARALLEL],
        **measured.told(PARALLEL, parallel.seconds),
    }
