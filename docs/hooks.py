"""Hooks of mkdocs: pictures, tables and the changelog come from files outside docs."""

import re
from pathlib import Path
from typing import Any

from measured import fill
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PICTURES = Path("experiments") / "results"
CHANGELOG = "changelog.md"


def on_files(files: Files, config: Any) -> Files:
    """Pictures below ``experiments/results`` are files of the site, by the same path."""
    for picture in sorted((ROOT / PICTURES).rglob("*.png")):
        path = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, path, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in tables and pictures; follow links that are right in the repository.

    Raises:
        PluginError: a table or a picture that does not exist.
    """
    if page.file.src_uri == CHANGELOG and (ROOT / "CHANGELOG.md").exists():
        return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    # The repository has the folder docs above the pages, and the site has not.
    linked = re.sub(rf"\]\(\.\./((?:\.\./)*{PICTURES.as_posix()}/)", r"](\1", markdown)
    try:
        filled = fill(linked, up="../" * page.file.src_uri.count("/"))
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
    return filled.replace("<details>", '<details markdown="1">')
