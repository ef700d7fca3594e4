"""Races of parallel against sequential programs: what a row says, and that a wrong program is found out."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import deeppcr
from depth.device import generic_cpu
from experiments.common import versus
from experiments.common.baselines import baselines, unrolled
from experiments.common.options import in_time, parser
from experiments.common.progress import progress
from experiments.common.summary import best, errors
from experiments.common.versus import Case, Program, Row, distance, race, shown

DEVICE = generic_cpu(2)
LENGTH = 20


def step(z: Array, x: Array) -> Array:
    return jnp.tanh(0.9 * z + x)


def last(scan: Callable[..., Any]) -> Callable[..., Array]:
    return lambda z, xs: scan(lambda z, x: (step(z, x), None), z, xs)[0]


def backward(scan: Callable[..., Any]) -> Program:
    def prepare(z: Array, xs: Array) -> tuple[Any, Array]:
        value, pull = jax.vjp(last(scan), z, xs)
        return pull, jnp.ones_like(value)

    return Program(lambda pull, slope: pull(slope), prepare=jax.jit(prepare))


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
    """One race with a right, a wrong, a failing and an endless program."""
    newton = last(partial(deeppcr.scan, method="newton"))
    programs: dict[str, Any] = {
        "newton": Program(newton, solve=solve),
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
    return {row["program"]: row for row in race(case, DEVICE, repeats=3, longest=1.0)}


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
    assert "min ms" not in shown(scan)


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


def test_a_loop_whose_turns_nobody_tells_has_no_depth() -> None:
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
    scan, adjoint = race(case, DEVICE, repeats=1)
    whole = versus.depth.analyze(
        jax.grad(lambda *given: last(jax.lax.scan)(*given).sum()), *arguments(0)
    ).depth
    assert scan["depth"] < whole
    assert adjoint["error"] < 1e-5
    assert "note" not in adjoint


def test_calls_go_through_all_arguments_and_the_first_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    class Build:
        lower, compile, temporary_bytes = 0.1, 0.2, None

        def call(self, x: Any) -> Any:
            seen.append(float(x))
            return x

    monkeypatch.setattr(versus, "build", lambda *_: Build())
    monkeypatch.setattr(versus, "clock", lambda call: (call(), 1.0)[1])
    case = Case({}, [(jnp.float32(0),), (jnp.float32(1),)], {"lax.scan": lambda x: x}, {})
    (row,) = race(case, DEVICE, repeats=3)
    assert seen == [0, 1, 0, 1]
    assert row["repeats"] == 3
    (row,) = race(case, DEVICE, repeats=100)
    assert row["repeats"] == versus.PATIENCE  # of a second each


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


def test_nothing_new_is_begun_when_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(in_time([1, 2], None)) == [1, 2]
    assert list(in_time([1, 2], -1.0)) == []
    assert "stopped" in capsys.readouterr().out
    assert list(progress([1, 2])) == [1, 2]


def test_repeats_are_a_number_from_one_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser("toy", "A toy.").parse_args(["--repeats", "0"])
    assert "0 is not a number from 1 on" in capsys.readouterr().err
