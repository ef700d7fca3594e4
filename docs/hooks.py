"""What mkdocs is told beside mkdocs.yml: pictures of results come from where they are committed."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

PICTURES = Path("experiments") / "results"


def on_files(files: Files, config: Any) -> Files:
    """Every picture below ``experiments/results`` is a file of the site, by the same path."""
    root = Path(config.config_file_path).parent
    for picture in sorted((root / PICTURES).rglob("*.png")):
        files.append(
            File.generated(config, picture.relative_to(root).as_posix(), abs_src_path=str(picture))
        )
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to ``../experiments/results``, right in the repository; long tables folded away."""
    linked = markdown.replace(f"](../{PICTURES.as_posix()}/", f"]({PICTURES.as_posix()}/")
    return linked.replace("<details>", '<details markdown="1">')
