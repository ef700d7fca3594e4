"""What to change in the rule: judged by measured rows, without measuring anything.

A rule is kept where what it takes is the fastest, or nearly; else the verdict says what was faster,
how much, and how often.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from experiments.bench.engine import AUTO
from experiments.bench.summary import CAPTURED, cases
from experiments.bench.table import Row

REGRET = 1.15  # times as long as the fastest, up to which a choice is right
APART = 2.0  # modelled and measured times that differ by more are a fault of the model
KEEP, CHANGE, UNKNOWN = "keep", "change", "not measured"
ELSEWHERE = "not judged here: a rule of NVIDIA GPUs"


class Rule(NamedTuple):
    """A rule that takes a program without comparing times.

    Attributes:
        name: what it says, with the name of what says so in `deeppcr.choose`.
        taken: the program that it takes.
        others: those that it might take instead.
        gain: how many times faster they have to be.
    """

    name: str
    taken: str
    others: Sequence[str]
    gain: float = REGRET


LOOPS = ("lax.scan", "lax.scan, unroll 4", "lax.scan, unroll 16")
RULES = (
    Rule("loops: 16 steps in one CUDA graph (UNROLL)", LOOPS[2], LOOPS[:2]),
    Rule("loops: one kernel where there is one", "fused", LOOPS),
    Rule("Newton's method: XLA's programs, no kernel", "newton", ("newton, fused",), 2.0),
)


def programs(rows: Sequence[Row]) -> list[Row]:
    """For each case what the default runs, the fastest program, and how much longer it takes."""
    found = []
    for labels, group in cases(rows):
        mine = [row for row in group if not row["program"].endswith(CAPTURED)]
        auto = next((row for row in mine if row["program"] == AUTO), None)
        row: Row = {
            key: labels[key] for key in ("title", "L", "w", "batch", "direction") if key in labels
        }
        row |= {"runs": auto["runs"]} if auto and "runs" in auto else {}
        right = {one["program"]: float(one["ms"]) for one in mine if _is_right(one)}
        wrong = [one["program"] for one in mine if str(one.get("note", "")).startswith("wrong")]
        if AUTO in right:
            best = min(right, key=lambda name: right[name])
            row |= {"default ms": right[AUTO], "fastest": best, "fastest ms": right[best]}
            row |= {"regret": right[AUTO] / right[best]}
        elif auto:
            row |= {"note": f"the default: {auto.get('note', 'not timed')}"}
        found.append(row | ({"wrong": ", ".join(wrong)} if wrong else {}))
    return found


def rules(
    rows: Sequence[Row], judged: Sequence[Row], constants: Sequence[Row], platform: str
) -> list[Row]:
    """A verdict on each rule.

    Args:
        rows: measured programs.
        judged: what `programs` says of them.
        constants: modelled and measured ones.
        platform: that they were measured on; some rules are of "cuda".
    """
    forward = [row for row in judged if "forward" in str(row.get("direction"))]
    others = [row for row in judged if row not in forward]
    said = [
        {"rule": "forward: the method (choose_method)", "verdict": choice(forward)},
        {"rule": "gradients: method and adjoint (choose_adjoint)", "verdict": choice(others)},
    ]
    is_theirs = platform == "cuda"
    said += [
        {"rule": rule.name, "verdict": compared(rule, rows) if is_theirs else ELSEWHERE}
        for rule in RULES
    ]
    return said + list(modelled(constants))


def choice(judged: Sequence[Row]) -> str:
    """Whether the default is right, or what is faster."""
    timed = [row for row in judged if "regret" in row]
    if wrong := [
        row for row in judged if str(row.get("note", "")).startswith("the default: wrong")
    ]:
        return f"{CHANGE}: the default is wrong in {len(wrong)} of {len(judged)}"
    return _verdict([(row["fastest"], row["regret"]) for row in timed], REGRET)


def compared(rule: Rule, rows: Sequence[Row]) -> str:
    """Whether the program of a rule is the fastest of those that it might take."""
    found, wrong = list[tuple[str, float]](), 0
    for _, group in cases(rows):
        wrong += any(
            row["program"] == rule.taken and str(row.get("note", "")).startswith("wrong")
            for row in group
        )
        right = {row["program"]: float(row["ms"]) for row in group if _is_right(row)}
        if rule.taken in right and (others := set(right) & set(rule.others)):
            best = min(others, key=lambda name: right[name])
            found.append((best, right[rule.taken] / right[best]))
    if wrong:
        return f"{CHANGE}: {rule.taken} is wrong in {wrong} of {len(found) + wrong}"
    return _verdict(found, rule.gain)


def modelled(constants: Sequence[Row]) -> Iterator[Row]:
    """A verdict on each constant."""
    for row in constants:
        name, ratio = row["constant"], row.get("measured / modelled")
        if ratio is None:
            verdict = row.get("note", UNKNOWN)
        else:
            word = KEEP if 1 / APART <= ratio <= APART else CHANGE
            model, measured = row["modelled ns"], row["measured ns"]
            verdict = f"{word}: {model:.3g} ns modelled, {measured:.3g} ns measured"
        yield {"rule": name, "verdict": verdict}


def _verdict(found: Sequence[tuple[str, float]], gain: float) -> str:
    """From the fastest other program of each case, and how many times faster it is."""
    if not found:
        return UNKNOWN
    worse = [(name, times) for name, times in found if times > gain]
    if not worse:
        return f"{KEEP}: nothing was {gain:g}x faster in {len(found)}"
    (name, count), *_ = Counter(name for name, _ in worse).most_common()
    times = median(times for other, times in worse if other == name)
    return f"{CHANGE}: {name} was {times:.2g}x faster in {count} of {len(found)}"


def _is_right(row: Row) -> bool:
    return "ms" in row and "note" not in row
