"""Result files: JSON lines, the first of which says where and when the rest was measured."""

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

VARIABLE = "DEEPPCR_RESULTS"  # of the environment: for processes that an experiment starts
FOLDER = Path(os.environ.get(VARIABLE) or Path(__file__).parent.parent / "results")


def write_into(folder: Path) -> None:
    """Let results of this process, and of those it starts, go to ``folder/<device>``."""
    global FOLDER
    FOLDER = folder.absolute()
    os.environ[VARIABLE] = str(FOLDER)


def device() -> str:
    """The default device as a folder name: "cpu", "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", jax.devices()[0].device_kind.lower()).strip("-")


def environment() -> dict[str, Any]:
    """What a measurement depends on beside the program."""
    return {
        "device": device(),
        "devices": jax.device_count(),
        "processor": _processor(),
        "cores": _cores(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


class Record:
    """Rows that are kept as they come.

    What is stopped midway leaves all it had, in a file that says it is not complete.

    Attributes:
        rows: all that have been added.
        path: of the file; None if nothing is to be kept.
    """

    def __init__(self, name: str | None, folder: Path | None = None):
        self.rows: list[dict[str, Any]] = []
        self.path = path_of(name, folder=folder) if name else None
        self._name, self._folder = name, folder

    def add(self, *rows: Mapping[str, Any]) -> None:
        """Add rows, and write all of them."""
        self.rows += map(dict, rows)
        self._write(complete=False)

    def finish(self) -> None:
        """Say that these are all."""
        self._write(complete=True)

    def _write(self, complete: bool) -> None:
        if self._name:
            write(self._name, self.rows, self._folder, complete)


def path_of(name: str, ending: str = "jsonl", folder: Path | None = None) -> Path:
    """Where a result file or a figure of this device lies: `folder/<device>/<name>.<ending>`."""
    return (folder or FOLDER) / device() / f"{name}.{ending}"


def write(
    name: str, rows: Iterable[Mapping[str, Any]], folder: Path | None = None, complete: bool = True
) -> Path:
    """Write `rows` to `folder/<device>/<name>.jsonl`, whole or not at all.

    The lines go to a temporary file that takes the old one's place once it is complete, so whatever
    fails on the way, `rows` themselves included, leaves the last good results as they were.
    """
    path = path_of(name, folder=folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for row in ({"environment": environment() | {"complete": complete}}, *rows):
                file.write(json.dumps(row, default=_plain) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp keeps it to its owner; results are to be committed
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The environments and the rows of a result file.

    A line with an environment says where and when the rows below it were measured; a file that two
    were put together into has several of them.
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
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*args: str) -> str:
    done = subprocess.run(
        ["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _cores() -> int | None:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count()


def _processor() -> str:
    try:
        found = re.search(
            r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        found = None
    return found[1] if found else platform.processor()
