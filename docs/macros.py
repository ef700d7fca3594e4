"""What pages are filled with: tables and pictures of experiments, from the files they are kept in.

A comment in a page, which GitHub does not show, is a macro of mkdocs-macros:

    <!-- {{ table("iterations_width") }} -->      a table for each device
    <!-- {{ pictures("mlp", "mlp_times") }} -->   pictures for each device
    <!-- {{ readme() }} -->                       the README, as a page

Of each device the newest version of jax comes first; older ones are folded away below it.

`reading.md` is run, and what it prints stands in it.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd
import yaml

from experiments import report
from experiments.bench import results
from experiments.bench.summary import best, errors
from experiments.bench.table import Row, markdown
from experiments.foresight import run as foresight
from experiments.kernels.run import named
from experiments.recurrent.compared import COLUMNS, compared
from experiments.recurrent.run import PARTS
from tests.pages import run

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"
PARITY = ROOT / "tests" / "diffusion" / "parity.jsonl"  # by tests/diffusion/make_golden.py
LONG = 20  # rows: a longer table is folded away
SEQUENTIAL = ("auto", "adjoint, backprop")  # may run step by step: never taken for parallel
WIDE = 24  # characters: a longer cell of words is broken into lines
KINDS = ("cell", "layers", "filter", "equation", "leaves", "short")  # of `foresight`
Rows = dict[str, list[Row]]  # of one device, by experiment
Table = Callable[[Rows], pd.DataFrame]


def define_env(env: Any) -> None:
    """See mkdocs-macros."""
    env.macro(table)
    env.macro(readme)
    env.macro(lambda *names: pictures(names, env.page.url), "pictures")


def on_pre_page_macros(env: Any) -> None:
    """See mkdocs-macros: where this page has dots, its code prints what is read."""
    if env.page.file.src_path == "reading.md":
        env.markdown = run(env.markdown, "reading.md")


def readme() -> str:
    """The README, whose links are those of the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[(.*)\]\((experiments/.*)\)", r'<img alt="\1" src="\2">', text)
    text = re.sub(r"(?<!!)\[([^]]*)\]\((?!docs/|https:)[^)]*\)", r"\1", text)  # no pages
    return text.replace("](docs/", "](")


def on_post_build(env: Any) -> None:
    """See mkdocs-macros: pictures of the site have the paths that they have in the repository."""
    for picture in RESULTS.rglob("*.png"):
        target = Path(env.conf["site_dir"]) / picture.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(picture.read_bytes())


def pictures(names: Sequence[str], url: str = "") -> str:
    """Pictures of each device, one below the other, as links to themselves."""
    up, found = "../" * url.count("/"), list[tuple[Path, str]]()
    for folder in results.folders(RESULTS):
        links = []
        for name in names:
            if (folder / f"{name}.png").exists():
                target = f"{up}{(folder / name).relative_to(ROOT)}.png"
                said = f"{name.replace('_', ' ')}, on {folder.parent.name}, {folder.name}"
                links.append(f'<a href="{target}"><img alt="{said}" src="{target}"></a>')
        found += [(folder, "\n\n".join(links))] if links else []
    if not found:
        raise ValueError(f"there is no picture {names[0]}.png in {RESULTS}/<device>/jax-<version>")
    return _newest_first(found)


def _newest_first(found: Iterable[tuple[Path, str]]) -> str:
    """Of each device what is of its newest jax; the rest is folded away below it."""
    parts, seen = [], set[str]()
    for folder, text in found:
        device = folder.parent.name
        parts.append(_folded(f"{device}, {folder.name}", text) if device in seen else text)
        seen.add(device)
    return "\n\n".join(parts)


def _folded(title: str, text: str) -> str:
    summary = f"<summary>{title}</summary>"
    return f'<details markdown="1">{summary}\n\n{text}\n\n</details>'


def table(name: str) -> str:
    """A table of each device and jax, with a line below it on where and when it was measured."""
    if name not in TABLES:
        raise ValueError(f"no table is called {name!r}; there are: {', '.join(TABLES)}")
    if name.startswith("parity"):  # the same on every device
        rows = [json.loads(line) for line in PARITY.read_text(encoding="utf-8").splitlines()]
        said = "Compared with diffusers {diffusers} on torch {torch}.".format_map(rows[0])
        return _shown(TABLES[name]({"parity": rows}), said)
    parts = list[tuple[Path, str]]()
    for device in devices():
        try:
            found = TABLES[name](device.rows)
        except KeyError:  # of an experiment, or of a part of it, that this device has not run
            continue
        if len(found):
            mine = [experiment for experiment in device.rows if name.startswith(experiment)]
            parts.append((device.folder, _shown(found, report.measured(device, *mine))))
    return _newest_first(parts) or "*Not measured yet.*"


