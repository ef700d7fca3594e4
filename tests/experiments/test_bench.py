"""The bench: rows, wrong programs, times, costs, result files, tables, data, plots."""

import math
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import deeppcr
from deeppcr import loops
from depth.models import generic_cpu
from experiments.bench import costs, engine, results, timing
from experiments.bench.columns import BENCH
from experiments.bench.engine import Case, Variant, bench, distance, measure
from experiments.bench.programs import baselines
from experiments.bench.table import WIDTH, Row, layout, show
from experiments.bench.timing import Build, Effort

DEVICE = generic_cpu(2)
LENGTH = 20


def step(z: Array, x: Array) -> Array:
    return jnp.tanh(0.9 * z + x)


def last(scan: Callable[..., Any]) -> Callable[..., Array]:
    return lambda z, xs: scan(lambda z, x: (step(z, x), None), z, xs)[0]


def backward(scan: Callable[..., Any]) -> Variant:
    def prepare(z: Array, xs: Array) -> tuple[Any, Array]:
        value, pull = jax.vjp(last(scan), z, xs)
        return pull, jnp.ones_like(value)

    return Variant(lambda pull, slope: pull(slope), prepare=jax.jit(prepare))


@jax.jit
def solve(z: Array, xs: Array) -> deeppcr.Solution:
    return deeppcr.solve(deeppcr.Chain(step, xs), z, method="newton")


def arguments(seed: int) -> tuple[Array, Array]:
    xs = jax.random.normal(jax.random.key(seed), (LENGTH, 2), jnp.float32)
    return jnp.zeros(2, jnp.float32), xs


def fails(z: Array, xs: Array) -> Array:
    def crash(z: np.ndarray) -> np.ndarray:
        raise MemoryError("no memory left")

    return jax.pure_callback(crash, jax.ShapeDtypeStruct((2,), jnp.float32), z)


@cache
def rows() -> dict[str, Row]:
    """One case with a right, a wrong, a failing and an endless program."""
    newton = last(partial(deeppcr.scan, method="newton"))
    programs: dict[str, Any] = {
        "newton": Variant(newton, solve=solve),
        "newton, unsolved": newton,
        "wrong": lambda z, xs: 1.01 * last(jax.lax.scan)(z, xs),
        "not a number": lambda z, xs: jnp.nan * z,
        "fails": fails,
        "endless": lambda z, xs: jax.lax.fori_loop(0, 10**9, lambda _, z: step(z, xs[0]), z),
    }
    case = Case(
        {"L": LENGTH, "direction": "forward"},
        [arguments(0), arguments(1)],
        baselines(last, LENGTH, longest=0),
        programs,
    )
    return {row["program"]: row for row in bench(case, DEVICE, Effort(3), longest=1.0)}


def test_a_row_says_what_was_predicted_and_what_came_of_it() -> None:
    newton, scan = rows()["newton"], rows()["lax.scan"]
    known = {"L", "direction", "program", "baseline", "ms", "min ms", "max ms", "CPU ms"}
    known |= {"repeats", "temp MB"}
    known |= {"depth", "work", "predicted ms", "log2", "error", "iterations", "residual", "ended"}
    known |= {"speedup", "over lax.scan", "depth speedup", "predicted speedup"}
    assert known == newton.keys()
    # Only what is compiled alone says how long that takes.
    assert known - {"iterations", "residual", "ended"} | {"trace s", "compile s"} == scan.keys()
    assert newton["ended"] == "converged"
    assert 1 < newton["iterations"] < LENGTH
    assert scan["repeats"] >= 3
    assert "min ms" not in show([scan], BENCH)


def test_a_program_of_another_library_is_called_as_it_is() -> None:
    loop, twice = lambda x: x + x, lambda x: 2 * np.asarray(x)  # which jax cannot trace
    case = Case({}, [(jnp.ones(3),)], {"lax.scan": loop}, {"numpy": Variant(twice, is_jax=False)})
    scan, numpy = bench(case, DEVICE, Effort(2))
    assert numpy["over lax.scan"] == pytest.approx(scan["ms"] / numpy["ms"])
    assert not {"note", "predicted ms", "compile s", "temp MB"} & numpy.keys()


