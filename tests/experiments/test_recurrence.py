"""`python -m experiments recurrence`: all programs solve the same recurrence, and what is kept, printed and drawn of it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from depth.device import generic_cpu
from experiments import recurrence
from experiments.common import baselines, options, recurrence_figure, results
from experiments.common.versus import Row, distance
from experiments.recurrence import Size


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up calibration, and of the scans only the plain one."""
    monkeypatch.setattr(options.depth, "calibrate", lambda refresh: generic_cpu(2))
    monkeypatch.setattr(baselines, "UNROLLS", ())


def stepped(blocks: Any, b: Any) -> np.ndarray:
    """The definition, with the blocks as full matrices, for one example."""
    columns = [
        np.asarray(blocks.apply(np.broadcast_to(unit, b.shape).astype(np.float32)))
        for unit in np.eye(b.shape[-1])
    ]
    A = np.stack(columns, axis=-1).astype(np.float64)
    y = [np.asarray(b[0], np.float64)]
    for A_l, b_l in zip(A[1:], np.asarray(b[1:]), strict=True):
        y.append(A_l @ y[-1] + b_l)
    return np.stack(y)


@pytest.mark.parametrize("kind", recurrence.KINDS)
def test_all_programs_solve_the_same_recurrence(kind: str) -> None:
    case = recurrence.case(Size(kind, 7, 4), names=["pcr"])
    blocks, b = case.arguments[0]
    expected = stepped(blocks, b)
    ways = {**case.baselines, **case.programs}
    assert list(ways) == [
        "lax.scan",
        "lax.scan, unroll 4",
        "unrolled",
        "sequential",
        "pcr",
        "associative_scan",
    ]
    for name in ("lax.scan", "pcr", "associative_scan"):
        np.testing.assert_allclose(
            jax.jit(ways[name])(blocks, b), expected, rtol=1e-4, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("batch", [1, 3])
def test_transposed_it_is_the_adjoint(batch: int) -> None:
    size = Size("dense", 6, 2, batch)
    blocks, g = recurrence.problem(size, seed=0)
    forwards, backwards = (
        recurrence.case(size),
        recurrence.case(size, transposed=True, names=["chunked"]),
    )
    y, pull = jax.vjp(lambda b: forwards.baselines["lax.scan"](blocks, b), g)
    assert "unrolled" not in backwards.baselines
    assert list(backwards.programs) == ["chunked"]
    for name, solve in {**backwards.baselines, **backwards.programs}.items():
        assert distance(jax.jit(solve)(blocks, g), pull(g)[0]) < 1e-5, name
    assert distance(y, pull(g)[0]) > 0.01


@pytest.mark.usefixtures("few")
def test_the_command_runs_from_start_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--lengths", "8", "--widths", "2", "4", "--solvers", "pcr", "chunked"]
    recurrence.main([*sizes, "--repeats", "1", "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"drawn in {folder / 'toy.png'}",
    ]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    races, solvers = (
        [row for row in rows if "program" in row],
        [row for row in rows if row.get("part") == "solvers"],
    )
    assert [row["program"] for row in races if row["w"] == 2] == [
        *("lax.scan", "unrolled", "sequential"),
        *("pcr", "chunked", "associative_scan"),
    ]
    assert not [row for row in races if "note" in row]
    for row in races:
        assert (
            min(
                row[key]
                for key in (
                    "depth",
                    "predicted ms",
                    "speedup",
                    "depth speedup",
                    "predicted speedup",
                    "ms",
                )
            )
            > 0
        )
        assert row["temp MB"] >= 0
    assert [row["w"] for row in solvers] == [2, 4]
    for row in solvers:
        ms = {other["program"]: other["ms"] for other in races if other["w"] == row["w"]}
        assert row["scan/best parallel"] == pytest.approx(
            ms["associative_scan"] / min(ms["pcr"], ms["chunked"])
        )
        assert row["auto"] == "sequential"  # on a CPU
        assert row["auto/best"] == pytest.approx(ms["sequential"] / min(ms.values()))


def test_only_what_is_right_is_compared() -> None:
    case = {"kind": "dense", "L": 8, "w": 2, "batch": 1, "direction": "forward"}

    def row(program: str, ms: float, right: bool = True) -> Row:
        found = {"program": program, "baseline": program in ("lax.scan", "sequential"), "ms": ms}
        return case | found | ({"speedup": 1.0} if right else {"note": "wrong"})

    rows = [
        row("lax.scan", 6.0),
        row("sequential", 4.0),
        row("pcr", 8.0),
        row("chunked", 1.0, right=False),
    ]
    rows += [row("associative_scan", 20.0)]
    expected = {
        "part": "solvers",
        **case,
        "sequential": "sequential",
        "sequential ms": 4,
        "parallel": "pcr",
        "parallel ms": 8,
    }
    expected |= {"associative ms": 20, "scan/best parallel": 2.5, "auto": "pcr", "auto/best": 2}
    assert recurrence.compared(rows, "pcr") == expected
    assert "auto/best" not in recurrence.compared(rows, "chunked")
    assert "scan/best parallel" not in recurrence.compared(rows[:3], "pcr")


@pytest.mark.usefixtures("few")
def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Size] = []
    monkeypatch.setattr(recurrence, "in_time", lambda sizes, seconds: seen.extend(sizes) or [])
    recurrence.main([])
    assert seen[:5] == [Size("dense", 4096, w) for w in (4, 8, 16, 32, 64)]
    assert len(seen) == len(set(seen)) == 4 * 5
    seen.clear()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    recurrence.main([])
    assert [size.width for size in seen if size.length == recurrence.LONG] == [
        4,
        8,
        16,
        32,
    ]  # 64 would be a gigabyte
    seen.clear()
    recurrence.main(["--quick", "--kinds", "pairs", "scalar", "--batches", "3"])
    assert seen == [Size(kind, 1024, w, 3) for kind in ("pairs", "scalar") for w in (4, 16)]


def test_the_figure_has_a_panel_for_each_width(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[tuple[str, list[int]]] = []
    monkeypatch.setattr(
        recurrence_figure,
        "_line",
        lambda axes, rows, name, color: drawn.append((name, [r["w"] for r in rows])),
    )
    rows = [
        {
            "kind": kind,
            "L": length,
            "w": w,
            "batch": 1,
            "direction": "forward",
            "program": name,
            "baseline": name == "lax.scan",
        }
        for kind, length in (("dense", 8), ("dense", 16), ("scalar", 8))
        for w in (2, 4)
        for name in ("lax.scan", "pcr")
    ]
    recurrence_figure.draw([*rows, {"part": "solvers"}], tmp_path / "figure.png")
    assert drawn == [("lax.scan", [2, 2]), ("pcr", [2, 2]), ("lax.scan", [4, 4]), ("pcr", [4, 4])]
    recurrence_figure.draw([], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


@pytest.mark.parametrize("kind", ["pairs", "neighbours"])
def test_pairs_need_an_even_width(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recurrence.main(["--kinds", kind, "--widths", "4", "5"])
    assert "--widths 4 5: pairs and neighbours need even ones" in capsys.readouterr().err
