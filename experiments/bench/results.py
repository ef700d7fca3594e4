"""Result files: JSON lines; the first says where and when the others were measured.

Each device has a folder, and in it each version of jax: `results/cpu/jax-0.12/headline.jsonl`.
"""

import datetime
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

import depth

FOLDER = Path(__file__).parent.parent / "results"
KEY = {  # cells that say what was measured
    "part",
    "title",
    "kind",
    "data",
    "activation",
    "chain",
    "w",
    "L",
    "batch",
    "modules",
    "steps",
    "direction",
    "program",
    "method",
    "form",
    "k",
    "gain",
    "problem",
    "source",
    "options",
    "tolerance",
    "scheduler",
    "entry",
    "target",
    "variant",
    "constant",
    "test",
    "rule",
}
Rows = list[dict[str, Any]]


def experiment(name: str) -> Any:
    """The module of an experiment: of this package, or ``run`` of a package in it."""
    spec = importlib.util.find_spec(f"experiments.{name}")
    assert spec is not None, name
    package = f"{spec.name}.run" if spec.submodule_search_locations else spec.name
    return importlib.import_module(package)


def device() -> str:
    """The default device as a folder name: "cpu", "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", jax.devices()[0].device_kind.lower()).strip("-")


def version() -> str:
    """The version of jax, without patches: "0.10"."""
    return ".".join(jax.__version__.split(".")[:2])


def environment() -> dict[str, Any]:
    """What a measurement depends on, apart from the program."""
    return {
        "device": device(),
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": _cores(),
        "model": depth.at_hand().name,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def path_of(name: str, folder: Path | None = None) -> Path:
    """The path of a result file of this device: `folder/<device>/jax-<version>/<name>.jsonl`."""
    return (folder or FOLDER) / device() / f"jax-{version()}" / f"{name}.jsonl"


def folders(folder: Path = FOLDER) -> list[Path]:
    """Those of each device and version of jax, by device, the newest version first."""

    def order(path: Path) -> tuple[str, list[int]]:
        numbers = path.name.removeprefix("jax-").split(".")
        return path.parent.name, [-int(number) for number in numbers]

    return sorted(folder.glob("*/jax-*"), key=order)


def write(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    older: Iterable[tuple[dict[str, Any], Rows]] = (),
    **about: Any,
) -> None:
    """Write ``rows`` below a line on where and when they were measured, and ``about`` them.

    Of ``older`` ones, by environment, those follow that were not measured anew.

    The file is whole or not there: lines go to a temporary file that replaces the old one once it
    is complete. If anything fails, Ctrl-C included, the old file stays as it was.
    """
    rows = list(rows)
    lines: list[Any] = [{"environment": environment() | about}, *rows]
    anew = set(map(_key, rows))
    for head, those in older:
        if rest := [row for row in those if _key(row) not in anew]:
            lines += [{"environment": head}, *rest]
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for row in lines:
                file.write(json.dumps(row, default=_plain) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp lets only the owner read; results are committed
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read(path: Path) -> tuple[Rows, Rows]:
    """The environments and the rows of a result file; it has several if rows were kept."""
    found = groups(path)
    return [head for head, _ in found], [row for _, rows in found for row in rows]


def groups(path: Path) -> list[tuple[dict[str, Any], Rows]]:
    """The environments of a result file, each with the rows that were measured there and then."""
    found: list[tuple[dict[str, Any], Rows]] = []
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "environment" in line:
            found.append((line["environment"], []))
        else:
            found[-1][1].append(line)
    return found


def _key(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(row[name])) for name in row if name in KEY)


def _plain(value: Any) -> Any:
    """Scalars of numpy and jax as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result has to be plain data, got {type(value).__name__}")


@cache
def _commit() -> str | None:
    """The commit checked out, with "+" where tracked files differ from it; None away from git."""

    def git(*args: str) -> str:
        given: Any = {"cwd": Path(__file__).parent, "capture_output": True, "text": True}
        return subprocess.run(["git", *args], check=True, **given).stdout.strip()

    try:
        dirty = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("+" if dirty else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _cores() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()
