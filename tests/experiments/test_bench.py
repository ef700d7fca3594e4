"""The bench: rows, wrong programs, times, costs, result files, tables, data, plots."""

import json
import math
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
from experiments.bench import command, costs, engine, plots, results, timing
from experiments.bench.columns import BENCH
from experiments.bench.command import parser
from experiments.bench.engine import Case, Outcome, Variant, bench, distance, measure
from experiments.bench.programs import baselines, unrolled
from experiments.bench.summary import best, errors
from experiments.bench.table import Row, show, table
from experiments.bench.timing import Build, Effort
from experiments.models import data

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
    known = {
        "L",
        "direction",
        "program",
        "baseline",
        "ms",
        "min ms",
        "max ms",
        "CPU ms",
        "repeats",
        "trace s",
        "compile s",
        "temp MB",
    }
    known |= {"depth", "work", "predicted ms", "log2", "error", "iterations", "residual", "ended"}
    known |= {"speedup", "over lax.scan", "depth speedup", "predicted speedup"}
    assert known == newton.keys()
    assert known - {"iterations", "residual", "ended"} == scan.keys()
    assert newton["ended"] == "converged"
    assert 1 < newton["iterations"] < LENGTH
    assert scan["repeats"] >= 3
    assert "min ms" not in show([scan], BENCH)


def test_speedups_are_those_of_the_times() -> None:
    found = rows()
    sequential = [row for row in found.values() if row["baseline"]]
    assert [row["program"] for row in sequential] == [
        "lax.scan",
        "lax.scan, unroll 4",
        "lax.scan, unroll 16",
    ]
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


def test_a_loop_whose_trips_nobody_tells_has_no_depth() -> None:
    row = rows()["newton, unsolved"]
    assert (
        not {"depth", "predicted ms", "log2", "depth speedup", "predicted speedup", "iterations"}
        & row.keys()
    )
    assert row["speedup"] > 0


def test_what_was_measured_is_summed_up() -> None:
    (found,) = best(rows().values())
    assert (found["L"], found["direction"]) == (LENGTH, "forward")
    assert found["parallel"] in ("newton", "newton, unsolved")
    assert found["speedup"] == pytest.approx(found["sequential ms"] / found["parallel ms"])
    said = errors(rows().values())
    assert said is not None
    assert said["programs"] == sum("log2" in row for row in rows().values())


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
    assert seen == [0, 1, 0, 1]
    assert row["repeats"] == 3
    (row,) = bench(case, DEVICE, Effort(100))
    assert row["repeats"] == Effort().patience  # of a second each


def test_the_least_of_several_builds_counts_and_each_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds, built = iter([5.0, 3.0, 4.0]), []

    def slow(function: Any, *_: Any, **__: Any) -> Build:
        built.append(function)
        return Build(function, next(seconds), 1.0, None)

    monkeypatch.setattr(engine, "build", slow)
    case = Case({}, [(jnp.ones(2),)], {"lax.scan": jnp.sin}, {})
    (row,) = bench(case, DEVICE, Effort(1), builds=3)
    assert (row["trace s"], row["compile s"]) == (3.0, 1.0)
    assert "temp MB" not in row
    assert len({id(function) for function in built}) == 3


def test_variants_may_have_their_own_arguments_and_results() -> None:
    pair = Variant(
        lambda x: (x, 0.0 * x),
        arguments=[(jnp.ones(3, jnp.float32),)],
        comparable=lambda result: result[0],
        statistics=lambda result: {"first": float(result[0][0])},
    )
    outcomes = measure(
        Case({}, [(jnp.ones(3, jnp.float32),)], {"plain": lambda x: x}, {"pair": pair})
    )
    assert isinstance(outcomes["pair"], Outcome)
    assert outcomes["pair"].is_right
    assert outcomes["pair"].row["first"] == 1
    assert outcomes["pair"].predicted is None  # without a device


def test_what_is_slow_is_called_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "clock", lambda call: call())
    times = {"fast": lambda: 1.0, "slow": lambda: 9.0}
    found = timing.interleave(times, Effort(4, slow=5.0))
    assert {name: one.count for name, one in found.items()} == {"fast": 4, "slow": 2}


def test_short_programs_are_called_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "clock", lambda call: 1 / 1024)
    found = timing.interleave({"short": lambda: None}, Effort(3, share=8 / 1024, most=5))
    assert found["short"].count == 1 + 5 + 5


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


