"""The first command on a device: what it says follows from rows, made-up ones here."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import deeppcr
import depth
from deeppcr.lower.variants import compiled_for
from experiments import headline
from experiments.bench import results
from experiments.bench.chosen import chosen, saying
from experiments.bench.engine import Variant
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.device import constants, tests, verdict
from experiments.device import run as device
from tests.experiments.conftest import DEVICE, Run


def programs(title: str, direction: str, **ms: float | str) -> Iterator[Row]:
    """Rows of a case: a time of each program, or the note of one that is wrong."""
    for name, time in ms.items():
        program = name.replace("_", " ").replace("unroll", "lax.scan, unroll")
        row = {"title": title, "L": 8, "direction": direction, "program": program}
        row |= {"baseline": program.startswith("lax"), "runs": "newton"}
        yield row | ({"note": time} if isinstance(time, str) else {"ms": time})


ROWS = [
    *programs("GRU", "forward", unroll_16=9.0, auto=2.0, newton=2.0, fused=1.0),
    *programs("LSTM", "forward", unroll_16=9.0, auto=6.0, newton=6.0, fused=2.0),
    *programs("MLP", "forward", unroll_16=9.0, auto=1.0, newton=1.1, fused="wrong: differs"),
    *programs("GRU", "gradient", unroll_4=3.0, unroll_16=4.0, auto=1.0, **{"newton,_fused": 0.4}),
    *programs("MLP", "backward", unroll_16=4.0, auto="failed: no memory"),
]


def test_each_program_has_what_was_chosen_and_what_was_fastest() -> None:
    gru, _, mlp, _, backward = verdict.programs(ROWS)
    expected = {"title": "GRU", "L": 8, "direction": "forward", "runs": "newton"}
    expected |= {"default ms": 2.0, "fastest": "fused", "fastest ms": 1.0, "regret": 2.0}
    assert gru == expected
    assert (mlp["regret"], mlp["wrong"]) == (1.0, "fused")
    assert backward["note"] == "the default: failed: no memory"


def test_each_rule_has_a_verdict() -> None:
    measured = [
        {"constant": "call", "modelled ns": 10.0, "measured ns": 15.0, "measured / modelled": 1.5},
        {"constant": "node", "modelled ns": 10.0, "measured ns": 4.0, "measured / modelled": 0.4},
        {"constant": "trip", "note": "failed: no such option"},
    ]
    judged = verdict.programs(ROWS)
    said = {row["rule"]: row["verdict"] for row in verdict.rules(ROWS, judged, measured, "cuda")}
    method, adjoint, unroll, fused, newton, *constants = said.values()
    assert method == "change: fused was 2.5x faster in 2 of 3"
    assert adjoint == "change: newton, fused was 2.5x faster in 1 of 1"
    assert unroll == "change: lax.scan, unroll 4 was 1.3x faster in 1 of 1"
    assert fused == "change: fused is wrong in 1 of 3"
    assert newton == "not measured"  # in no case is there both
    assert constants == [
        "keep: 10 ns modelled, 15 ns measured",
        "change: 10 ns modelled, 4 ns measured",
        "failed: no such option",
    ]
    both = [*programs("GRU", "forward", newton=3.0, **{"newton,_fused": 2.0})]
    assert verdict.compared(verdict.RULES[-1], both) == "keep: nothing was 2x faster in 1"
    here = [row["verdict"] for row in verdict.rules(ROWS, judged, [], "cpu")]
    assert here[2:] == [verdict.ELSEWHERE] * len(verdict.RULES)
    wrong = verdict.programs([*programs("GRU", "forward", unroll_4=1.0, auto="wrong: differs")])
    assert verdict.choice(wrong) == "change: the default is wrong in 1 of 1"


TESTS = """
import os, pytest
@pytest.fixture
def broken():
    yield
    raise ValueError("torn down")
