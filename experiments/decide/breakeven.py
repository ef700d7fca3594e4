"""Where parallel pays off: a GRU over L and w, parallel beside sequential."""

import depth
from experiments.bench.programs import SCAN
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.decide.programs import Candidate, Chain, Choice, Measured
from experiments.models import zoo

HERE = "here"
FAR_DEVICES = ("H200", "A100", "TPU v5e")
WIDTHS = (1, 4, 16, 64)
LENGTHS = (16, 128, 1024, 8192)
SEQUENTIAL, PARALLEL = "sequential", "parallel"  # candidates


def gru(width: int, length: int) -> zoo.Specimen:
    """A cell of the map."""
    return zoo.Specimen("gru", width, length, 1)


def cell(chain: Chain, model: depth.Device, effort: Effort) -> Row:
    """A row: speedup measured and predicted on this device, and predicted on others."""
    row: Row = {"part": "map", "w": chain.specimen.width, "L": chain.specimen.length}
    sequential, parallel = _rivals(chain, model)
    row |= {
        "direction": chain.direction,
        f"predicted, {HERE}": sequential.seconds / parallel.seconds,
    }
    row["parallel"] = parallel.name
    named = {SEQUENTIAL: sequential, PARALLEL: parallel}
    programs = {name: chain.program(Choice.of(one).run) for name, one in named.items()}
    measured = chain.measure(programs, effort)
    row |= _realised(chain, measured, parallel) | chain.depths(parallel)
    for name in FAR_DEVICES:
        before, after = _rivals(chain, depth.devices[name])
        row[f"predicted, {name}"] = before.seconds / after.seconds
    return row | measured.note()


def _rivals(chain: Chain, model: depth.Device) -> tuple[Candidate, Candidate]:
    """The sequential candidate, and the best of all others."""
    every = chain.candidates(model, memory=int(model.memory) // 2)
    others = [candidate for candidate in every if not candidate.is_sequential]
    sequential = next(candidate for candidate in every if candidate.is_sequential)
    return sequential, min(others, key=lambda candidate: candidate.seconds)


def _realised(chain: Chain, measured: Measured, parallel: Candidate) -> Row:
    """The measured speedup; nothing where a program did not run or is wrong."""
    seconds = measured.seconds
    if not {SCAN, SEQUENTIAL, PARALLEL} <= seconds.keys():
        return {}
    return {
        "realised": seconds[SEQUENTIAL] / seconds[PARALLEL],
        "over lax.scan": seconds[SCAN] / seconds[PARALLEL],
        **chain.realised(measured, PARALLEL),
        **measured.cells(PARALLEL, parallel.seconds),
    }