def test_a_python_loop_is_a_scan() -> None:
    z, xs = arguments(0)

    def body(z: Array, x: Array) -> tuple[Array, dict[str, Array]]:
        z = step(z, x)
        return z, {"z": z}

    for found, wanted in zip(
        jax.tree.leaves(unrolled(body, z, xs)),
        jax.tree.leaves(jax.lax.scan(body, z, xs)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert "unrolled" in baselines(last, 20)
    assert "unrolled" not in baselines(last, 1000)


def test_distance_is_relative_to_the_largest_entry() -> None:
    assert distance({"a": jnp.array([0.0, 4.0])}, {"a": jnp.array([1.0, 4.0])}) == 0.25
    assert (
        distance([jnp.array([1.0]), jnp.array([math.nan])], [jnp.ones(1), jnp.ones(1)]) == math.inf
    )
    assert distance(jnp.zeros(0), jnp.zeros(0)) == 0


def test_repeats_are_a_number_from_one_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser("toy", "A toy.").parse_args(["--repeats", "0"])
    assert "expected an integer of at least 1, got 0" in capsys.readouterr().err


def test_calls_are_interleaved() -> None:
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ABC"}
    times = timing.interleave(functions, Effort(3, most=1))
    assert "".join(calls) == "ABC" * 3
    assert list(times) == ["A", "B", "C"]
    assert all(time.count == 3 for time in times.values())


def test_a_round_is_the_least() -> None:
    with pytest.raises(ValueError, match="at least 1 round, got 0"):
        Effort(0)


def test_timing_is_read_off_the_seconds() -> None:
    time = timing.Timing((3.0, 1.0, 2.0, 10.0))
    assert (time.minimum, time.median, time.maximum, time.count) == (1.0, 2.5, 10.0, 4)


def test_build_compiles_and_says_what_it_cost() -> None:
    x = jnp.arange(3.0)
    build = timing.build(lambda x: (2.0 * x).sum(), x)
    assert build.call(x) == 6.0
    assert build.lower > 0
    assert build.compile > 0
    assert build.temporary_bytes is None or build.temporary_bytes >= 0


def test_table_aligns_numbers_right_and_text_left() -> None:
    rows = [{"run": "scan", "ms": 1.23456, "steps": 12}, {"run": "newton", "ms": np.float32(20)}]
    assert show(rows).splitlines() == [
        "run       ms  steps",
        "scan    1.23     12",
        "newton    20",
    ]


def test_table_of_nothing_is_empty() -> None:
    assert show([]) == ""
    assert table(["a"], []) == "a"


def test_results_come_back_as_written(tmp_path: Path) -> None:
    rows = [
        {"length": 8, "seconds": np.float64(0.5)},
        {"length": np.int32(16), "seconds": jnp.array(1.5)},
    ]
    path = results.write("toy", rows, folder=tmp_path)
    (environment,), back = results.read(path)
    assert path == tmp_path / results.device() / "toy.jsonl"
    assert back == [{"length": 8, "seconds": 0.5}, {"length": 16, "seconds": 1.5}]
    wanted = {"device", "cores", "jax", "jaxlib", "numpy", "python", "commit", "time"}
    assert wanted <= environment.keys()


def crash() -> Iterator[dict[str, int]]:
    yield {"length": 1}
    raise RuntimeError("midway")


@pytest.mark.parametrize(
    ("rows", "error"),
    [(crash(), RuntimeError), ([{"fine": 1}, {"not data": object()}], TypeError)],
    ids=["measuring", "writing"],
)
def test_a_crash_leaves_the_last_results(
    tmp_path: Path, rows: object, error: type[Exception]
) -> None:
    path = results.write("toy", [{"length": 0}], folder=tmp_path)
    before = path.read_bytes()
    with pytest.raises(error):
        results.write("toy", rows, folder=tmp_path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_every_line_of_a_result_file_is_json(tmp_path: Path) -> None:
    path = results.write("toy", [{"length": 0}, {"length": 1}], folder=tmp_path)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 3


def test_digits_are_split_scaled_and_always_the_same() -> None:
    split = data.digits()
    assert len(split.train_x) + len(split.test_x) == 1797
    assert split.train_x.dtype == split.test_x.dtype == np.float32
    assert split.train_y.dtype == split.test_y.dtype == np.int32
    assert set(split.test_y) == set(range(10))
    np.testing.assert_allclose(split.train_x.mean(axis=0), 0, atol=1e-6)
    assert set(np.round(split.train_x.std(axis=0), 4)) == {0.0, 1.0}
    np.testing.assert_array_equal(split.train_x, data.digits().train_x)


def test_a_file_that_was_put_together_has_several_environments(tmp_path: Path) -> None:
    paths = [results.write(name, [{"name": name}], folder=tmp_path) for name in ("a", "b")]
    both = tmp_path / "both.jsonl"
    both.write_text("".join(path.read_text() for path in paths))
    environments, rows = results.read(both)
    assert (len(environments), rows) == (2, [{"name": "a"}, {"name": "b"}])


def test_what_is_stopped_midway_leaves_its_rows(tmp_path: Path) -> None:
    record = results.Record(tmp_path / "new" / "toy.jsonl", quick=True)
    record.add({"L": 1}, {"L": 2})
    (environment,), rows = results.read(record.path)
    assert (environment["complete"], rows) == (False, [{"L": 1}, {"L": 2}])
    assert environment["quick"] is True
    record.add({"L": 3})
    record.write(complete=True)
    (environment,), rows = results.read(record.path)
    assert (environment["complete"], len(rows)) == (True, 3)


def test_without_matplotlib_there_is_a_line_instead_of_a_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _: None)
    options = parser("toy", None).parse_args(["--plot", str(tmp_path / "none.png")])
    record = command.record(options)
    record.rows = [{"L": 1}]
    command.conclude(options, record, pytest.fail)
    assert "no figure: matplotlib is not installed" in capsys.readouterr().out
