"""Draws the pictures of docs/tutorials/conditional.md, from what the program of that page leaves.

python docs/samples.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.plots import save, sheet, styled
from experiments.diffusion.figure import draw_digits
from tests.pages import blocks

PAGE = Path(__file__).parent / "tutorials" / "conditional.md"
COUNTS = (1, 2, 4, 8)
METHODS = {"dense Newton": "dense", "Picard": "identity"}
Rows = Mapping[str, Any]  # images ``[n, 64]`` by what they are


def main() -> None:
    """Run the page, and draw."""
    found: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(PAGE.read_text(encoding="utf-8")):
        exec(compile(block, str(PAGE), "exec"), found)
    stopped: dict[str, Rows] = {}
    for name, linearize in METHODS.items():
        rows = {after(count): found["after"](count, linearize=linearize) for count in COUNTS}
        stopped[name] = {"noise": found["x_T"], **rows, "sequential": found["sequential"].value}
    known = np.where(found["mask"], 0, found["whole"])
    images = {
        "like another image": {"image": found["given"], "sample": found["changed"].value},
        "the missing part": {"image": known, "sample": found["painted"].value},
    }
    title = f"One seed, {found['steps']} steps, stopped after some iterations"
    pictures = {"": drawn(title, stopped), "images": drawn("Samples by class from images", images)}
    save(PAGE.with_suffix(".png"), pictures)


@styled
def drawn(title: str, panels: Mapping[str, Rows]) -> Any:
    """Rows of images by panel."""
    height = 0.65 + 0.26 * max(map(len, panels.values()))
    drawing, axes = sheet(title, len(panels), height=height)
    for panel, (name, rows) in zip(axes, panels.items(), strict=True):
        draw_digits(panel, rows)
        panel.set_title(name)
    return drawing


def after(count: int) -> str:
    """The name of a row."""
    return "1 iteration" if count == 1 else f"{count} iterations"


if __name__ == "__main__":
    main()
