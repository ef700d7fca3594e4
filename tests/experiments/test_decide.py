"""What "auto" chooses against what is fastest.

The command at a size that takes seconds, and the chains it is tried on.
"""

import dataclasses
import math
from argparse import Namespace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
from experiments.bench import engine, programs
from experiments.bench.costs import analyze
from experiments.bench.engine import Outcome, Variant
from experiments.bench.table import Row
from experiments.bench.timing import Build, Effort, Timing
from experiments.decide import breakeven, giving_up, regret
from experiments.decide import figure as decide_figure
from experiments.decide import programs as decide_programs
from experiments.decide import run as decide
from experiments.decide.programs import Chain, Choice, Measured
from experiments.models import zoo
from tests.experiments.conftest import DEVICE

ROOT = Path(__file__).parents[2]
SMALL = zoo.Specimen("tanh", 4, 16, 1)
ONCE = Effort(1, 0.0)


def test_the_command_runs_from_start_to_end(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent = zoo.Specimen("tanh", 8, 512, 1)
    monkeypatch.setattr(decide.zoo, "specimens", lambda number, seed: iter([recurrent]))
    monkeypatch.setattr(breakeven, "LENGTHS", (16,))
    monkeypatch.setattr(breakeven, "WIDTHS", (4,))
    monkeypatch.setattr(breakeven, "FAR_DEVICES", ("H200",))
    monkeypatch.setattr(breakeven, "gru", partial(zoo.Specimen, "tanh", batch=1))
    monkeypatch.setattr(programs, "UNROLLS", (4,))
    # Programs are compiled for long: none that is far from the best, and no Python loop.
    monkeypatch.setattr(regret, "HOPELESS", 1.3)  # not one that is chosen
    monkeypatch.setattr(decide_programs, "LONGEST_LOOP", 0)
    rows, _ = run_command(decide, "--parts", "regret", "map", "--repeats", "1")
    parts = [[row for row in rows if row["part"] == part] for part in ("regret", "map")]
    for found in parts:
        assert [row["direction"] for row in found] == ["forward", "gradient"]
        for row in found:
            assert "note" not in row
            assert row["depth speedup"] == row["sequential depth"] / row["depth"]
            assert row["log2"] == pytest.approx(math.log2(row["predicted us"] / row["us"]))
            assert row["error"] <= engine.TOLERANCE
            assert row["us"] <= row["median us"] <= row["max us"]
            assert min(row["trace s"], row["compile s"]) > 0
            assert row["repeats"] == 1
    check_regret(parts[0])
    assert parts[0][1]["predicted speedup"] > 1  # backprop
    for row in parts[1]:
        assert all(row[name] > 0 for name in ("realised", "predicted, here", "predicted, H200"))
        assert row["over best loop"] <= row["over lax.scan"]


def check_regret(rows: list[Row]) -> None:
    for row in rows:
        seconds, loops, chosen = row["seconds"], row["loops"], row["seconds"][row["chosen"]]
        assert set(loops) == {"lax.scan", "lax.scan, unroll 4"}
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


def test_some_chains_of_all_kinds_come_before_the_other_parts() -> None:
    asked = {"quick": False, "repeats": 1, "seed": 0}
    jobs = decide.jobs(Namespace(parts=decide.PARTS, chains=24, **asked))
    found = [
        getattr(job.args[0], "func", job.args[0]) if hasattr(job, "args") else "giving up"
        for job in jobs
    ]
    assert found[: decide.FIRST] == [regret.regret] * decide.FIRST
    assert found[decide.FIRST : decide.FIRST + 2] == ["giving up"] * 2
    assert found[-6:] == [regret.regret] * 6
    assert found.count(breakeven.cell) == len(breakeven.WIDTHS) * len(breakeven.LENGTHS)


@cache
def candidates() -> tuple[Chain, dict[str, Any]]:
    (forward, _) = Chain.both(SMALL)
    return forward, {candidate.name: candidate for candidate in forward.running(DEVICE)}


def test_the_depth_is_that_of_the_iterations_which_are_expected() -> None:
    forward, found = candidates()
    newton, sequential = found["Newton, dense, sequential"], found["sequential"]
    depths, plain = forward.depths(newton), forward.depths(sequential)
    assert plain["depth"] >= plain["sequential depth"] == depths["sequential depth"]
    run = forward.program(Choice.of(newton).run)
    once, twice = (
        analyze(run, *forward.task.arguments, trips=trips, rest=0).depth for trips in (1, 2)
    )
    assert depths["depth"] == once + (newton.iterations - 1) * (twice - once)
    assert twice - once > 16  # a recurrence of so many steps


def test_a_fixed_choice_has_no_budget() -> None:
    newton = candidates()[1]["Newton, dense, sequential"]
    assert newton.method.max_iterations is not None
    assert Choice.of(newton).method.max_iterations is None


def test_a_choice_that_is_wrong_has_no_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Choice.run

    def run(self: Choice, f: Any, init: Any, xs: Any) -> Any:
        last, ys = right(self, f, init, xs)
        return last, 1.5 * ys if self.label == "sequential" else ys

    monkeypatch.setattr(Choice, "run", run)
    monkeypatch.setattr(regret, "HOPELESS", 1.3)  # not one that is chosen
    monkeypatch.setattr(programs, "UNROLLS", ())
    row = regret.regret(candidates()[0], DEVICE, ONCE)
    assert row["chosen"] == "sequential"
    assert row["note"].startswith("sequential: wrong: differs from lax.scan by ")
    assert "sequential" not in row["seconds"]
    assert not {"regret %", "speedup", "fastest", "log2"} & row.keys()
    assert {"depth speedup", "predicted speedup"} <= row.keys()
    assert regret.by_kind([row]) == []
    assert not list(regret.confusion([row]))


def test_a_choice_is_judged_by_the_least_times() -> None:
    times = {
        "lax.scan": 4.0,
        "lax.scan, unroll 4": 1.0,
        regret.AGAIN: 6.0,
        "sequential": 3.0,
        "Newton": 2.0,
    }
    build = Build(print, 0.5, 1.5, 7_000_000)
    row = {"trace s": 0.5, "compile s": 1.5, "temp MB": 7, "error": 1e-7}
    outcomes = {
        name: Outcome(
            Variant(print), [], row, build=build, timing=Timing((3 * least, least, 2 * least))
        )
        for name, least in times.items()
    }
    forward, found = candidates()
    chosen = dataclasses.replace(found["sequential"], seconds=12.0)
    measured = Measured(outcomes, ["lax.scan", "lax.scan, unroll 4"])
    within = {"lax.scan", "sequential", "Newton"}
    row = regret._judged(forward, measured, chosen, within, planning=0.1)
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


def test_a_choice_that_is_too_large_has_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "UNROLLS", ())
    monkeypatch.setattr(Chain, "choices", lambda self, every: iter(()))
    row = regret.regret(candidates()[0], DEVICE, ONCE)
    assert row["note"] == "sequential was chosen, and is too large to be run here"
    assert "regret %" not in row