devices = cache(report.read)  # all that is kept


def _shown(found: pd.DataFrame, source: str) -> str:
    """A table, folded away if it is long, and where it is from."""
    rows = [{str(key): _cell(value) for key, value in row.items()} for row in
            found.to_dict("records")]  # fmt: skip
    text = markdown(rows)
    if len(rows) > LONG:
        text = _folded(f"{len(rows)} rows", text)
    source = f'<p class="source">{source}</p>'
    return f'<div class="measured" markdown="1">\n\n{text}\n\n{source}\n\n</div>'


def _cell(value: Any) -> Any:
    """A value as a table shows it: large numbers without exponents, nothing for what is missing.

    Long words are marked for style.css, so that no column is pushed off the page.
    """
    if value is None or (isinstance(value, float) and value != value):
        return ""
    if isinstance(value, float) and abs(value) >= 1000 and value < 1e300:
        return int(float(f"{value:.2e}"))
    if isinstance(value, str) and len(value) > WIDE:
        return f'<span class="wide">{value}</span>'
    return value


# -- tables that tables.yml describes


def frame(rows: Iterable[Row], needs: str = "", **labels: Any) -> pd.DataFrame:
    """The rows with these cells that have the cell ``needs``; without columns if there are none."""
    mine = [row for row in rows if labels.items() <= row.items() and (not needs or needs in row)]
    return pd.DataFrame(mine, dtype=object)


def select(frame: pd.DataFrame, titles: dict[str, str | None]) -> pd.DataFrame:
    """Columns with their titles, or else their names; empty where a row lacks them."""
    named = {key: title or key for key, title in titles.items()}
    return frame.reindex(columns=[*named]).rename(columns=named)


def pivot(frame: pd.DataFrame, down: list[str], across: str, cell: str) -> pd.DataFrame:
    """A row for every combination of ``down``, a column for every value of ``across``, in order."""
    last = frame.drop_duplicates([*down, across], keep="last")
    wide = last.pivot(index=down, columns=across, values=cell)[frame[across].unique()]
    return frame[down].drop_duplicates().merge(wide.reset_index(), on=down)


def described(rows: Rows, spec: dict[str, Any]) -> pd.DataFrame:
    """A table of tables.yml."""
    every = rows[spec["from"]]
    every = best(every, SEQUENTIAL) if spec.get("fastest") else every
    mine = frame(every, spec.get("needs", ""), **spec.get("where", {}))
    if "sort" in spec:
        mine = mine.sort_values(spec["sort"], ascending="first" not in spec, kind="stable")
        mine = mine[: spec.get("first")]
    if "columns" in spec:
        return select(mine, spec["columns"])
    names, across, cell = spec.get("names"), spec["across"], spec["cell"]
    left_out = (mine["program"] == "auto") | mine["program"].str.contains("unroll")
    mine = mine[mine["program"].isin(names) if names else ~left_out].copy()
    mine["program"] = mine["program"].replace(names or {})
    if "unit" in spec:
        mine[across] = mine[across].map(f"{{}} {spec['unit']}".format)
    if cell == "speedup":
        mine[cell] = mine[cell].fillna("too slow to run")
    mine["count"] = mine.apply(_count, axis=1)
    mine["iterations (time)"] = mine.apply(_iterations, axis=1)
    found = pivot(mine, [*spec["down"]], across, cell)
    columns = [name for name in (names or {}).values() if name in found]
    others = columns or [name for name in found if name not in spec["down"]]
    return select(found, spec["down"] | dict.fromkeys(others))


def _count(row: Any) -> Any:
    """The iterations, and whether there would have been more."""
    over = row.get("ended", "converged") != "converged"
    return f"over {row['iterations']}" if over else row.get("iterations")


def _iterations(row: Any) -> Any:
    """The same, and in brackets the time as a multiple of the best loop's."""
    if row.get("ended") != "converged" or not isinstance(row.get("speedup"), float):
        return _count(row)
    slower = 1 / row["speedup"]
    multiple = f"{slower:,.0f}" if slower >= 1000 else f"{slower:.3g}"
    return f"{row['iterations']} ({multiple}x)"


# -- tables that are computed