def test_speedups_are_those_of_the_times() -> None:
    found = rows()
    sequential = [row for row in found.values() if row["baseline"]]
    names = ["lax.scan", "lax.scan, unroll 4", "lax.scan, unroll 16"]
    assert [row["program"] for row in sequential] == names
    scan, newton = sequential[0], found["newton"]
    assert newton["min ms"] <= newton["ms"] <= newton["max ms"]
    assert newton["over lax.scan"] == pytest.approx(scan["ms"] / newton["ms"])
    assert newton["speedup"] == pytest.approx(min(row["ms"] for row in sequential) / newton["ms"])
    assert newton["predicted speedup"] == pytest.approx(
        min(row["predicted ms"] for row in sequential) / newton["predicted ms"]
    )
    assert newton["depth speedup"] == scan["depth"] / newton["depth"]
    assert newton["log2"] == pytest.approx(math.log2(newton["predicted ms"] / newton["ms"]))
    assert (scan["over lax.scan"], scan["depth speedup"], scan["error"]) == (1, 1, 0)


def test_what_is_wrong_or_does_not_run_has_a_note_and_no_speedup() -> None:
    found = rows()
    assert found["wrong"]["error"] == pytest.approx(0.01, rel=0.1)
    assert found["wrong"]["note"].startswith("wrong: differs from lax.scan by 1.0e-02")
    assert found["not a number"]["error"] == math.inf
    assert found["fails"]["note"].startswith("failed: ")
    assert found["endless"]["note"].startswith("not run: predicted to take")
    for name in ("wrong", "not a number", "fails", "endless"):
        assert not {"speedup", "over lax.scan"} & found[name].keys()
    assert "ms" not in found["fails"].keys() | found["endless"].keys()
    unknown = found["newton, unsolved"]  # nobody tells the trips of its loop
    assert not {"depth", "predicted ms", "log2", "depth speedup", "iterations"} & unknown.keys()
    assert unknown["speedup"] > 0


def test_a_backward_pass_is_timed_alone() -> None:
    programs = {"adjoint": backward(partial(deeppcr.scan, method="sequential", adjoint="pcr"))}
    case = Case(
        {"direction": "backward"},
        [arguments(0), arguments(1)],
        {"lax.scan": backward(jax.lax.scan)},
        programs,
    )
    scan, adjoint = bench(case, DEVICE, Effort(1))
    whole = engine.depth.analyze(
        jax.grad(lambda *given: last(jax.lax.scan)(*given).sum()), *arguments(0)
    ).depth
    assert scan["depth"] < whole
    assert adjoint["error"] < 1e-5
    assert "note" not in adjoint


def test_calls_go_through_all_arguments_and_the_first_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def build(*_: Any, **__: Any) -> Build:
        return Build(lambda x: (seen.append(float(x)), x)[1], 0.1, 0.2, None)

    monkeypatch.setattr(engine, "build", build)
    monkeypatch.setattr(timing, "clock", lambda call: (call(), 1.0)[1])
    case = Case({}, [(jnp.float32(0),), (jnp.float32(1),)], {"lax.scan": lambda x: x}, {})
    (row,) = bench(case, DEVICE, Effort(3))
    assert seen == [0, 1, 0, 1, 0, 1, 0]
    assert row["repeats"] == 3
    (row,) = bench(case, DEVICE, Effort(100))
    assert row["repeats"] == Effort().patience  # of a second each


