"""What candidates took when they were tried, kept in the user's cache folder by device and by the chain's signature.

`deeppcr.plan(..., trials=True)` writes it, and "auto" takes what was fastest there from then on. A file that cannot be read
counts as none.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from deeppcr.plan.pieces import Pieces
from depth.at_hand import first_device
from depth.calibration import cache_file, write_whole


def trials_file(pieces: Pieces, platform: str | None) -> Path | None:
    """Where trials of a chain are kept; None if this process has no such platform."""
    device = first_device(platform)
    if device is None:
        return None
    calibration = cache_file(device)
    return calibration.parent.parent / "deeppcr" / calibration.stem / f"{pieces.signature}.json"


def read_trials(pieces: Pieces, platform: str | None) -> dict[str, float]:
    """Seconds by the candidate's name; empty if there are none."""
    path = trials_file(pieces, platform)
    try:
        if path is None or not path.is_file():
            return {}
        return dict(_read(path, path.stat().st_mtime_ns))
    except OSError:
        return {}


def write_trials(pieces: Pieces, platform: str | None, seconds: Mapping[str, float]) -> None:
    """Keep trials beside those that are kept already."""
    path = trials_file(pieces, platform)
    if path is not None:
        with suppress(OSError):  # then they hold for this plan alone
            write_whole(path, read_trials(pieces, platform) | dict(seconds))


@lru_cache(maxsize=512)
def _read(path: Path, _: int) -> dict[str, float]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(str(name), float(seconds)) for name, seconds in found.items()]
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return {}
    return {name: seconds for name, seconds in pairs if math.isfinite(seconds) and seconds > 0}
