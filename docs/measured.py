"""The tables and pictures of experiments on the site, from the files that they were kept in.

A line of a page becomes what it names, once for each device:

    <!-- table: iterations_width -->      a table
    <!-- picture: iterations_width -->    a picture
    <!-- pictures: iterations -->         all others of an experiment: iterations_*.png
"""

import functools
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import report
from experiments.bench.summary import best, cases, errors, percentile
from experiments.bench.table import Row, markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"
PARITY = ROOT / "tests" / "diffusion" / "parity.jsonl"  # by tests/diffusion/make_golden.py
MARKER = re.compile(r"^<!-- (table|pictures?): (\w+) -->$", re.MULTILINE)
STOPPED = (0, 1, 2, 3, 4, 6, 8, 16, 64)  # iterations
LONG = 20  # rows: a longer table is folded away
Rows = dict[str, list[Row]]  # of one device, by experiment


def fill(text: str, up: str) -> str:
    """A page with tables and pictures in the place of its markers.

    Args:
        text: of the page.
        up: the way from the page to the root of the site.

    Raises:
        ValueError: a marker that names nothing.
    """

    shown = {found[2] for found in MARKER.finditer(text) if found[1] == "picture"}

    def made(found: re.Match[str]) -> str:
        kind, name = found.groups()
        if kind == "table":
            return table(name)
        topics = sorted({path.stem for path in RESULTS.glob(f"*/{name}_*.png")} - shown)
        return pictures([name] if kind == "picture" else [name, *topics], up)

    return MARKER.sub(made, text)


@functools.cache
def devices() -> list[report.Device]:
    """All that is kept."""
    return report.read(sorted(path for path in RESULTS.iterdir() if path.is_dir()))


def table(name: str) -> str:
    """A table of each device, with a line below it on where and when it was measured."""
    if name not in TABLES:
        raise ValueError(f"no table is called {name!r}; there are: {', '.join(TABLES)}")
    if name.startswith("parity"):  # the same on every device
        return _shown(TABLES[name]({"parity": parity()}), _compared_with())
    parts = []
    for device in devices():
        rows = TABLES[name](device.rows)
        if rows:
            names = [experiment for experiment in device.rows if name.startswith(experiment)]
            parts.append(_shown(rows, report.measured(device, *names)))
    return "\n\n".join(parts) or "*Not measured yet.*"


def _shown(rows: list[Row], source: str) -> str:
    """A table, folded away if it is long, and where it is from."""
    text = markdown([{key: _cell(value) for key, value in row.items()} for row in rows])
    if len(rows) > LONG:
        title = f"<summary>{len(rows)} rows</summary>"
        text = f'<details markdown="1">{title}\n\n{text}\n\n</details>'
    source = f'<p class="source">{source}</p>'
    return f'<div class="measured" markdown="1">\n\n{text}\n\n{source}\n\n</div>'


@functools.cache
def parity() -> list[Row]:
    """How far samples are from those of diffusers."""
    return [json.loads(line) for line in PARITY.read_text(encoding="utf-8").splitlines()]


def _compared_with() -> str:
    first = parity()[0]
    return f"Compared with diffusers {first['diffusers']} on torch {first['torch']}."


def _cell(value: Any) -> Any:
    """A value as a table shows it: large numbers without exponents."""
    if isinstance(value, float) and abs(value) >= 1000:
        return int(float(f"{value:.2e}"))
    return "" if value is None else value


def pictures(names: Sequence[str], up: str) -> str:
    """Pictures of each device, one below the other, as links to themselves."""
    found = []
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        for name in names:
            if (folder / f"{name}.png").exists():
                target = f"{up}experiments/results/{folder.name}/{name}.png"
                found.append(f"[![{name.replace('_', ' ')}, on {folder.name}]({target})]({target})")
    if not found:
        raise ValueError(f"there is no picture {names[0]}.png in {RESULTS}/<device>")
    return "\n\n".join(found)


# -- helpers


def pick(rows: Iterable[Row], **labels: Any) -> list[Row]:
    """The rows with these cells."""
    return [row for row in rows if all(row.get(key) == value for key, value in labels.items())]


