"""What "auto" chooses against what is fastest: the command at a size that takes seconds, and the chains it is tried on."""

import dataclasses
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import deeppcr
from depth.device import generic_cpu
from experiments import decide, report
from experiments.common import baselines, decide_figure, options, results, versus, zoo
from experiments.common.costs import cost
from experiments.common.timing import Build, Timing
from experiments.decide_parts import breakeven, giving_up, regret
from experiments.decide_parts.measured import Effort, Measured, measure
from experiments.decide_parts.programs import Chain, Choice

ROOT = Path(__file__).parents[2]
SMALL = zoo.Specimen("gru", 4, 16, 1)
DEVICE = generic_cpu(2)
ONCE = Effort(1, 0.0)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small chain, a made-up calibration, and few loops."""
    monkeypatch.setattr(options.depth, "calibrate", lambda refresh: DEVICE)
    monkeypatch.setattr(decide.zoo, "specimens", lambda number, seed: iter([SMALL]))
    monkeypatch.setattr(breakeven, "LENGTHS", (16,))
    monkeypatch.setattr(breakeven, "WIDTHS", (4,))
    monkeypatch.setattr(baselines, "UNROLLS", (4,))
    monkeypatch.setattr(regret, "HOPELESS", 3.0)  # programs are compiled for long
    monkeypatch.setattr(decide, "Effort", lambda repeats, seconds=0.0: Effort(repeats, 0.0))


@pytest.mark.usefixtures("tiny")
def test_the_command_runs_from_start_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decide.main(
        ["--parts", "regret", "map", "--repeats", "1", "--keep", "toy", "--out", str(tmp_path)]
    )
    folder = tmp_path / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"drawn in {folder / 'toy.png'}",
    ]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    parts = [[row for row in rows if row["part"] == part] for part in ("regret", "map")]
    for found in parts:
        assert [row["direction"] for row in found] == ["forward", "gradient"]
        for row in found:
            assert "note" not in row
            assert row["depth speedup"] == row["sequential depth"] / row["depth"]
            assert row["log2"] == pytest.approx(math.log2(row["predicted us"] / row["us"]))
            assert row["error"] <= versus.TOLERANCE
            assert row["us"] <= row["median us"] <= row["max us"]
            assert min(row["trace s"], row["compile s"]) > 0
            assert row["repeats"] == 1
    check_regret(parts[0])
    assert parts[0][1]["predicted speedup"] > 1  # blocks
    for row in parts[1]:
        assert all(
            row[name] > 0
            for name in ("realised", "predicted, here", "predicted, H200", "predicted, TPU v5e")
        )
        assert row["over best loop"] <= row["over lax.scan"]
    assert "toy" in report.page(report.read([folder]), tmp_path)


def check_regret(rows: list[decide.Row]) -> None:
    for row in rows:
        seconds, loops, chosen = row["seconds"], row["loops"], row["seconds"][row["chosen"]]
        assert set(loops) == {"lax.scan", "lax.scan, unroll 4", "unrolled"}
        assert set(loops) & set(seconds) == {"lax.scan"}  # the planner does not have the others
        assert row["fastest"] == min(seconds, key=seconds.get)
        assert row["regret %"] == pytest.approx(100 * (chosen / seconds[row["fastest"]] - 1))
        assert row["regret, loops %"] == pytest.approx(
            100 * (chosen / min(*seconds.values(), *loops.values()) - 1)
        )
        assert row["speedup"] == pytest.approx(seconds["lax.scan"] / chosen)
        assert row["best loop"] == min(loops, key=loops.get)
        assert row["over best loop"] == pytest.approx(min(loops.values()) / chosen)
        sequential = "sequential / autodiff" if row["direction"] == "gradient" else "sequential"
        assert row["predicted speedup"] == pytest.approx(
            row["predicted"][sequential] / row["predicted"][row["chosen"]]
        )
        assert row["predicted us"] == pytest.approx(1e6 * row["predicted"][row["chosen"]])
        assert {*seconds, *loops} <= set(row["errors"])
        assert not set(seconds) & set(row["not run"])


@pytest.mark.usefixtures("tiny")
def test_what_is_stopped_leaves_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(chain: Chain, *_: Any) -> decide.Row:
        if chain.is_gradient:
            raise KeyboardInterrupt
        return {"part": "regret", "kind": "gru"}

    monkeypatch.setattr(decide, "regret", stop)
    with pytest.raises(KeyboardInterrupt):
        decide.main(["--parts", "regret", "--keep", "toy", "--out", str(tmp_path)])
    environment, rows = results.read(tmp_path / results.device() / "toy.jsonl")
    assert (environment["complete"], len(rows)) == (False, 1)


@pytest.mark.usefixtures("tiny")
def test_nothing_is_begun_when_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    decide.main(["--seconds", "-1"])
    assert "stopped after" in capsys.readouterr().out


def test_some_chains_of_all_kinds_come_before_the_other_parts() -> None:
    chosen = options.parser("toy", None).parse_args(["--quick"])
    chosen.parts, chosen.chains, chosen.seed = decide.PARTS, 24, 0
    chosen.quick = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options.depth, "calibrate", lambda refresh: DEVICE)
        found = [job.args[0] for job in decide.jobs(chosen)]
    assert found[: decide.FIRST] == [regret.regret] * decide.FIRST
    assert found[decide.FIRST : decide.FIRST + 2] == list(giving_up.CHAINS)
    assert found[-6:] == [regret.regret] * 6
    assert found.count(breakeven.cell) == len(breakeven.WIDTHS) * len(breakeven.LENGTHS)


def test_the_depth_is_that_of_the_iterations_which_are_expected() -> None:
    (forward, _) = Chain.both(SMALL)
    candidates = {
        candidate.name: candidate for candidate in regret.running(forward.field(DEVICE), False)
    }
    newton, sequential = candidates["Newton, dense, sequential"], candidates["sequential"]
    found, plain = forward.depths(newton), forward.depths(sequential)
    assert plain["depth"] >= plain["sequential depth"] == found["sequential depth"]
    run = forward.program(Choice.of(newton).run)
    once, twice = (cost(run, forward.task.arguments, lambda turns=turns: turns) for turns in (1, 2))
    assert once is not None
    assert twice is not None
    each = twice.depth - once.depth
    assert found["depth"] == once.depth + (newton.iterations - 1) * each
    assert each > 16  # a recurrence of so many steps


def test_a_loop_that_says_nothing_has_no_depth() -> None:
    def endless(x: Array) -> Array:
        return jax.lax.while_loop(lambda x: x[0] < 1, lambda x: x + x, x)

    assert cost(endless, (jnp.ones(2),), lambda: 3) is None
    known = cost(jnp.sin, (jnp.ones(2),), pytest.fail)  # nobody asks for iterations
    assert known is not None
    assert known.depth == 1


def test_a_fixed_choice_has_no_budget() -> None:
    (forward, _) = Chain.both(SMALL)
    newton = next(
        each
        for each in regret.running(forward.field(DEVICE), False)
        if isinstance(each.method, deeppcr.Newton)
    )
    assert newton.method.max_iterations is not None
    assert Choice.of(newton).method.max_iterations is None


def test_what_is_wrong_or_fails_is_no_candidate_and_has_a_note() -> None:
    def crash(x: np.ndarray) -> np.ndarray:
        raise MemoryError("no memory left")

    programs: dict[str, Any] = {
        "lax.scan": lambda x: 2 * x,
        "near": lambda x: (2 + 1e-6) * x,
        "wrong": lambda x: 2.01 * x,
        "nan": lambda x: jnp.nan * x,
        "fails": lambda x: jax.pure_callback(crash, jax.ShapeDtypeStruct((3,), x.dtype), x),
    }
    found = measure(programs, (jnp.ones(3),), ONCE)
    assert set(found.timings) == set(found.seconds) == {"lax.scan", "near"}
    assert found.errors["near"] == pytest.approx(5e-7, rel=1e-3)
    assert found.errors["wrong"] == pytest.approx(5e-3)
    note = found.note["note"]
    assert "wrong is wrong: it differs from lax.scan by 5.0e-03" in note
    assert "nan is wrong" in note
    assert "fails failed: " in note
    assert "near" not in note


def test_a_choice_that_is_wrong_has_no_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Choice.run

    def run(self: Choice, f: Any, init: Any, xs: Any) -> Any:
        last, ys = right(self, f, init, xs)
        return last, 1.5 * ys if self.label == "sequential" else ys

    monkeypatch.setattr(Choice, "run", run)
    monkeypatch.setattr(regret, "HOPELESS", 1.0)
    monkeypatch.setattr(baselines, "UNROLLS", ())
    (forward, _) = Chain.both(SMALL)
    row = regret.regret(forward, DEVICE, ONCE)
    assert row["chosen"] == "sequential"
    assert row["note"].startswith("sequential is wrong: it differs from lax.scan by ")
    assert "sequential" not in row["seconds"]
    assert not {"regret %", "speedup", "fastest", "log2"} & row.keys()
    assert {"depth speedup", "predicted speedup"} <= row.keys()
    assert regret.report([row]) == ""


def test_a_choice_is_judged_by_the_least_times() -> None:
    times = {
        "lax.scan": 4.0,
        "lax.scan, unroll 4": 1.0,
        regret.AGAIN: 6.0,
        "sequential": 3.0,
        "Newton": 2.0,
    }
    timings = {name: Timing((3 * least, least, 2 * least)) for name, least in times.items()}
    builds = {name: Build(print, 0.5, 1.5, 7_000_000) for name in times}
    measured = Measured(timings, builds, dict.fromkeys(times, 1e-7), {})
    (forward, _) = Chain.both(SMALL)
    chosen = dataclasses.replace(forward.field(DEVICE).sequential(), seconds=12.0)
    loops = ["lax.scan", "lax.scan, unroll 4"]
    row = regret._judged(
        measured, chosen, {"lax.scan", "sequential", "Newton"}, loops, planning=0.1
    )
    assert (row["fastest"], row["best loop"]) == ("Newton", "lax.scan, unroll 4")
    assert row["regret %"] == pytest.approx(50)
    assert row["regret, loops %"] == pytest.approx(200)
    assert row["noise %"] == pytest.approx(50)
    assert row["planning %"] == pytest.approx(5)
    assert row["speedup"] == pytest.approx(4 / 3)
    assert row["over best loop"] == pytest.approx(1 / 3)
    assert (row["us"], row["median us"], row["max us"], row["repeats"]) == (3e6, 6e6, 9e6, 3)
    assert (row["trace s"], row["compile s"], row["temp MB"]) == (0.5, 1.5, 7)
    assert (row["log2"], row["predicted us"], row["error"]) == (2, 12e6, 1e-7)


def test_a_choice_that_is_too_large_has_a_note() -> None:
    measured = Measured({}, {}, {}, {})
    (forward, _) = Chain.both(SMALL)
    assert (
        regret._judged(
            measured, forward.field(DEVICE).sequential(), {"lax.scan"}, ["lax.scan"], 0.1
        )
        == {}
    )
    assert measured.note == {"note": "sequential was chosen, and is too large to be run here"}


def test_the_tables_say_what_was_measured() -> None:
    def row(chosen: str, fastest: str, regret: float) -> decide.Row:
        names = {
            "kind": "gru",
            "w": 2,
            "L": 16,
            "batch": 1,
            "direction": "forward",
            "chosen": chosen,
            "fastest": fastest,
        }
        speeds = {
            "speedup": 2.0,
            "predicted speedup": 3.0,
            "over best loop": 1.5,
            "depth speedup": 4.0,
            "log2": -1.0,
        }
        return {
            **names,
            **speeds,
            "regret %": regret,
            "regret, loops %": regret + 2,
            "noise %": 1.0,
            "planning %": 3.0,
        }

    text = regret.report(
        [row("sequential", "sequential", 0.0), row("sequential", "Newton, diagonal, pcr", 50.0)]
    )
    total = next(line.split() for line in text.splitlines() if line.startswith("all"))
    assert total[:5] == ["all", "2", "25", "50", "50"]  # chains, median, 90th percentile, worst
    assert total[-10:-2] == [
        "1",
        "1",
        "4",
        "3",
        "2",
        "2",
        "1.5",
        "1",
    ]  # noise, speedups, prediction's error
    assert total[-11] == "27"  # with loops
    assert "sequential                          1           1" in text  # the confusion matrix


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("lax.scan", "lax.scan"),
        ("sequential / autodiff", "autodiff"),
        ("sequential, unrolled", "sequential, unrolled"),
        ("Newton, dense, pcr", "Newton"),
        ("Newton, dense, pcr / blocks, pcr", "Newton, blocks"),
        ("Newton, dense, pcr / step by step", "Newton, step by step"),
        ("sequential / blocks, sequential", "blocks"),
    ],
)
def test_choices_are_grouped(name: str, family: str) -> None:
    assert regret.family(name) == family


def test_what_giving_up_costs() -> None:
    hard = giving_up.logistic(128)
    rows = {row["method"]: row for row in giving_up.giving_up(hard, DEVICE, 1)}
    budget = deeppcr.plan(
        deeppcr.Chain(hard.step, hard.inputs), hard.init, device="H200", batch_ndim=1
    ).method.max_iterations
    planned, own = rows["planned for H200"], rows["no budget but its own"]
    assert list(rows) == ["sequential", "auto", "planned for H200", "no budget but its own"]
    assert (planned["iterations"], planned["ended"]) == (budget, "finished sequentially")
    assert 1.5 < planned["predicted for H200"] <= 2
    assert own["iterations"] > planned["iterations"]
    assert own["depth"] > planned["depth"] > rows["sequential"]["depth"]
    for row in rows.values():
        assert row["part"] == "giving-up"
        assert row["error, lax.scan"] == 0
        assert row["times sequential, here"] == pytest.approx(row["ms"] / rows["sequential"]["ms"])
        assert row["log2"] == pytest.approx(math.log2(row["predicted ms"] / row["ms"]))
        assert row["over best loop"] <= row["over lax.scan"]
    assert rows["sequential"]["depth speedup"] == 1 > planned["depth speedup"]


def test_the_map_is_drawn_of_what_there_is(tmp_path: Path) -> None:
    cell = {"part": "map", "direction": "forward", "predicted, here": 2.0, "predicted speedup": 2.0}
    rows = [
        cell | {"w": 1, "L": 16, "realised": 0.5},
        cell | {"w": 4, "L": 16},
        cell | {"w": 4, "L": 64, "realised": 4.0},
    ]
    other = {
        "part": "map",
        "direction": "gradient",
        "w": 1,
        "L": 16,
        "predicted, here": 2.0,
        "realised": 1.0,
    }
    wrong = {"part": "regret", "direction": "forward", "kind": "gru", "note": "wrong"}
    decide_figure.draw([*rows, other, wrong], tmp_path / "map.png")
    _, old = results.read(ROOT / "experiments/results/cpu/decide.jsonl")
    decide_figure.draw(old, tmp_path / "old.png")
    small, large = ((tmp_path / name).stat().st_size for name in ("map.png", "old.png"))
    assert 1000 < small < large  # of as many panels as there are devices


def test_jax_and_numpy_are_all_it_needs() -> None:
    others = ("matplotlib", "tqdm", "optax", "flax", "equinox", "sklearn")
    program = f"import sys; sys.modules |= dict.fromkeys({others}, None); import experiments.decide, experiments.compile_time"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_every_kind_of_chain_runs_and_has_the_size_it_says(kind: str) -> None:
    specimen = zoo.Specimen(kind, 4, 6, 3)
    task = zoo.task(specimen)
    states = task.forward(jax.lax.scan)(*task.arguments)
    assert states.size == 6 * 3 * 4
    assert states.dtype == jnp.float32
    slopes = jax.tree.leaves(task.gradient(jax.lax.scan)(*task.arguments))
    assert any(bool(jnp.any(leaf != 0)) for leaf in slopes)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in slopes)


def test_as_many_chains_of_each_kind_are_drawn_and_always_the_same() -> None:
    drawn = list(zoo.specimens(60))
    assert len(drawn) == len(set(drawn)) == 60
    assert {
        kind: sum(specimen.kind == kind for specimen in drawn) for kind in zoo.KINDS
    } == dict.fromkeys(zoo.KINDS, 10)
    assert [specimen.kind for specimen in drawn[:12]] == [*zoo.KINDS, *zoo.KINDS]
    assert drawn == list(zoo.specimens(60))
    assert drawn != list(zoo.specimens(60, seed=1))
    assert max(specimen.work for specimen in drawn) <= zoo.MOST_WORK
    assert {specimen.batch for specimen in drawn} == {1, 8, 64}


@pytest.mark.parametrize("make", giving_up.CHAINS)
def test_the_hard_chains_amplify_differences(make: Any) -> None:
    hard = make(200)
    last = partial(jax.lax.scan, lambda z, x: (hard.step(z, x), None))
    (moved, _), (apart, _) = last(hard.init, hard.inputs), last(hard.init + 1e-5, hard.inputs)
    assert np.abs(np.asarray(moved - apart)).max() > 1e-2, hard.name