def overview(rows: Rows) -> pd.DataFrame:
    """How fast the default is, and how often a parallel program beats the best loop."""
    found: list[Row] = []
    for name in ("mlp", "gradients", "diffusion", "resnet"):
        mine = [row for row in rows.get(name, []) if row.get("part") not in ("accuracy", "stopped")]
        kinds = {
            "default": filter(report.is_default, mine),
            "parallel": best(mine, SEQUENTIAL),
        }
        found += [{"experiment": name, "direction": "forward", **row, "of": kind}
                  for kind, every in kinds.items() for row in every]  # fmt: skip
    keys = ["experiment", "direction"]
    default, parallel = (
        frame(found, of=kind).groupby(keys, sort=False)["speedup"]
        for kind in ("default", "parallel")
    )
    columns = {
        "cases": default.size(),
        "default is faster": default.agg(lambda n: int((n > 1).sum())),
        "median": default.median(),
        "worst": default.min(),
        "best": default.max(),
        "all steps at once: faster": parallel.agg(lambda n: f"{(n > 1).sum()} of {len(n)}"),
    }
    return pd.DataFrame(columns).reset_index().rename(columns={"median": "speedup, median"})


def gradients_adjoints(rows: Rows) -> pd.DataFrame:
    """The gradient of a GRU by "auto"."""
    mine, keys = frame(rows["gradients"], part="adjoints"), ["L", "w", "batch"]
    auto = mine[mine["program"] == "auto"].set_index(["direction", *keys])
    loops = mine[mine["baseline"].astype(bool) & (mine["direction"] == "gradient")]
    ours = auto.loc["gradient"]
    columns = {
        "lax.scan, ms": loops[loops["program"] == "lax.scan"].set_index(keys)["ms"],
        "best loop, ms": loops.groupby(keys, sort=False)["ms"].min(),
        "deeppcr, ms": ours["ms"],
        "over lax.scan": ours["over lax.scan"],
        "over the best loop": ours["speedup"],
        "predicted": ours["predicted speedup"],
        "forward, over the best loop": auto["speedup"].get("forward"),
    }
    found = pd.DataFrame(columns).loc[ours.index].reset_index()
    last = {"L": "geometric mean"}
    last |= {key: geometric_mean(found[key]) for key in ("over lax.scan", "over the best loop")}
    found = pd.concat([found, pd.DataFrame([last])])
    return found.rename(columns={"L": "T", "w": "units"}).astype(object)


def gradients_layers(rows: Rows) -> pd.DataFrame:
    """Recurrent layers of flax, and the same cells in `deeppcr.nn.RNN`."""
    groups = frame(rows["gradients"], part="layers", program="auto").groupby("kind", sort=False)
    columns = {
        "cases": groups.size(),
        "over lax.scan": groups["over lax.scan"].agg(geometric_mean),
        "over the best loop": groups["speedup"].agg(geometric_mean),
        "worst": groups["speedup"].min(),
        "best": groups["speedup"].max(),
        "predicted": groups["predicted speedup"].agg(geometric_mean),
    }
    return pd.DataFrame(columns).reset_index(names="cell")


def recurrent(rows: Rows, part: str) -> pd.DataFrame:
    """Programs of the sizes that people train, and their means."""
    mine = compared(rows["recurrent"], part)
    return select(frame(mine), {key: None for key in COLUMNS if any(key in line for line in mine)})


def decide_regret(rows: Rows) -> pd.DataFrame:
    """How much slower what "auto" takes is than the fastest, over all chains that were drawn."""
    mine = frame(rows["decide"], part="regret").dropna(subset="regret %").infer_objects()
    groups = mine.groupby("direction")
    regret, noise = groups["regret %"], groups["noise %"]
    columns = {
        "regret %, median": regret.median().round(1),
        "90th percentile": regret.quantile(0.9, interpolation="nearest"),
        "worst": regret.max(),
        "within 15 %": regret.agg(lambda n: f"{(n <= 15).sum()} of {len(n)}"),
        "lax.scan against itself %, median": noise.median(),
        "its worst": noise.max(),
        "auto over lax.scan": groups["speedup"].agg(geometric_mean),
        "over the best loop": groups["over best loop"].agg(geometric_mean),
        "planning, % of compiling": groups["planning %"].median(),
    }
    return pd.DataFrame(columns).reset_index()


def decide_breakeven(rows: Rows) -> pd.DataFrame:
    """Speedups of a GRU over plain `jax.lax.scan`, measured here and predicted for others."""
    titles = {"over lax.scan": "here, {}", "parallel": "{} by"}
    titles |= {f"predicted, {far}": f"{far}, {{}} (predicted)" for far in ("H200", "TPU v5e")}
    found = frame(rows["decide"], part="map").pivot(
        index=["w", "L"], columns="direction", values=[*titles]
    )
    found.columns = [titles[key].format(direction) for key, direction in found.columns]
    return found.reset_index().rename(columns={"w": "units", "L": "steps"})


