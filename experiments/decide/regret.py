"""Regret: how much longer the program that "auto" takes needs than the fastest one.

"regret %" compares it with `jax.lax.scan`, an unrolled loop of deeppcr and all candidates of the
planner; "regret, loops %" also with `jax.lax.scan` with unroll 4 and 16 and a Python loop, which
are no candidates.
"""

import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from jax import lax

import depth
from experiments.bench.columns import LABELS
from experiments.bench.programs import SCAN
from experiments.bench.progress import PROGRESS
from experiments.bench.summary import percentile
from experiments.bench.table import Row, show
from experiments.bench.timing import Effort
from experiments.decide.programs import DIRECTIONS, Candidate, Chain, Measured
from experiments.models import zoo

MOST_BYTES = 5e8  # of the Jacobians of all steps; larger programs are not run
HOPELESS = 25  # nor are those predicted to take that many times the least predicted time
AGAIN = "lax.scan, again"  # compiled a second time, for the noise


def regret(
    chain: Chain,
    model: depth.Device,
    effort: Effort,
) -> Row:
    """What "auto" takes for a chain, what is the fastest, and the time to plan."""
    PROGRESS.say(f"planning {chain.specimen.name}, {chain.direction}")
    start = time.perf_counter()
    chosen = chain.candidates(model, everything=False)[0]
    planning = time.perf_counter() - start
    every = chain.running(model)
    predicted = {candidate.name: candidate.seconds for candidate in every}
    hopeless = HOPELESS * min(predicted.values())
    programs, skipped = {AGAIN: chain.program(lax.scan)}, []
    for choice in chain.choices(every):
        is_large = _has_blocks(choice.label) and _block_bytes(chain.specimen) > MOST_BYTES
        if is_large or predicted.get(choice.label, 0.0) > hopeless:
            skipped.append(choice.label)
        else:
            programs[choice.label] = chain.program(choice.run)
    measured = chain.measure(programs, effort)
    sequential = next(candidate for candidate in every if candidate.is_sequential)
    specimen, within = chain.specimen, (programs.keys() - {AGAIN}) | {SCAN}
    judged = _judged(chain, measured, chosen, within, planning)
    seconds = measured.seconds
    row = {
        "part": "regret",
        "kind": specimen.kind,
        "w": specimen.width,
        "L": specimen.length,
        "batch": specimen.batch,
        "direction": chain.direction,
        "chosen": chosen.name,
        **judged,
        **chain.depths(chosen),
        "predicted speedup": sequential.seconds / chosen.seconds,
        "seconds": {name: seconds[name] for name in seconds if name in within},
        "loops": {name: seconds[name] for name in seconds if name in measured.loops},
        "predicted": predicted,
        "errors": {name: one.error for name, one in measured.outcomes.items() if one.build},
        "not run": skipped,
    }
    is_too_large = f"{chosen.name} was chosen, and is too large to be run here"
    return row | measured.note("" if chosen.name in measured.outcomes else is_too_large)


def _judged(
    chain: Chain,
    measured: Measured,
    chosen: Candidate,
    within: Collection[str],
    planning: float,
) -> Row:
    """The regret of a choice; nothing if it, or `jax.lax.scan`, did not run or is wrong."""
    seconds, name = measured.seconds, chosen.name
    if not {name, SCAN, AGAIN} <= seconds.keys():
        return {}
    again = seconds.pop(AGAIN)
    built = measured.outcomes[name].build
    assert built is not None
    fastest = measured.best(within)
    return {
        "fastest": fastest,
        "regret %": _more(seconds[name], seconds[fastest]),
        "regret, loops %": _more(seconds[name], min(seconds.values())),
        "noise %": _more(max(again, seconds[SCAN]), min(again, seconds[SCAN])),
        "lax.scan us": 1e6 * seconds[SCAN],
        "speedup": seconds[SCAN] / seconds[name],
        **chain.realised(measured, name),
        **measured.cells(name, chosen.seconds),
        "lax.scan MB": measured.outcomes[SCAN].row["temp MB"],
        "planning %": 100 * planning / (built.lower + built.compile),
    }


def _more(seconds: float, least: float) -> float:
    """How much more the one is than the other, in percent."""
    return 100 * (seconds / least - 1)


def _has_blocks(name: str) -> bool:
    return "Newton" in name or "blocks" in name


