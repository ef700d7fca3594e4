"""A plugin of pytest: a line of JSON for each test as it begins, and as it ends.

The lines so far are there whatever happens, also if a test ends the process.
"""

import json
import os
from typing import Any

FILE = "DEEPPCR_OUTCOMES"  # the environment variable that names the file


def pytest_runtest_logstart(nodeid: str) -> None:
    """See pytest."""
    _write({"test": nodeid, "outcome": "started"})


def pytest_runtest_logreport(report: Any) -> None:
    """See pytest: a setup or teardown counts only if it fails, or skips the test."""
    if report.when == "call" or report.outcome != "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else str(report.longrepr or "")
        _write({"test": report.nodeid, "outcome": report.outcome, "reason": reason})


def _write(line: dict[str, str]) -> None:
    with open(os.environ[FILE], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
