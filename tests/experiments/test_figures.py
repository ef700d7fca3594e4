"""Pictures: every one is drawn from the stored rows, and can be read at the width of a page."""

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.bench import plots, results
from experiments.diffusion import figure as diffusion

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
NEWEST = results.folders(ROOT / "experiments/results")[::-1]  # the last of them counts
STORED = {
    path.stem: path
    for folder in NEWEST
    if folder.parent.name == "cpu"
    for path in sorted(folder.glob("*.jsonl"))
}
SMALLEST = 8.0  # points


@cache
def rows(name: str) -> list[dict[str, Any]]:
    return results.read(STORED[name])[1]


def gallery() -> dict[str, np.ndarray]:
    """Images of the samples of every program that was stopped early, and where they start and end."""
    stopped = [row["program"] for row in rows("diffusion") if row["part"] == "stopped"]
    generator = np.random.default_rng(0)
    return {name: generator.uniform(-1, 1, (10, 64)) for name in ("noise", *stopped)}


@cache
def drawn(name: str) -> dict[str, Any]:
    """The pictures of an experiment, laid out as they are saved."""
    if name == "diffusion":
        found = diffusion.pictures(rows(name), gallery())
    else:
        found = plots.drawer(name)(rows(name))
    for drawing in found.values():
        drawing.draw_without_rendering()
    return found


def panels(drawing: Any) -> list[Any]:
    """The axes of a picture that are no colour bars."""
    return [axes for axes in drawing.axes if not hasattr(axes, "_colorbar")]


@cache
def texts(drawing: Any) -> list[tuple[Any, Any]]:
    """All texts that can be seen, and the rectangles that they fill."""
    from matplotlib.text import Text

    axes = [axis for each in drawing.axes for axis in (each.xaxis, each.yaxis)]
    unseen = {label for axis in axes for label in _labels(axis, within=False)}
    found = [text for text in drawing.findobj(Text) if text.get_visible() and text not in unseen]
    return [(text, text.get_window_extent()) for text in found if text.get_text().strip()]


def _labels(axis: Any, within: bool = True) -> list[Any]:
    """The labels of ticks: of those within the limits of an axis, or of all others."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-6 * (high - low)
    ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
    return [
        label
        for tick in ticks
        for label, is_on in ((tick.label1, tick.label1.get_visible()), (tick.label2, False))
        if (is_on and low - slack <= tick.get_loc() <= high + slack) == within
    ]


def no_panel_is_empty(drawing: Any) -> None:
    for axes in panels(drawing):
        lines = [line for line in axes.lines if np.size(line.get_xdata()) and line.get_visible()]
        data = [line for line in lines if line.get_transform().contains_branch(axes.transData)]
        assert axes.axison
        images = [image for image in axes.images if image.get_array().count()]  # not masked
        assert data or axes.patches or images, axes.get_title()
        assert np.all(np.isfinite(axes.dataLim.get_points())), axes.get_title()


def no_text_is_cut_off_or_too_small(drawing: Any) -> None:
    width, height = drawing.bbox.size
    for text, box in texts(drawing):
        assert text.get_fontsize() >= SMALLEST, text.get_text()
        assert min(box.x0, box.y0) >= 0, text.get_text()
        assert box.x1 <= width, text.get_text()
        assert box.y1 <= height, text.get_text()


def no_text_lies_on_another(drawing: Any) -> None:
    for (one, box), (other, of_other) in itertools.combinations(texts(drawing), 2):
        apart = not box.padded(-1.5).overlaps(of_other.padded(-1.5))
        assert apart, (one.get_text(), other.get_text())


def pictures_are_as_wide_as_a_page_and_have_a_title(drawing: Any) -> None:
    assert drawing.get_figwidth() == plots.WIDTH
    assert drawing.get_figheight() <= plots.WIDTH
    assert len(panels(drawing)) <= 3
    assert drawing.get_suptitle()


# Of what is drawn once: to lay a picture out takes longer than to read it.
RULES = (
    no_panel_is_empty,
    no_text_is_cut_off_or_too_small,
    no_text_lies_on_another,
    pictures_are_as_wide_as_a_page_and_have_a_title,
)


@pytest.mark.parametrize("name", STORED)
def test_pictures_keep_the_rules_and_are_stored(name: str) -> None:
    for drawing in drawn(name).values():
        for rule in RULES:
            rule(drawing)
    # The files beside the rows are those that are drawn of them, and no others.
    path = STORED[name].with_suffix(".png")
    others = set(STORED) - {name}
    found = {
        file.name
        for file in path.parent.glob(f"{name}*.png")
        if not any(file.name.startswith(other) for other in others if other.startswith(name))
    }
    topics = list(drawn(name))
    names = [path.name, *(f"{name}_{topic}.png" for topic in topics[1:])]
    assert found == set(names[: len(topics)])
    assert all((path.parent / each).read_bytes().startswith(b"\x89PNG") for each in found)


@pytest.mark.parametrize("limits", [(0.85, 1.8), (0.95, 1.05), (0.6, 2.9), (2, 9.9), (0.3, 40)])
def test_a_logarithmic_axis_has_two_numbers_or_more(limits: tuple[float, float]) -> None:
    drawing, (axes,) = plots.sheet("")
    axes.set(xscale="log", xlim=limits)
    plots.plain_numbers(axes.xaxis)
    drawing.draw_without_rendering()
    labels = [label.get_text() for label in _labels(axes.xaxis)]
    numbers = [float(text.replace(",", "")) for text in labels if text]
    assert 2 <= len(numbers) == len(set(numbers)) <= 9
    assert all(limits[0] <= number <= limits[1] for number in numbers)