def pivot(
    rows: Iterable[Row], down: Sequence[str], across: str, cell: Callable[[Row], Any]
) -> list[Row]:
    """A row for every combination of ``down``, a column for every value of ``across``."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row.get(name, "") for name in down)
        line = found.setdefault(key, dict(zip(down, key, strict=True)))
        line[str(row[across])] = cell(row)
    return list(found.values())


def parallel(rows: Iterable[Row]) -> list[Row]:
    """The fastest parallel program of each case, and the rewritten loop if "auto" takes it."""
    rows = list(rows)
    loops = {
        tuple(case.items()): row["speedup"]
        for case, group in cases(rows)
        for row in group
        if row["program"] == "auto" and "speedup" in row and report.is_loop(row)
    }
    found = []
    for row in best(rows, without=report.SEQUENTIAL):
        keys = list(row)
        case = {key: row[key] for key in keys[: keys.index("sequential")]}
        shown = {key: value for key, value in case.items() if key != "part"}
        shown |= {"best loop, ms": row["sequential ms"], "parallel, ms": row["parallel ms"]}
        shown |= {"program": row["parallel"], "speedup": row["speedup"]}
        shown |= {"predicted": row.get("predicted speedup", "")}
        found.append(shown | {"loop rewritten, speedup": loops.get(tuple(case.items()), "")})
    return found


def mean(values: Sequence[float]) -> float:
    """Their geometric mean."""
    return math.exp(statistics.fmean(map(math.log, values)))


# -- the tables


def overview(rows: Rows) -> list[Row]:
    """How often a parallel program is faster than the best loop, by experiment and direction."""
    found = []
    for name in ("mlp", "gradients", "iterations", "diffusion", "resnet"):
        mine = [row for row in rows.get(name, []) if row.get("part") not in ("accuracy", "stopped")]
        groups: dict[str, list[float]] = {}
        for row in best(mine, without=report.SEQUENTIAL):
            groups.setdefault(row.get("direction", "forward"), []).append(row["speedup"])
        for direction, speedups in groups.items():
            found.append(
                {
                    "experiment": name,
                    "direction": direction,
                    "cases": len(speedups),
                    "parallel is faster": sum(speedup > 1 for speedup in speedups),
                    "speedup, median": statistics.median(speedups),
                    "best": max(speedups),
                    "worst": min(speedups),
                }
            )
    return found


def gradients_adjoints(rows: Rows) -> list[Row]:
    """The gradient of a GRU by "auto"."""
    found = []
    groups = cases(pick(rows.get("gradients", []), part="adjoints"))
    forward = {
        (case["L"], case["w"], case["batch"]): auto["speedup"]
        for case, group in groups
        for auto in pick(group, program="auto")
        if case["direction"] == "forward"
    }
    for case, group in groups:
        auto, scan = pick(group, program="auto"), pick(group, program="lax.scan")
        if case["direction"] == "gradient" and auto and scan:
            found.append(
                {
                    "T": case["L"],
                    "units": case["w"],
                    "batch": case["batch"],
                    "lax.scan, ms": scan[0]["ms"],
                    "best loop, ms": min(row["ms"] for row in group if row["baseline"]),
                    "deeppcr, ms": auto[0]["ms"],
                    "over lax.scan": auto[0]["over lax.scan"],
                    "over the best loop": auto[0]["speedup"],
                    "predicted": auto[0]["predicted speedup"],
                    "forward, over the best loop": forward.get(
                        (case["L"], case["w"], case["batch"]), ""
                    ),
                }
            )
    if found:
        both = ("over lax.scan", "over the best loop")
        means = {key: mean([row[key] for row in found]) for key in both}
        found.append(dict.fromkeys(found[0], "") | {"T": "geometric mean"} | means)
    return found


def gradients_memory(rows: Rows) -> list[Row]:
    """Megabytes of the gradient of a GRU, by adjoint."""
    named = {
        "lax.scan": "jax.grad of lax.scan",
        "adjoint, backprop": '"backprop"',
        "adjoint, recurrence": '"sequential"',
        "adjoint, pcr": '"pcr"',
    }
    mine = pick(rows.get("gradients", []), part="adjoints", direction="gradient")
    mine = [row | {"T": row["L"], "units": row["w"], "named": named[row["program"]]}
            for row in mine if row["program"] in named]  # fmt: skip
    return pivot(mine, ("T", "units", "batch"), "named", lambda row: row["temp MB"])


def gradients_cells(rows: Rows) -> list[Row]:
    """GRU and LSTM of several sizes."""
    return parallel(pick(rows.get("gradients", []), part="grid"))


def gradients_layers(rows: Rows) -> list[Row]:
    """Recurrent layers of flax, and the same cells in `deeppcr.nn.RNN`."""
    found, layers = [], pick(rows.get("gradients", []), part="layers", program="auto")
    for cell in dict.fromkeys(row["kind"] for row in layers):
        auto = pick(layers, kind=cell)
        speedups = [row["speedup"] for row in auto]
        found.append(
            {
                "cell": cell,
                "cases": len(auto),
                "over lax.scan": mean([row["over lax.scan"] for row in auto]),
                "over the best loop": mean(speedups),
                "worst": min(speedups),
                "best": max(speedups),
                "predicted": mean([row["predicted speedup"] for row in auto]),
            }
        )
    return found


def gradients_training(rows: Rows) -> list[Row]:
    """A GRU that learns to read digits, to know speakers, and the parity of many bits."""
    keys = ("kind", "L", "w", "program", "steps", "last loss", "losses differ", "alike for")
    mine = pick(rows.get("gradients", []), part="training")
    return [{key: row.get(key, "") for key in (*keys, "accuracy")} for row in mine]


def gradients_speech(rows: Rows) -> list[Row]:
    """A pretrained LSTM, which amplifies differences."""
    mine = pick(rows.get("gradients", []), part="speech")
    return [
        {
            "program": row["program"],
            "ms": row["ms"],
            "times the best loop": 1 / row["speedup"],
            "iterations": row.get("iterations", ""),
            "error": row["error"],
        }
        for row in mine
        if "ms" in row
    ]


def decide_regret(rows: Rows) -> list[Row]:
    """How much slower what "auto" takes is than the fastest, over all chains that were drawn."""
    found = []
    for direction in ("forward", "gradient"):
        mine = pick(rows.get("decide", []), part="regret", direction=direction)
        mine = [row for row in mine if "regret %" in row]
        if not mine:
            continue
        regret = [row["regret %"] for row in mine]
        noise = [row["noise %"] for row in mine]
        found.append(
            {
                "direction": direction,
                "regret %, median": round(statistics.median(regret), 1),
                "90th percentile": percentile(regret, 0.9),
                "worst": max(regret),
                "within 15 %": f"{sum(value <= 15 for value in regret)} of {len(regret)}",
                "lax.scan against itself %, median": statistics.median(noise),
                "its worst": max(noise),
                "auto over lax.scan": mean([row["speedup"] for row in mine]),
                "over the best loop": mean([row["over best loop"] for row in mine]),
                "planning, % of compiling": statistics.median(row["planning %"] for row in mine),
            }
        )
    return found


def decide_worst(rows: Rows) -> list[Row]:
    """The chains on which "auto" loses most."""
    mine = [row for row in pick(rows.get("decide", []), part="regret") if "regret %" in row]
    keys = ("kind", "w", "L", "batch", "direction", "chosen", "fastest", "regret %", "noise %")
    mine.sort(key=lambda row: -float(row["regret %"]))
    return [{key: row[key] for key in keys} for row in mine[:6]]


def decide_breakeven(rows: Rows) -> list[Row]:
    """Speedups of a GRU over plain `jax.lax.scan`, measured here and predicted for others."""
    found: dict[tuple[int, int], Row] = {}
    for row in pick(rows.get("decide", []), part="map"):
        line = found.setdefault((row["w"], row["L"]), {"units": row["w"], "steps": row["L"]})
        direction = row["direction"]
        line[f"here, {direction}"] = row.get("over lax.scan", "")
        for target in ("H200", "TPU v5e"):
            line[f"{target}, {direction} (predicted)"] = row[f"predicted, {target}"]
    keys = sorted({key for row in found.values() for key in row if "," in key})
    keys.sort(key=lambda key: key[:4] != "here")
    return [{key: row.get(key, "") for key in ("units", "steps", *keys)} for row in found.values()]


def decide_giving_up(rows: Rows) -> list[Row]:
    """What a chain costs on which Newton's method stops at its budget."""
    keys = ("chain", "method", "iterations", "ended", "error, lax.scan")
    return [
        {key: row.get(key, "") for key in keys}
        | {
            "times the sequential time, here": row.get("times sequential, here", ""),
            "on an H200 (predicted)": row.get("predicted for H200", ""),
        }
        for row in pick(rows.get("decide", []), part="giving-up")
    ]


