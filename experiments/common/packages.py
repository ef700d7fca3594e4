"""Files that lie in other packages, read without importing these: data sets and trained weights that come with a wheel."""

import importlib.util
import zipfile
from pathlib import Path

Folder = Path | zipfile.Path


def find_package(name: str, at: str | Path | None = None) -> Folder | None:
    """The folder of a package, or None where there is none.

    Args:
        name: of the package, as it is imported; it is not imported, so what it needs may be missing.
        at: a wheel, or a folder that has the package in it, to read in the place of the one that is installed.

    Returns:
        A folder to take files from: ``(folder / "data" / "x.bin").read_bytes()``.
    """
    if at is not None:
        folder = (zipfile.Path(str(at)) if Path(at).is_file() else Path(at)) / name
        return folder if folder.is_dir() else None
    found = importlib.util.find_spec(name)
    places = found.submodule_search_locations if found else None
    return Path(places[0]) if places else None