def test_right(): pass
def test_false(): assert 1 == 2, "words"
def test_torn(broken): pass
def test_left(): pytest.skip("no GPU")
"""


def test_failing_tests_are_rows(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    false, torn, every = tests.rows([str(file)], 60.0)
    assert (false["test"].partition("::")[2], false["outcome"]) == ("test_false", "failed")
    assert "words" in false["reason"]
    assert "torn down" in torn["reason"]
    assert every == {"test": "all", "passed": 1, "failed": 2, "skipped": 1, "outcome": "done"}
    file.write_text("import os\ndef test_a(): pass\ndef test_end(): os._exit(7)\n")
    ended, every = tests.rows([str(file)], 60.0)
    assert ended["reason"] == "pytest ended with 7 during this test"
    assert every["passed"] == 1
    file.write_text("import time\ndef test_a(): time.sleep(60)\n")
    (every,) = tests.rows([str(file)], 0.5)
    assert every["outcome"].startswith("stopped after")


def times(of: dict[str, float]) -> Any:
    """`constants.measured` as if these were the seconds that one more takes."""
    return lambda probe, *_: of.get(probe.constant.partition(":")[0], 1e-6)


def test_constants_are_modelled_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled_for("cuda"):
        found = constants.probes("cuda", quick=True)
        modelled = [
            constants.row(probe, depth.devices["H200"], 1e-6)["modelled ns"] for probe in found
        ]
    named = {probe.constant: ns for probe, ns in zip(found, modelled, strict=True)}
    h200 = depth.devices["H200"]
    graph, alone = (
        named[f"a kernel{text}_latency"] for text in (" of a CUDA graph: node", ": kernel")
    )
    assert alone - graph == pytest.approx(1e9 * (h200.kernel_latency - h200.node_latency), rel=0.01)
    assert named["a trip of a while loop: trip_latency"] > 1e9 * h200.trip_latency
    assert named["rule: a call, CALL"] == pytest.approx(72e3)
    assert min(modelled) > 0
    monkeypatch.setattr(constants, "measured", times({"a call": 1e-5}))
    first, *_ = constants.rows(DEVICE, "cpu", True, 60.0, Effort(1))
    assert first["measured ns"] == pytest.approx(1e4)
    assert first["measured / modelled"] == pytest.approx(1e4 / first["modelled ns"])
    assert not [*constants.rows(DEVICE, "cpu", True, -1.0, Effort(1))]  # time is over


def test_a_constant_is_a_slope_of_measured_times() -> None:
    probe = constants.Probe("x", constants._copy, (8, 16))
    assert constants.slope(probe, lambda size: 5.0 + 2 * size) == 2.0
    assert constants.slope(dataclasses.replace(probe, sizes=(0, 16)), float) == 16.0
    assert constants.measured(probe, "cpu", Effort(1, share=0.0)) < 1.0


def test_a_row_says_what_the_rule_takes() -> None:
    def run(z: Any, xs: Any) -> Any:
        step = lambda z, x: (jnp.tanh(z * x), None)  # noqa: E731
        return deeppcr.scan(step, z, xs)[0]

    given = jnp.float32(0.5), jnp.ones(50_000, jnp.float32)
    total = lambda *arguments: jax.grad(lambda z, xs: run(z, xs).sum())(*arguments)  # noqa: E731
    assert chosen(Variant(run), given) == "sequential"
    assert chosen(Variant(total), given) == "sequential / one loop"
    with compiled_for("cuda"):
        assert chosen(Variant(run), given) == "Newton"
    assert chosen(Variant(lambda z, xs: z), given) == ""
    counted = Variant(run, statistics=lambda result: {"entries": result.size})
    found = saying(counted, given).statistics
    assert found
    assert found(jnp.ones(3)) == {"entries": 3, "runs": "sequential"}


def test_the_command_says_what_to_change(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(line: list[str], seconds: float) -> str:
        folder = Path(line[line.index("--out") + 1])
        results.write(results.path_of(line[line.index("--keep") + 1], folder), ROWS)
        assert 1 < seconds < device.QUICK_SECONDS
        return "stopped after 20 s"

    monkeypatch.setattr(device, "attempt", measure)
    monkeypatch.setattr(constants, "measured", times({}))
    every = {"test": "all", "passed": 3, "failed": 0, "skipped": 0, "outcome": "done"}
    monkeypatch.setattr(tests, "rows", lambda *_: iter([every]))
    rows, text = run_command(device, "--quick")
    parts = [row["part"] for row in rows]
    assert list(dict.fromkeys(parts)) == ["constants", "programs", "tests", "rules"]
    assert "change: fused was 2.5x faster in 2 of 3" in text
    assert text.index("verdict") > text.index("regret")  # which is what one reads first
    assert {"part": "programs", "title": "headline: stopped after 20 s"} in rows


def test_headline_says_what_its_default_runs() -> None:
    title = next(title for title in headline.HEADLINES if title.startswith("GRU, 8 units"))
    made = headline.case(title, 16)
    auto = made.variants["auto"]
    assert isinstance(auto, Variant)
    assert auto.statistics
    assert auto.statistics(None)["runs"].startswith("sequential / ")


def _called(variant: Variant, *arguments: Any) -> Any:
    return variant.run(*arguments)


def test_solves_run_by_xla_and_in_one_kernel() -> None:
    made = device.solves(1, "forward")
    with compiled_for("cuda"):
        texts = {
            name: str(jax.make_jaxpr(partial(_called, given))(*made.arguments[0]))
            for name, given in made.variants.items()
            if isinstance(given, Variant)
        }
    assert [name for name in texts if "kernel=fused_solve" in texts[name]] == ["newton, fused"]
    assert device.kernels()