def _iterations(row: Row) -> str:
    """How many there were, and in brackets the time as a multiple of the best loop's."""
    if row["ended"] != "converged":
        return f"over {row['iterations']}"
    slower = 1 / row["speedup"]
    multiple = f"{slower:.3g}" if slower < 1000 else f"{slower:,.0f}"
    return f"{row['iterations']} ({multiple}x)"


def iterations_forms(rows: Rows) -> list[Row]:
    """Iterations until converged, and how many times the best loop's time that takes."""
    shown = {
        "dense": "dense",
        "blocks 4": "blocks of 4",
        "diagonal": "diagonal",
        "4 probes": "4 probes",
        "scalar": "scalar",
        "zero": "zero",
    }

    mine = [row for row in pick(rows.get("iterations", []), part="forms")
            if row["program"] in shown and "speedup" in row]  # fmt: skip
    mine = [row | {"form": shown[row["program"]]} for row in mine]
    lines = pivot(mine, ("chain", "w", "L"), "form", _iterations)
    order = [name for name in shown.values() if any(name in line for line in lines)]
    keys = ("chain", "w", "L", *order)
    return [{key: line.get(key, "") for key in keys} for line in lines]


def iterations_accuracy(rows: Rows) -> list[Row]:
    """The error after k iterations; once they have converged, it stays."""
    labels = ("chain", "w", "L", "form")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in pick(rows.get("iterations", []), part="accuracy"):
        groups.setdefault(tuple(row[label] for label in labels), []).append(row)
    found = []
    for key, group in groups.items():
        line = dict(zip(labels, key, strict=True))
        for k in STOPPED:
            then = pick(group, k=k) or [
                row for row in pick(group, ended="converged") if row["k"] < k
            ]
            error = then[0].get("error", math.inf) if then else None
            line[f"k\u00a0=\u00a0{k}"] = (
                "" if error is None else f"{error:.1g}".replace("inf", "overflow")
            )
        found.append(line)
    return found


