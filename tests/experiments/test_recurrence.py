"""`python -m experiments recurrence`.

All programs solve the same recurrence, and what is kept, printed and drawn of it.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from experiments.bench import plots
from experiments.bench.engine import distance
from experiments.bench.table import Row
from experiments.recurrence import figure as recurrence_figure
from experiments.recurrence import run as recurrence
from experiments.recurrence.run import Size


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
    programs = {**case.baselines, **case.variants}
    assert list(programs) == [
        "lax.scan",
        "lax.scan, unroll 4",
        "unrolled",
        "sequential",
        "pcr",
        "associative_scan",
    ]
    for name in ("lax.scan", "pcr", "associative_scan"):
        np.testing.assert_allclose(
            jax.jit(programs[name])(blocks, b), expected, rtol=1e-4, atol=1e-5, err_msg=name
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
    assert list(backwards.variants) == ["chunked"]
    for name, solve in {**backwards.baselines, **backwards.variants}.items():
        assert distance(jax.jit(solve)(blocks, g), pull(g)[0]) < 1e-5, name
    assert distance(y, pull(g)[0]) > 0.01


def test_the_command_runs_from_start_to_end(run_command) -> None:
    sizes = ("--lengths", "8", "--widths", "2", "--solvers", "pcr", "chunked")
    rows, _ = run_command(recurrence, *sizes, "--repeats", "1")
    found = [row for row in rows if "program" in row]
    solvers = [row for row in rows if row.get("part") == "solvers"]
    assert [row["program"] for row in found] == [
        *("lax.scan", "unrolled", "sequential"),
        *("pcr", "chunked", "associative_scan"),
    ]
    assert not [row for row in found if "note" in row]
    keys = ("depth", "predicted ms", "speedup", "depth speedup", "predicted speedup", "ms")
    for row in found:
        assert min(row[key] for key in keys) > 0
        assert row["temp MB"] >= 0
    (row,) = solvers
    ms = {other["program"]: other["ms"] for other in found}
    fastest = min(ms["pcr"], ms["chunked"])
    assert row["scan/best parallel"] == pytest.approx(ms["associative_scan"] / fastest)
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


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(*given: str, lengths: Any = None) -> list[Size]:
        kinds = [*given] or ["dense"]
        options = Namespace(quick=bool(given), kinds=kinds, lengths=None, widths=None, batches=[3])
        return recurrence.sizes(options)

    seen = sizes()
    assert seen[:5] == [Size("dense", 4096, w, 3) for w in (4, 8, 16, 32, 64)]
    assert len(seen) == len(set(seen))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    long = [size.width for size in sizes() if size.length == recurrence.LONG]
    assert long == [4, 8, 16]  # more would be a gigabyte
    found = [Size(kind, 1024, w, 3) for kind in ("pairs", "scalar") for w in (4, 16)]
    assert sizes("pairs", "scalar") == found


def test_the_figure_is_of_the_kind_with_most_rows(tmp_path: Path) -> None:
    here = {"kind": "dense", "L": 8, "w": 2, "batch": 1, "direction": "forward"}
    rows = [here | {"program": "lax.scan", "baseline": True, "ms": 1.0, "speedup": 1.0}]
    rows += [rows[0] | {"kind": "scalar", "w": 4, "L": 16}, rows[0] | {"kind": "scalar", "w": 8}]
    plots.save(tmp_path / "figure.png", recurrence_figure.pictures([*rows, {"part": "solvers"}]))
    plots.save(tmp_path / "empty.png", recurrence_figure.pictures([]))
    sizes = [(tmp_path / name).stat().st_size for name in ("figure.png", "empty.png")]
    assert sizes[0] > sizes[1] > 0


@pytest.mark.parametrize("kind", ["pairs", "neighbours"])
def test_pairs_need_an_even_width(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        recurrence.main(["--kinds", kind, "--widths", "4", "5"])
    assert "--widths 4 5: pairs and neighbours need even ones" in capsys.readouterr().err