def test_programs_compile_side_by_side_and_nothing_is_timed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[tuple[str, str]] = []
    both = threading.Barrier(2, timeout=60)

    def build(function: Any, *arguments: Any, **_: Any) -> Build:
        name = function(None)
        if name in ("a", "b"):
            both.wait()  # each waits for the other
        events.append(("built", name))
        return Build(lambda x: (events.append(("called", name)), x)[1], 0.1, 0.2, None)

    monkeypatch.setattr(engine.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(engine, "build", build)
    named = {name: lambda x, name=name: name for name in ("lax.scan", "a", "b", "auto")}
    case = Case({}, [(jnp.ones(2),)], {"lax.scan": named.pop("lax.scan")}, named)
    found = measure(case, Effort(1))
    assert sorted(events[:2]) == [("built", "a"), ("built", "b")]
    assert events[2:4] == [("built", "lax.scan"), ("built", "auto")]  # alone, for their times
    assert [name for name, one in found.items() if "compile s" in one.row] == ["lax.scan", "auto"]
    assert {what for what, _ in events[4:]} == {"called"}


def test_errors_are_those_from_float64_if_asked_for() -> None:
    far = 1.0 + 2.0**-20
    programs = {"far": Variant(lambda x, y: (far * x * y, y), prepare=lambda x: (x, 1e-30 * x))}
    plain = Variant(lambda x, y: (x * y, y), prepare=programs["far"].prepare)
    given = [(jnp.full(3, 1e-18, jnp.float32),)]
    found = measure(Case({}, given, {"plain": plain}, programs, in_float64=True))
    assert found["plain"].row["error, float64"] == 0  # float32 cannot hold a smaller number
    given = [(jnp.full(3, 0.1, jnp.float32),)]
    found = measure(Case({}, given, {"plain": plain}, programs, in_float64=True))
    assert found["far"].row["error"] == pytest.approx(2.0**-20, rel=0.1)
    assert found["far"].row["error, float64"] == pytest.approx(2.0**-20, rel=0.1)
    assert 0 < found["plain"].row["error, float64"] < 1e-7


@pytest.mark.parametrize(
    ("effort", "times", "counts", "uncounted"),
    [
        (Effort(3, most=1), {"A": 1.0, "B": 1.0, "C": 1.0}, 3 * "AABBCC", 9),
        (
            Effort(4, slow=5.0),
            {"A": 0.1, "B": 0.9},
            "AABBAABBAAAA",
            6,
        ),  # what is slow is called twice
        (Effort(3, share=8 / 1024, most=5), {"A": 1 / 1024}, "AA" + 2 * "AAAAAA", 3),  # more often
        (Effort(9, patience=2.5), {"A": 1.0}, "AAAA", 2),
    ],
)
def test_calls_are_interleaved(
    effort: Effort,
    times: dict[str, float],
    counts: str,
    uncounted: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    monkeypatch.setattr(timing, "clock", lambda call: call())
    functions = {name: lambda name=name: (called.append(name), times[name])[1] for name in times}
    found = timing.interleave(functions, effort)
    assert "".join(called) == counts
    # The first call of a function in a round is not counted.
    timed = sum(len(one.seconds) for one in found.values())
    assert timed == len(counts) - uncounted


def test_loops_are_found_by_their_scope() -> None:
    assert costs.in_scope("jit(f)/jvp(newton iteration)/while", "newton iteration")
    assert costs.in_scope("newton iteration", "newton iteration")
    assert not costs.in_scope("jit(f)/newton iterations/while", "newton iteration")

    def program(x: Array) -> Array:
        with jax.named_scope(loops.FALLBACK):
            x = jax.lax.while_loop(lambda x: x[0] < 1, lambda x: x + x, x)
        with jax.named_scope(loops.REPAIR):
            _, x = jax.lax.while_loop(
                lambda s: ~s[0], lambda s: (~s[0], jnp.sin(s[1])), (x[0] > 0, x)
            )
        with loops.named(loops.STEP, 1):  # nor what is no iteration
            x = jax.lax.while_loop(lambda x: x[0] < 2, lambda x: jnp.cos(jnp.sin(x)), x)
        return jax.lax.while_loop(lambda x: x[0] < 9, lambda x: jnp.sin(x), x)

    def depth(**trips: int) -> int:
        return costs.analyze(program, jnp.ones(2), **trips).depth

    assert not costs.analyze(program, jnp.ones(2)).exact
    assert costs.analyze(program, jnp.ones(2), trips=1).exact
    none = depth(trips=0, rest=0)
    assert depth(trips=5, rest=0) > none
    assert depth(trips=0, rest=5) > none
    assert depth(trips=5, rest=5) == depth(trips=5, rest=0) + depth(trips=0, rest=5) - none
    assert depth(trips=5) == depth(trips=5, rest=5)
    assert depth(trips=6, rest=0) - depth(trips=5, rest=0) == 2  # the sine, and its condition


def test_distance_is_relative_to_the_largest_entry() -> None:
    assert distance({"a": jnp.array([0.0, 4.0])}, {"a": jnp.array([1.0, 4.0])}) == 0.25
    assert (
        distance([jnp.array([1.0]), jnp.array([math.nan])], [jnp.ones(1), jnp.ones(1)]) == math.inf
    )
    assert distance(jnp.zeros(0), jnp.zeros(0)) == 0


def test_a_table_aligns_its_cells_and_fits_the_terminal() -> None:
    rows = [{"run": "scan", "ms": 1.23456, "steps": 12}, {"run": "newton", "ms": np.float32(20)}]
    assert show(rows).splitlines() == [
        *("run       ms  steps", "scan    1.23     12", "newton    20")
    ]
    columns = {f"column {k}": "a number" for k in range(40)}
    wide: list[Row] = [dict.fromkeys(columns, 123456.0) | {"note": 50 * "word "} for _ in "ab"]
    text, names = layout(wide, columns)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert names == list(columns)[: len(names)]
    assert 5 < len(names) < 40
    assert show([], columns) == ""


def test_what_all_rows_share_stands_above_the_table_and_notes_below() -> None:
    rows = [{"L": 8, "program": "scan", "ms": 1.0}, {"L": 8, "program": "newton", "note": "wrong"}]
    text, names = layout(rows, {"L": "", "program": "", "compile s": "", "ms": ""}, "part")
    assert text.splitlines() == [
        *("part: L = 8", "program  ms", "scan      1", "newton"),
        "newton: wrong",
    ]
    assert names == ["L", "program", "ms"]


def test_results_come_back_as_written(tmp_path: Path) -> None:
    path = results.path_of("toy", tmp_path)
    rows = [{"L": 8, "seconds": np.float64(0.5)}, {"L": np.int32(16), "seconds": jnp.array(1.5)}]
    results.write(path, rows, quick=True)
    (environment,), back = results.read(path)
    assert path == tmp_path / results.device() / f"jax-{results.version()}" / "toy.jsonl"
    assert back == [{"L": 8, "seconds": 0.5}, {"L": 16, "seconds": 1.5}]
    wanted = {"device", "cores", "jax", "jaxlib", "numpy", "python", "commit", "time", "quick"}
    assert wanted <= environment.keys()
    both = tmp_path / "both.jsonl"
    both.write_text(2 * path.read_text())
    environments, rows = results.read(both)  # a file that was put together has several
    assert (len(environments), len(rows)) == (2, 4)


def test_older_rows_stay_until_they_are_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    rows = [{"L": length, "program": "newton", "ms": 1.0} for length in (8, 16)]
    results.write(path, rows, complete=True)
    older = results.groups(path)
    for count in (0, 1):
        results.write(path, [row | {"ms": 2.0} for row in rows[:count]], older, complete=False)
        environments, back = results.read(path)
        assert [one["complete"] for one in environments] == [False, True]
        assert [(row["L"], row["ms"]) for row in back] == [(8, 2.0 if count else 1.0), (16, 1.0)]


def crash() -> Iterator[dict[str, int]]:
    yield {"length": 1}
    raise RuntimeError("midway")


@pytest.mark.parametrize(
    ("rows", "error"),
    [(crash(), RuntimeError), ([{"fine": 1}, {"not data": object()}], TypeError)],
    ids=["measuring", "writing"],
)
def test_a_crash_leaves_the_last_results(tmp_path: Path, rows: Any, error: Any) -> None:
    path = results.path_of("toy", tmp_path)
    results.write(path, [{"length": 0}])
    before = path.read_bytes()
    with pytest.raises(error):
        results.write(path, rows)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