def iterations_width(rows: Rows) -> list[Row]:
    """A GRU's forward pass by width: iterations, time beside the best loop's, and memory."""
    found = []
    for case, group in cases(pick(rows.get("iterations", []), part="width")):
        loop = min(row["ms"] for row in group if row["baseline"])
        line: Row = {"w": case["w"], "L": case["L"], "best loop, ms": loop}
        for row in group:
            if not row["baseline"] and "speedup" in row:
                line[row["program"]] = _iterations(row)
                line[f"{row['program']}, MB"] = row["temp MB"]
        found.append(line)
    return found


def iterations_damping(rows: Rows) -> list[Row]:
    """Iterations with and without a trust region."""

    def cell(row: Row) -> Any:
        over = row["ended"] != "converged"
        return f"over {row['iterations']}" if over else row["iterations"]

    mine = [row for row in pick(rows.get("iterations", []), part="damping") if "iterations" in row]
    return pivot(mine, ("chain", "L", "growth rate"), "program", cell)


def field_published(rows: Rows) -> list[Row]:
    """What others have published, and what comes back."""
    keys = {
        "problem": "problem",
        "L": "L",
        "source": "source",
        "options": "options",
        "published": "published iterations",
        "ours": "iterations",
        "published error": "published error",
        "error": "error",
        "pass": "pass",
        "CPU ms": "CPU time, ms",
        "scan CPU ms": "of lax.scan, ms",
        "ended": "ended",
    }
    mine = pick(rows.get("field", []), part="published")
    return [{title: row.get(key, "") for key, title in keys.items()} for row in mine]


