"""The table of the README, and the page of results with devices side by side."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from experiments import report
from experiments.bench.table import markdown

Row = dict[str, Any]


def row(program: str, ms: float, **more: Any) -> Row:
    case = {"kind": "tanh", "L": 1024, "w": 8, "batch": 1, "direction": "forward", **more}
    sequential = program == "lax.scan"
    found = {
        "program": program,
        "baseline": sequential,
        "ms": ms,
        "speedup": 8 / ms,
        "over lax.scan": 8 / ms,
    }
    return (
        case
        | found
        | {"predicted speedup": 1.0 if sequential else 5.0, "log2": 1.0 if sequential else -2.0}
    )


def write(folder: Path, name: str, rows: list[Row], **environment: Any) -> None:
    folder.mkdir(exist_ok=True)
    head = {
        "processor": "Toy",
        "cores": 2,
        "jax": "0.10.2",
        "python": "3.11.7",
        "commit": "0123456789ab",
        "complete": True,
    }
    head |= {"time": "2026-01-02T03:04:05+00:00", **environment}
    lines = [json.dumps(line) for line in ({"environment": head}, *rows)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """A CPU with two files and a figure, and a GPU with one."""
    cpu, gpu = tmp_path / "cpu", tmp_path / "gpu"
    loop = {"depth speedup": 1.0}
    forward = [row("lax.scan", 8.0), row("newton", 16.0), row("auto", 1.0) | loop]
    write(cpu, "mlp", [*forward, row("lax.scan", 8.0, L=64), row("newton", 4.0, L=64)])
    write(
        cpu,
        "analysis",
        [{"part": "toy", "program": "line | loop", "depth": 3, "times": {"a": 1}, "none": None}],
    )
    (cpu / "mlp.png").write_bytes(b"\x89PNG")
    (cpu / "mlp_forward.png").write_bytes(b"\x89PNG")
    write(gpu, "mlp", [row("lax.scan", 8.0), row("newton", 0.2)], jax="0.11.2", complete=False)
    return [cpu, gpu]


def line(text: str, start: str) -> list[str]:
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_devices_stand_beside_each_other(folders: list[Path], tmp_path: Path) -> None:
    text = report.page(report.read(folders), tmp_path)
    long, short = line(text, "tanh | 1024"), line(text, "tanh | 64")
    assert long[5:] == ["8", "16", "0.5", "0.5", "5", "8", "0.2", "40", "40", "5"]
    assert short[5:] == ["8", "4", "2", "2", "5", *[""] * 5]  # not measured on the GPU
    assert "![mlp on cpu](cpu/mlp.png)\n\n![mlp_forward on cpu](cpu/mlp_forward.png)" in text
    assert "mlp on gpu" not in text
    assert line(text, "cpu | Toy")[3] == "0.10.2"
    assert line(text, "gpu | Toy")[-1] == "mlp"  # stopped early
    assert line(text, "gpu | mlp")[2:] == ["2", "1.5", "2"]  # programs, errors of prediction
    assert line(text, "line \\| loop") == ["line \\| loop", "3", ""]
    assert "## analysis" in text


def filled(folders: list[Path], readme: Path) -> str:
    readme.write_text(f"# Toy\n\n{report.BEGIN}\nold\n{report.END}\n\nthe rest\n")
    report.main([*map(str, folders), "--readme", str(readme)])
    return readme.read_text()


def test_the_readme_says_what_the_files_say(folders: list[Path], tmp_path: Path) -> None:
    text = filled(folders[:1], tmp_path / "README.md")
    assert "old" not in text
    assert text.startswith(f"# Toy\n\n{report.BEGIN}\n| speedup")
    assert text.endswith(f"\n{report.END}\n\nthe rest\n")
    assert len([line for line in text.splitlines() if line.startswith("|")]) <= 2 + 8
    assert line(text, "the same, forward")[1:] == ["30 (DeepPCR)", "0.5", "5", "Newton's method"]
    assert line(text, "the same, backward")[1:] == ["200 (DeepPCR)", "", "", ""]
    assert text.count("\ncpu: Toy, 2 cores, jax 0.10.2, 2026-01-02.\n") == 1
    before = text
    report.main([str(folders[0]), "--readme", str(tmp_path / "README.md")])
    assert (tmp_path / "README.md").read_text() == before


def test_a_sequential_program_never_stands_beside_a_published_speedup(
    folders: list[Path], tmp_path: Path
) -> None:
    rows = [row("lax.scan", 8.0), row("auto", 1.0) | {"depth speedup": 1.0}]
    rows += [row("adjoint, backprop", 0.5), row("newton", 32.0)]
    write(folders[0], "mlp", rows)
    text = filled(folders[:1], tmp_path / "README.md")
    assert line(text, "the same, forward")[2:] == ["0.25", "5", "Newton's method"]
    assert line(text, "MLP forward, no parallel")[1:] == ["", "8", "5", "the loop, rewritten"]
    assert all(not headline.published for headline in report.HEADLINES if headline.is_sequential)
    write(folders[0], "mlp", [row("lax.scan", 8.0), row("auto", 1.0) | {"depth speedup": 9.0}])
    text = filled(folders[:1], tmp_path / "README.md")
    assert line(text, "MLP forward, no parallel")[2:] == ["", "", ""]  # "auto" was parallel there
    assert line(text, "the same, forward")[2:] == ["8", "5", '"auto"']


def test_sentences_of_the_readme_say_what_the_files_say(
    folders: list[Path], tmp_path: Path
) -> None:
    gru = {"kind": "gru", "direction": "gradient"}
    rows = [row("auto", ms, **gru, w=w) for ms, w in ((2.0, 2), (1.0, 16), (0.1, 32))]
    readme = tmp_path / "README.md"
    write(folders[0], "gradients", rows)
    sentence = "It takes <!-- measured: {} -->{}<!-- end --> of it."
    before = "\n".join([sentence.format("gradient", "old"), sentence.format("loop", "")])
    text = f"{before}\n{report.BEGIN}\n{report.END}\n"
    devices = report.read(folders)
    readme.write_text(text)
    report.rewrite(readme, report.readme(devices), report.measured_ranges(devices))
    filled = readme.read_text()
    assert sentence.format("gradient", "4.0 to 8.0 times") in filled
    assert sentence.format("loop", "0.1 to 0.1") in filled
    readme.write_text(text.replace("loop", "fun"))
    with pytest.raises(SystemExit, match="no range is called 'fun'; there are gradient, loop"):
        report.rewrite(readme, "", report.measured_ranges(devices))


def test_devices_have_lines_of_their_own(folders: list[Path], tmp_path: Path) -> None:
    text = filled(folders, tmp_path / "README.md")
    assert line(text, "speedup")[2:] == ["on", "measured", "predicted", "by"]
    assert line(text, "the same, forward")[2:] == ["cpu", "0.5", "5", "Newton's method"]
    assert line(text, " |  | gpu") == ["", "", "gpu", "40", "5", "Newton's method"]  # titles once
    assert line(text, "the same, backward")[2:] == ["", "", "", ""]  # measured nowhere
    assert " gpu: Toy, 2 cores, jax 0.11.2, 2026-01-02. Stopped early.\n" in text


@pytest.mark.parametrize("name", ["auto", "auto, captured"])
def test_auto_is_parallel_where_it_has_much_less_depth(folders: list[Path], name: str) -> None:
    loop, newton = row("lax.scan", 8.0), row("newton", 2.0)
    for depth, speedup in ((1.0, "4"), (1.3, "4"), (9.0, "8")):  # 1.3: jax's gradient, rewritten
        write(folders[0], "mlp", [loop, newton, row(name, 1.0) | {"depth speedup": depth}])
        found = line(report.headlines(report.read(folders[:1])), "the same, forward")
        assert found[2] == speedup
        assert ("auto" in found[4]) == (speedup == "8")


def test_the_figure_of_the_readme_is_drawn(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    module = types.ModuleType("experiments.bench.headline")
    monkeypatch.setattr(module, "draw", lambda *call: drawn.append(call), raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rows = [row("lax.scan", 8.0), row("newton", 4.0)]
    write(folders[0], "gradients", rows)
    filled(folders, tmp_path / "README.md")
    assert drawn == [(rows, folders[0] / "headline.png")]


def test_a_readme_without_a_place_is_left_alone(folders: list[Path], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Toy\n")
    with pytest.raises(SystemExit, match="has 0 places for results, expected one"):
        report.main([*map(str, folders), "--readme", str(readme)])
    assert readme.read_text() == "# Toy\n"


def test_the_page_is_written_or_printed(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    report.main([str(folders[0]), "--page", str(page)])
    assert "gpu" not in page.read_text()
    assert capsys.readouterr().out == ""
    report.main([str(folders[1])])
    assert capsys.readouterr().out.startswith("# Results\n")
    (tmp_path / "none").mkdir()
    with pytest.raises(SystemExit, match=r"no result files in .*none"):
        report.main([str(tmp_path / "none")])


def test_devices_of_one_name_are_told_apart(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "cpu", "mlp", [row("lax.scan", 8.0), row("newton", 2.0)])
    devices = report.read([folders[0], tmp_path / "other" / "cpu"])
    assert len({device.name for device in devices}) == 2
    found = report.headlines(devices)
    assert line(found, "the same, forward")[3:] == ["0.5", "5", "Newton's method"]
    assert line(found, f" |  | {tmp_path / 'other' / 'cpu'}")[3:] == ["4", "5", "Newton's method"]


def test_iterations_that_did_not_converge_are_no_result(tmp_path: Path) -> None:
    rows = [row("lax.scan", 8.0), row("newton", 2.0)]
    write(tmp_path / "cpu", "mlp", [*rows, row("stopped", 0.1) | {"ended": "not converged"}])
    found = line(report.headlines(report.read([tmp_path / "cpu"])), "the same, forward")
    assert found[2:] == ["4", "5", "Newton's method"]


def test_a_table_in_markdown() -> None:
    rows = [{"run": "scan", "ms": 1.23456}, {"run": "newton"}]
    assert markdown(rows).splitlines() == [
        "| run | ms |",
        "|---|--:|",
        "| scan | 1.23 |",
        "| newton |  |",
    ]
    assert markdown([]) == ""


def test_our_own_readme_says_what_the_kept_files_say(tmp_path: Path) -> None:
    ours = Path(__file__).parents[2] / "README.md"
    readme = tmp_path / "README.md"
    readme.write_text(ours.read_text(encoding="utf-8"), encoding="utf-8")
    kept = report.read(
        sorted(path for path in (ours.parent / "experiments/results").iterdir() if path.is_dir())
    )
    report.rewrite(readme, report.readme(kept), report.measured_ranges(kept))
    assert readme.read_text(encoding="utf-8") == ours.read_text(encoding="utf-8")