def iterations_accuracy(rows: Rows) -> pd.DataFrame:
    """The error after k iterations; once they have converged, it stays."""
    mine, keys = frame(rows["iterations"], part="accuracy"), ["chain", "w", "L", "form"]
    found = []
    for key, group in mine.groupby(keys, sort=False):
        line = dict(zip(keys, key, strict=True))
        for k in (0, 1, 2, 3, 4, 6, 8, 16, 64):
            then = group[(group["k"] == k) | ((group["ended"] == "converged") & (group["k"] < k))]
            error = "" if then.empty else f"{then['error'].fillna(float('inf')).iloc[0]:.1g}"
            line[f"k\u00a0=\u00a0{k}"] = error.replace("inf", "overflow")
        found.append(line)
    return pd.DataFrame(found)


def field_predictability(rows: Rows) -> pd.DataFrame:
    """Iterations by gain and length, and the growth rate of the longest chain."""
    mine = frame(rows["field"], part="predictability")  # later rows are longer
    mine["growth rate"] = mine.groupby("gain")["growth rate"].transform("last")
    mine["T"] = mine["L"].map("T = {}".format)
    return pivot(mine, ["gain", "growth rate"], "T", "iterations")


def _counts(rows: Rows, tolerance: str) -> pd.DataFrame:
    """By scheduler and method, a count for each number of steps."""
    mine = frame(rows["diffusion"], "iterations", part="iterations", tolerance=tolerance)
    mine["count"] = mine.apply(_count, axis=1).map(str)
    steps = sorted(mine["L"].unique())
    wide = pivot(mine, ["scheduler", "program"], "L", "count").fillna("-")
    wide["listed"] = wide[steps].agg(" / ".join, axis=1)
    wide["program"] += f", {' / '.join(map(str, steps))} steps"
    return pivot(wide, ["scheduler"], "program", "listed")


def parity_schedulers(rows: Rows) -> pd.DataFrame:
    """How far samples are from those of diffusers, by scheduler."""
    found = []
    for name, mine in frame(rows["parity"]).groupby("scheduler", sort=False):
        line = {"scheduler": name.removesuffix("Scheduler"), "configurations": len(mine)}
        line["fields set"] = len({field for fields in mine["fields"] for field in fields})
        found.append(line | {"largest difference": mine["difference"].max()})
    return pd.DataFrame(found)


def _fewest(rows: Rows, key: str) -> pd.DataFrame:
    """What is counted of the programs with the least of it, by case."""
    counted, found = [row for row in rows["kernels"] if key in row], []
    for title, mine in frame(counted).groupby([named(row) for row in counted], sort=False):
        sequential = mine["sequential"].astype(bool)
        parallel, loops = mine[~sequential], mine[sequential & (mine["program"] != "fused")]
        if len(parallel):
            ours = parallel.loc[parallel[key].astype(float).idxmin()]
            first, least = loops[key].iloc[0], loops[key].min()
            line = {f"{key}, {loops['target'].iloc[0]}": title}
            line |= {"lax.scan": first, "fewest of a loop": least, "fewest in parallel": ours[key]}
            line |= {"by": ours["program"], "fewer than lax.scan": first / ours[key]}
            found.append(line | {"fewer than the loop": least / ours[key]})
    return pd.DataFrame(found)


def foresight_errors(rows: Rows) -> pd.DataFrame:
    """How far the rows of plans are from what was measured, by the kind of program."""
    mine = rows["foresight"]
    by_kind = {kind: [row for row in mine if row["kind"] == kind] for kind in KINDS}
    found = [{"programs": kind, **foresight.errors(each)} for kind, each in by_kind.items() if each]
    return pd.DataFrame([*found, {"programs": "all", **foresight.errors(mine)}])


def prediction_errors(rows: Rows) -> pd.DataFrame:
    """|log2(predicted / measured)| of times, by experiment."""
    said = {name: errors(rows[name]) for name in rows}
    return pd.DataFrame([{"experiment": name, **row} for name, row in said.items() if row])


SPECS = yaml.safe_load((ROOT / "docs" / "tables.yml").read_text(encoding="utf-8"))
COMPUTED = (overview, gradients_adjoints, gradients_layers, decide_regret, decide_breakeven)
COMPUTED += (iterations_accuracy, field_predictability, parity_schedulers, foresight_errors)
TABLES: dict[str, Table] = {name: partial(described, spec=spec) for name, spec in SPECS.items()}
TABLES |= {of.__name__: of for of in (*COMPUTED, prediction_errors)}
TABLES |= {f"recurrent_{part}": partial(recurrent, part=part) for part in PARTS}
TABLES |= {
    "diffusion_rounding": partial(_counts, tolerance="rounding"),
    "diffusion_relative": partial(_counts, tolerance="1e-3"),
    "diffusion_noise": partial(_counts, tolerance="noise"),
    "kernels_nodes": partial(_fewest, key="nodes"),  # on a GPU
    "kernels_cycles": partial(_fewest, key="cycles"),  # on a TPU
}