def field_predictability(rows: Rows) -> list[Row]:
    """Iterations by gain and length, and the growth rate of the longest chain."""
    mine = pick(rows.get("field", []), part="predictability")
    rates = {row["gain"]: row["growth rate"] for row in mine}  # later rows are longer
    mine = [row | {"growth rate": rates[row["gain"]], "T": f"T = {row['L']}"} for row in mine]
    return pivot(mine, ("gain", "growth rate"), "T", lambda row: row["iterations"])


def mlp_speedups(rows: Rows) -> list[Row]:
    """Every case of the layers."""
    return parallel(rows.get("mlp", []))


def diffusion_speedups(rows: Rows) -> list[Row]:
    """Speedup over the best loop, by method."""
    mine = [row for row in pick(rows.get("diffusion", []), part="speed") if not row["baseline"]]
    mine = [row for row in mine if row["program"] != "auto"]
    down = ("kind", "w", "L", "batch")
    return pivot(mine, down, "program", lambda row: row.get("speedup", "too slow to run"))


def diffusion_stopped(rows: Rows) -> list[Row]:
    """How far samples are from the sequential ones after a few iterations."""
    return [
        {
            "method": row["program"],
            "iterations": row.get("iterations", ""),
            "error": row["error"],
            "W1 to the sequential samples": row["W1 to sequential"],
            "W1 between two noises": row["W1, other noise"],
            "same class": row["same class"],
            "accuracy": row["accuracy"],
        }
        for row in pick(rows.get("diffusion", []), part="stopped")
        # A program that was predicted to take too long was not run.
        if (not row["baseline"] or row["program"] == "lax.scan") and "error" in row
    ]


def diffusion_rounding(rows: Rows) -> list[Row]:
    """Iterations until all states agree to rounding, by scheduler and method."""
    return _counts(rows, "rounding")


def diffusion_relative(rows: Rows) -> list[Row]:
    """The same, to 1e-3 of each entry."""
    return _counts(rows, "1e-3")


def diffusion_noise(rows: Rows) -> list[Row]:
    """The same, to a tenth of the noise of each step."""
    return _counts(rows, "noise")


def _counts(rows: Rows, tolerance: str) -> list[Row]:
    """By scheduler and method, a count for each number of steps."""
    mine = pick(rows.get("diffusion", []), part="iterations", tolerance=tolerance)
    mine = [row for row in mine if "iterations" in row]  # others were not run, for a reason
    steps = sorted({row["L"] for row in mine})
    counts: dict[tuple[str, str], dict[int, str]] = {}
    for row in mine:
        over = "" if row["ended"] == "converged" else "over "
        by_steps = counts.setdefault((row["scheduler"], row["program"]), dict.fromkeys(steps, "-"))
        by_steps[row["L"]] = f"{over}{row['iterations']}"
    found: dict[str, Row] = {}
    for (scheduler, method), by_steps in counts.items():
        line = found.setdefault(scheduler, {"scheduler": scheduler})
        line[f"{method}, {_listed(steps)} steps"] = _listed(by_steps.values())
    return list(found.values())


def _listed(values: Iterable[Any]) -> str:
    return " / ".join(map(str, values))


def parity_schedulers(rows: Rows) -> list[Row]:
    """How far samples are from those of diffusers, by scheduler."""
    found = []
    for name in dict.fromkeys(row["scheduler"] for row in rows["parity"] if "case" in row):
        mine = pick(rows["parity"], scheduler=name)
        cases = [row for row in mine if "case" in row]
        loops = [row for row in mine if "loop" in row]
        met = sum(abs(row["found"] - row["expected"]) < row["tolerance"] for row in loops)
        found.append(
            {
                "scheduler": name.removesuffix("Scheduler"),
                "configurations": len(cases),
                "fields set": len({field for row in cases for field in row["fields"]}),
                "largest difference": max(row["difference"] for row in cases),
                "full loops": f"{met} of {len(loops)}" if loops else "",
                "not run": "; ".join(row["not run"] for row in mine if "not run" in row),
            }
        )
    return found