def test_the_tables_say_what_was_measured() -> None:
    def row(chosen: str, fastest: str, regret: float) -> Row:
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
            "temp MB": 3.0,
            "lax.scan MB": 6.0,
        }
        return {
            **names,
            **speeds,
            "regret %": regret,
            "regret, loops %": regret + 2,
            "noise %": 1.0,
            "planning %": 3.0,
        }

    rows = [row("sequential", "sequential", 0.0)]
    rows += [row("sequential", "Newton, diagonal, pcr", 50.0)]
    of_kind, total = regret.by_kind(rows)
    assert of_kind == total | {"kind": "gru"}
    assert total["memory"] == pytest.approx(0.5)
    regrets = {"chains": 2, "median %": 25, "90th %": 50, "worst %": 50}
    others = {"loops too, median %": 27, "noise, median %": 1, "noise, worst %": 1}
    speedups = {"depth speedup": 4, "predicted": 3, "speedup over lax.scan": 2, "least": 2}
    speedups |= {"over best loop": 1.5, "|log2|": 1}
    expected = {"kind": "all"} | regrets | others | speedups
    assert {key: total[key] for key in expected} == pytest.approx(expected)
    (text,) = regret.confusion(rows)
    assert text.splitlines()[-1].split() == ["sequential", "1", "1"]


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
    rows = {row["method"]: row for row in giving_up.giving_up(hard, DEVICE, Effort(1))}
    shapes = jax.eval_shape(lambda: hard.init)
    chain = deeppcr.Chain(hard.step, hard.inputs)
    plan = deeppcr.plan(chain, shapes, device="H200", batch_ndim=1)
    budget = plan.main.newton.method.max_iterations
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


def test_the_map_is_drawn_of_what_there_is() -> None:
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
    found = decide_figure.pictures([*rows, other, wrong])
    assert list(found) == ["gradient", "forward"]  # no other device has predicted anything
    maps = [
        np.ma.filled(drawing.axes[0].images[0].get_array(), np.nan) for drawing in found.values()
    ]
    assert [np.isfinite(values).sum() for values in maps] == [1, 3]
    assert [values.shape for values in maps] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("kind", zoo.KINDS)
def test_every_kind_of_chain_runs_and_has_the_size_it_says(kind: str) -> None:
    task = zoo.task(zoo.Specimen(kind, 4, 6, 3))
    states = jax.eval_shape(task.forward(jax.lax.scan), *task.arguments)
    assert states.size == 6 * 3 * 4
    assert states.dtype == jnp.float32
    slopes = jax.jit(task.gradient(jax.lax.scan))(*task.arguments)
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(slopes)])
    assert np.any(found != 0)
    assert np.all(np.isfinite(found))


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
    apart = jax.jit(lambda z, xs: last(z, xs)[0] - last(z + 1e-5, xs)[0])(hard.init, hard.inputs)
    assert np.abs(apart).max() > 1e-2, hard.name
