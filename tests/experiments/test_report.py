"""The page of results.

Devices side by side, empty cells where nothing was measured, the README's table.
"""

import json
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
    forward = [row("lax.scan", 8.0), row("newton", 16.0), row("auto", 1.0)]
    write(cpu, "mlp", [*forward, row("lax.scan", 8.0, L=64), row("newton", 4.0, L=64)])
    write(
        cpu,
        "analysis",
        [{"part": "toy", "program": "line | loop", "depth": 3, "times": {"a": 1}, "none": None}],
    )
    (cpu / "mlp.png").write_bytes(b"\x89PNG")
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
    assert "![mlp on cpu](cpu/mlp.png)" in text
    assert "mlp on gpu" not in text
    assert line(text, "cpu | Toy")[3] == "0.10.2"
    assert line(text, "gpu | Toy")[-1] == "mlp"  # stopped early
    assert line(text, "gpu | mlp")[2:] == ["2", "1.5", "2"]  # programs, errors of prediction
    assert line(text, "line \\| loop") == ["line \\| loop", "3", ""]
    assert "## analysis" in text


def test_the_readme_says_what_the_files_say(folders: list[Path], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"# Toy\n\n{report.BEGIN}\nold\n{report.END}\n\nthe rest\n")
    report.main([*map(str, folders), "--readme", str(readme)])
    text = readme.read_text()
    assert "old" not in text
    assert text.startswith(f"# Toy\n\n{report.BEGIN}\n| speedup")
    assert text.endswith(f"\n{report.END}\n\nthe rest\n")
    # "auto" counts here: it is what a user gets.
    assert line(text, "MLP, 1024 layers")[1:] == [
        "30 (DeepPCR)",
        "8",
        "8",
        "5",
        "auto",
        "40",
        "40",
        "5",
        "newton",
    ]
    assert line(text, "the same, backward")[2:] == [""] * 8
    before = text
    report.main([*map(str, folders), "--readme", str(readme)])
    assert readme.read_text() == before


def test_launches_on_a_gpu_that_was_not_at_hand_are_told(folders: list[Path]) -> None:
    assert report.launches(report.read(folders)) == ""
    case = {"target": "H200", "kind": "tanh", "L": 1024, "w": 8, "batch": 1, "direction": "forward"}
    programs = {
        "lax.scan": (4000, True),
        "lax.scan, unroll 16": (700, True),
        "newton": (100, False),
        "diagonal": (200, False),
    }
    rows = [
        case
        | {
            "program": name,
            "sequential": loop,
            "launches": count,
            "waits": 3,
            "fewer launches": 4000 / count,
        }
        for name, (count, loop) in programs.items()
    ]
    write(folders[0], "kernels", rows)
    devices = report.read(folders)
    statistics = line(report.launches(devices), "MLP, 1024 layers of 8 tanh units, forward")
    assert statistics[1:] == ["4000", "700", "100", "newton", "3", "40", "7"]
    assert report.launches(devices) in report.readme(devices)


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
    assert line(report.headlines(devices), "MLP, 1024")[2:] == [
        "8",
        "8",
        "5",
        "auto",
        "4",
        "4",
        "5",
        "newton",
    ]


def test_iterations_that_did_not_converge_are_no_result(tmp_path: Path) -> None:
    write(
        tmp_path / "cpu",
        "mlp",
        [
            row("lax.scan", 8.0),
            row("newton", 2.0),
            row("stopped", 0.1) | {"ended": "not converged"},
        ],
    )
    assert line(report.headlines(report.read([tmp_path / "cpu"])), "MLP, 1024")[2] == "4"


def test_a_table_in_markdown() -> None:
    rows = [{"run": "scan", "ms": 1.23456}, {"run": "newton"}]
    assert markdown(rows).splitlines() == [
        "| run | ms |",
        "|---|--:|",
        "| scan | 1.23 |",
        "| newton |  |",
    ]
    assert markdown([]) == ""


def test_our_own_readme_says_what_the_kept_files_say() -> None:
    root = Path(__file__).parents[2]
    kept = report.read(
        sorted(folder for folder in (root / "experiments/results").iterdir() if folder.is_dir())
    )
    assert report.readme(kept) in (root / "README.md").read_text(encoding="utf-8")