def parity_options(rows: Rows) -> list[Row]:
    """The same, by the fields that configurations set."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows["parity"]:
        for field, value in row.get("fields", {}).items():
            name = row["scheduler"].removesuffix("Scheduler")
            line = found.setdefault(
                (name, field),
                {"scheduler": name, "field": field, "values": [], "configurations": 0},
            )
            line["values"] += [value] if value not in line["values"] else []
            line["configurations"] += 1
            line["largest difference"] = max(line.get("largest difference", 0.0), row["difference"])
    return [
        line | {"values": ", ".join(f"`{value}`" for value in line["values"])}
        for line in found.values()
    ]


def resnet_steps(rows: Rows) -> list[Row]:
    """Speedup of a training step over the best loop, by number of blocks."""
    mine = [row for row in pick(rows.get("resnet", []), part="times")
            if not row["baseline"] and row["program"] != "auto"]  # fmt: skip
    mine = [row | {"forward / backward": row["program"], "blocks": f"{row['L']} blocks"}
            for row in mine]  # fmt: skip
    return pivot(
        mine, ("forward / backward",), "blocks", lambda row: row.get("speedup", "too slow to run")
    )


def resnet_training(rows: Rows) -> list[Row]:
    """Training by every variant, converged and stopped after k iterations."""
    mine = [row for row in rows.get("resnet", []) if row.get("part") in ("training", "approximate")]
    return [
        {
            "forward / backward": row.get("variant", row["program"]),
            "stopped after": row.get("k", ""),
            "iterations": row["iterations"],
            "last loss": row["last loss"],
            "losses differ by": row["losses differ"],
            "error of the gradient": row.get("gradient error", ""),
            "accuracy": row["accuracy"],
            "ms a step": row["ms"],
        }
        for row in mine
    ]


def compile_time_layers(rows: Rows) -> list[Row]:
    """Seconds to trace and compile the gradient, by number of layers."""
    mine = [row for row in pick(rows.get("compile_time", []), part="layers") if "seconds" in row]
    mine = [
        row | {"layers": f"{row['L']} layers"} for row in mine if "unroll" not in row["program"]
    ]
    return pivot(mine, ("program",), "layers", lambda row: row["seconds"])


def compile_time_training(rows: Rows) -> list[Row]:
    """Seconds to trace and compile a whole training loop."""
    mine = [row for row in pick(rows.get("compile_time", []), part="training") if "seconds" in row]
    return [
        {
            "training loop": row["program"],
            "modules": row["modules"],
            "seconds to compile": row["seconds"],
            "us a step": row["us a step"],
        }
        for row in mine
    ]


def calls_eager(rows: Rows) -> list[Row]:
    """Times of calls outside of `jax.jit`, and what they compile."""
    columns = ("entry", "program", "first ms", "second ms", "later ms", "compiled", "MB")
    return [{key: row[key] for key in columns} for row in rows.get("calls", [])]


def kernels_nodes(rows: Rows) -> list[Row]:
    """Kernels, library calls and copies on a GPU that XLA compiles for."""
    return _fewest(rows, "nodes")


def kernels_cycles(rows: Rows) -> list[Row]:
    """Cycles on a TPU that XLA compiles for, as it estimates them."""
    return _fewest(rows, "cycles")


def _fewest(rows: Rows, key: str) -> list[Row]:
    """What is counted of the programs with the least of it."""
    return [
        {
            f"{key}, {target}": title,
            "lax.scan": loops[0][key],
            "fewest of a loop": (least := min(row[key] for row in loops)),
            "fewest in parallel": ours[key],
            "by": ours["program"],
            "fewer than lax.scan": loops[0][key] / ours[key],
            "fewer than the loop": least / ours[key],
        }
        for target, title, loops, ours, *_ in _kernels(rows, key)
    ]


def kernels_host(rows: Rows) -> list[Row]:
    """What the host launches, and how often it waits; with loops captured in CUDA graphs, too."""
    found: list[Row] = []
    for target, title, loops, ours, captured, fused in _kernels(rows):
        loop = min((row for row in loops if not row["captured"]), key=lambda row: row["launches"])
        graph = min((row for row in loops if row["captured"]), key=lambda row: row["nodes"])
        for row in (loops[0], loop, graph, *fused, ours, captured):
            found.append(
                {f"host, {target}": title if row is loops[0] else "", "program": row["program"]}
                | {"nodes": row["nodes"], "launches": row["launches"], "waits": row["waits"]}
            )
    return found


def kernels_times(rows: Rows) -> list[Row]:
    """What the host and the device spend on launches, nodes, waits and fused loops, as modelled."""
    found = []
    for target, title, loops, ours, captured, fused in _kernels(rows):
        times = {
            "lax.scan": loops[0],
            "best loop": min(loops, key=lambda row: row["latency ms"]),
            "loop in one kernel": next(iter(fused), None),
            "in parallel": ours,
            "captured": captured,
        }
        found.append(
            {f"ms, {target}": title}
            | {name: row["latency ms"] if row else "" for name, row in times.items()}
        )
    return found


def _kernels(
    rows: Rows, key: str = "nodes"
) -> Iterable[tuple[str, str, list[Row], Row, Row, list[Row]]]:
    """By headline: target, title, programs of which ``key`` is counted.

    These are the loops, the parallel program with the least of it, the same captured where loops
    can be, and the loop that is one kernel, if there is one.
    """
    counted = [row for row in rows.get("kernels", []) if key in row]
    for line in report.HEADLINES:
        labels = {key: value for key, value in line.labels.items() if key != "batch"}
        mine = pick(counted, **labels) if not line.is_sequential else []
        fused = pick(mine, program="fused")
        loops = [
            row for row in mine if row["sequential"] and not row["program"].startswith("fused")
        ]
        parallel = [row for row in mine if not row["sequential"] and not row["captured"]]
        if loops and parallel:
            ours = min(parallel, key=lambda row: float(row[key]))
            captured = next(iter(pick(mine, program=f"{ours['program']}, captured")), ours)
            title = line.title if "same" not in line.title else f"MLP{line.title[8:]}"
            yield loops[0]["target"], title, loops, ours, captured, fused


def prediction_errors(rows: Rows) -> list[Row]:
    """|log2(predicted / measured)| of times, by experiment."""
    return [{"experiment": name, **said} for name in rows if (said := errors(rows[name]))]


def prediction_times(rows: Rows) -> list[Row]:
    """Predicted beside measured times."""
    keys = {"chain": "chain", "program": "program", "ms": "measured, ms"}
    keys |= {"predicted ms": "predicted, ms", "log2": "log2 of predicted / measured"}
    mine = [row for row in pick(rows.get("prediction", []), part="times") if "ms" in row]
    return [{title: row[key] for key, title in keys.items()} for row in mine]


def recurrence_solvers(rows: Rows) -> list[Row]:
    """The fastest solvers of the recurrence, sequential and parallel."""
    return [
        {
            "w": row["w"],
            "L": row["L"],
            "sequential, ms": row["sequential ms"],
            "parallel, ms": row["parallel ms"],
            "fastest parallel": row["parallel"],
            "jax.lax.associative_scan, ms": row["associative ms"],
            "auto takes": row["auto"],
        }
        for row in sorted(
            pick(rows.get("recurrence", []), part="solvers"), key=lambda row: (row["w"], row["L"])
        )
    ]


def sharding_chain(rows: Rows) -> list[Row]:
    """A training step on simulated devices."""
    mine = pick(rows.get("sharding", []), part="chain")
    return [
        {
            "training step": row["row"],
            "ms": row["ms"],
            "times lax.scan on one device": 1 / row["over lax.scan"],
            "parameter bytes on each device": row["parameter bytes"],
            "error": row["error"],
        }
        for row in mine
        if "ms" in row
    ]


TABLES: dict[str, Callable[[Rows], list[Row]]] = {
    made.__name__: made
    for made in (
        overview, gradients_adjoints, gradients_memory, gradients_cells, gradients_layers,
        gradients_training, gradients_speech,
        decide_regret, decide_worst, decide_breakeven, decide_giving_up,
        iterations_forms, iterations_accuracy, iterations_width, iterations_damping,
        field_published, field_predictability, mlp_speedups,
        diffusion_speedups, diffusion_stopped,
        diffusion_rounding, diffusion_relative, diffusion_noise,
        parity_schedulers, parity_options,
        resnet_steps, resnet_training, compile_time_layers, compile_time_training, calls_eager,
        kernels_nodes, kernels_host, kernels_times, kernels_cycles, prediction_errors,
        prediction_times, recurrence_solvers, sharding_chain,
    )
}  # fmt: skip