def _block_bytes(specimen: zoo.Specimen) -> float:
    entries = specimen.width if specimen.kind == "elementwise" else specimen.width**2
    return 4.0 * specimen.length * specimen.batch * entries


# -- summaries


def family(name: str) -> str:
    """The family of a candidate."""
    method, _, adjoint = name.partition(" / ")
    if name == SCAN:
        return name
    if method.startswith("Newton") and not adjoint:
        return "Newton"
    if adjoint.startswith("blocks"):
        return ("Newton, " if method.startswith("Newton") else "") + "blocks"
    return ("Newton, " if method.startswith("Newton") else "") + (adjoint or method)


SUMMARY = {
    "direction": LABELS["direction"],
    "kind": LABELS["kind"],
    "chains": "number of chains",
    "median %": "median of the regret, in percent",
    "90th %": "90th percentile of the regret",
    "worst %": "largest regret",
    "worst at": "the chain that has it",
    "loops too, median %": "median of the regret against further loops, too",
    "noise, median %": "difference between two measurements of jax.lax.scan, in percent",
    "speedup over lax.scan": "geometric mean of the chosen program's speedup over jax.lax.scan",
    "least": "least speedup",
    "memory": "geometric mean of the memory of the chosen program over that of jax.lax.scan",
    "over best loop": "fastest loop without deeppcr / this program, measured",
    "predicted": "geometric mean of the predicted speedup",
    "planning %": "time to plan / time to compile, in percent",
}


def by_kind(rows: Sequence[Row]) -> list[Row]:
    """Regret by direction and kind of chain."""
    found = []
    for direction in DIRECTIONS:
        there = [row for row in rows if row["direction"] == direction and "regret %" in row]
        for kind in [*dict.fromkeys(row["kind"] for row in there), "all"] if there else ():
            chosen = [row for row in there if kind in (row["kind"], "all")]
            found.append(_summary(kind, direction, chosen))
    return found


def confusion(rows: Sequence[Row]) -> Iterator[str]:
    """Tables of what was chosen where something was the fastest, by direction."""
    for direction in DIRECTIONS:
        there = [row for row in rows if row["direction"] == direction and "regret %" in row]
        if there:
            table = show(_confusion(there))
            yield f"{direction}: number of chains by chosen (rows) and fastest (columns)\n{table}"


def _summary(kind: str, direction: str, found: Sequence[Row]) -> Row:
    regrets = [row["regret %"] for row in found]
    worst = max(found, key=lambda row: float(row["regret %"]))
    speedups = [row["speedup"] for row in found]
    return {
        "direction": direction,
        "kind": kind,
        "chains": len(found),
        "median %": statistics.median(regrets),
        "90th %": percentile(regrets, 0.9),
        "worst %": max(regrets),
        "worst at": f"w={worst['w']} L={worst['L']} batch={worst['batch']}",
        "loops too, median %": statistics.median(row["regret, loops %"] for row in found),
        "noise, median %": statistics.median(row["noise %"] for row in found),
        "noise, worst %": max(row["noise %"] for row in found),
        "depth speedup": statistics.geometric_mean(row.get("depth speedup", 1.0) for row in found),
        "predicted": statistics.geometric_mean(row["predicted speedup"] for row in found),
        "speedup over lax.scan": statistics.geometric_mean(speedups),
        "least": min(speedups),
        "memory": statistics.geometric_mean(map(_memory, found)),
        "over best loop": statistics.geometric_mean(row["over best loop"] for row in found),
        "|log2|": statistics.median(abs(row["log2"]) for row in found),
        "planning %": statistics.median(row["planning %"] for row in found),
        "most": max(row["planning %"] for row in found),
    }


def _memory(row: Row) -> float:
    """The temporaries of the chosen program over those of `jax.lax.scan`: 1 for none in both."""
    least = 1e-6  # one byte
    chosen = float(row["temp MB"])
    scan = float(row.get("lax.scan MB") or chosen)  # rows of older files lack it
    return max(chosen, least) / max(scan, least)


def _confusion(rows: Sequence[Row]) -> list[Row]:
    pairs = Counter((family(row["chosen"]), family(row["fastest"])) for row in rows)
    columns = sorted({fastest for _, fastest in pairs})
    return [
        {"chosen": chosen} | {fastest: pairs.get((chosen, fastest), 0) for fastest in columns}
        for chosen in sorted({chosen for chosen, _ in pairs})
    ]
