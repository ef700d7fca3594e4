"""Result files: JSON lines; the first says where and when the others were measured."""

import datetime
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


def device() -> str:
    """The default device as a folder name: "cpu", "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", jax.devices()[0].device_kind.lower()).strip("-")


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
    """The path of a result file of this device: `folder/<device>/<name>.jsonl`."""
    return (folder or FOLDER) / device() / f"{name}.jsonl"


def write(path: Path, rows: Iterable[Mapping[str, Any]], **about: Any) -> None:
    """Write ``rows`` below a line on where and when they were measured, and ``about`` them.

    The file is whole or not there: lines go to a temporary file that replaces the old one once it
    is complete. If anything fails, Ctrl-C included, the old file stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for row in ({"environment": environment() | about}, *rows):
                file.write(json.dumps(row, default=_plain) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp lets only the owner read; results are committed
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The environments and the rows of a result file.

    A line with an environment says where and when the rows below it were measured; a merged file
    has several of them.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    environments = [line["environment"] for line in lines if "environment" in line]
    return environments, [line for line in lines if "environment" not in line]


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
