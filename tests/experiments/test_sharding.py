"""Over 8 devices: every row has the result of one device, the command runs, and several processes train as one does."""

import dataclasses
import subprocess
import time
from functools import cache
from math import log2
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depth
from depth.device import generic_cpu
from experiments import sharding
from experiments.common import baselines, options, results
from experiments.common.costs import analyze
from experiments.sharding_rows import (
    chains,
    links,
    measured,
    mlp,
    predicted,
    processes,
    stack,
    tutorials,
)
from experiments.sharding_rows.measured import Case, mean_square, measure, mesh_of, put, shown
from experiments.sharding_rows.stack import Layout

SMALL = stack.Size(16, 4, 8)
CASES = {case.name: case for case in [*tutorials.cases(16), *mlp.cases(16, 16)]}
HERE = predicted.Machine(generic_cpu(2), links.LINKS["H200"], cores=2)


def alone(case: Case):
    """The loss of a row on one device, computed again."""
    here = case.here if case.here is not None else jax.device_get(case.arguments)
    return (case.loss or mean_square)(jax.jit(case.alone or case.program)(*here))


@cache
def row_of(name: str) -> dict:
    """The row of a case: compiled and run once for all that is asked of it."""
    return measure(CASES[name], repeats=1)


@pytest.mark.parametrize("name", CASES)
def test_every_row_has_the_loss_of_one_device(name: str) -> None:
    row = row_of(name)
    assert row["loss"] == pytest.approx(alone(CASES[name]), rel=1e-6)
    assert row["difference"] < 1e-6
    assert row["ms"] > 0


@pytest.mark.parametrize("name", ["MLP 16, batch 8-way", "MLP 16, batch 4 x tensor 2"])
def test_in_float64_what_is_learned_is_the_same(name: str) -> None:
    case = CASES[name]
    there = jax.tree.map(lambda x: x.astype(jnp.float64), case.arguments)
    many, one = jax.jit(mlp.train)(*there), jax.jit(mlp.train)(*jax.device_get(there))
    for a, b in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


def test_a_row_that_computes_something_else_has_a_note_and_no_speedup() -> None:
    x = put(np.ones((8, 2), np.float32), mesh_of((8,), ("i",)), "i")
    row = measure(
        Case("wrong", lambda x: x * jnp.float32(1.0001), (x,), alone=lambda x: x), repeats=1
    )
    assert row["note"] == "wrong: differs from one device by 1.0e-04"
    assert "over one device" not in row
    assert row["error"] == pytest.approx(1e-4, rel=1e-2)


def test_a_row_that_cannot_be_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program, *arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no memory\nmore")

    monkeypatch.setattr(measured, "build", refuse)
    assert (
        measure(CASES["8 matmuls, one device"], 1)["note"]
        == "failed: RESOURCE_EXHAUSTED: no memory"
    )


def test_a_row_tells_times_of_one_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([3.0, 30.0, 6.0, 60.0, 9.0, 90.0])  # of both programs in turn
    monkeypatch.setattr("experiments.common.timing.clock", lambda call: next(seconds))
    row = measure(CASES["MLP 16, batch 8-way"], repeats=3)
    assert [row[key] for key in ("min ms", "ms", "max ms", "repeats")] == pytest.approx(
        [100, 200, 300, 3]
    )
    assert [row["ms, one device"], row["over one device"]] == pytest.approx([2000, 10])
    assert row["trace s"] > 0
    assert row["compile s"] > 0
    assert row["temp MB"] >= 0


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("8 matmuls, pmap", {}),
        ("x / psum(x), shard_map", {"all-reduce": {"number": 1, "bytes": 64}}),
        ("P('a', None) @ P(None, 'b')", {}),
        ("P(None, 'b') @ P('b', None)", {"all-reduce": {"number": 1, "bytes": 16 * 16 * 4}}),
        ("random.normal as P('a', 'b')", {}),
    ],
)
def test_rows_send_what_they_have_to(name: str, sent) -> None:
    assert row_of(name)["collectives"] == sent


@pytest.mark.parametrize(
    ("spec", "shard"),
    list(zip(tutorials.SPECS, [(4, 8), (8, 4), (4, 16), (16, 8), (2, 16)], strict=True)),
)
def test_a_result_follows_its_operand(spec, shard) -> None:
    assert row_of(f"sin of P{spec}")["result"] == f"P{spec}: 8 x {shard}"


# -- chains


@pytest.fixture(scope="module")
def chain_rows() -> dict:
    """What the experiment measures, for few layers and without loops that take long to compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "UNROLLS", (4,))
        patch.setattr(chains, "LOOP", 0)
        return {
            row["row"].partition(", ")[2]: row
            for row in chains.rows(SMALL, sharding.LAYOUTS, HERE, 2)
        }


def test_every_layout_learns_what_one_device_does(chain_rows: dict) -> None:
    assert list(chain_rows) == [layout.name for layout in sharding.LAYOUTS]
    step = jax.jit(stack.training_step(stack.sequential_loss(SMALL)))
    loss = float(step(stack.weights(SMALL), stack.examples(SMALL))[0])
    for row in chain_rows.values():
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
        assert row["difference"] < 1e-6
        assert row["error"] < 1e-6
        assert row["collectives"]
        assert row["sequential"] in ("lax.scan", "lax.scan, unroll 4")
        assert row["speedup"] == pytest.approx(row["sequential ms"] / row["ms"])
        assert row["over lax.scan"] == pytest.approx(row["lax.scan ms"] / row["ms"])
        assert row["over one device"] > 0
        assert "note" not in row


def test_a_chain_leaves_an_eighth_of_its_parameters_on_each_device(chain_rows: dict) -> None:
    whole = 4 * 16 * (4 * 4 + 4)
    assert [row["parameter bytes"] for row in chain_rows.values()] == [
        whole,
        whole // 8,
        whole // 8,
        whole // 4,
        whole // 4,
    ]


def test_depth_is_that_of_the_programs(chain_rows: dict) -> None:
    arguments = stack.weights(SMALL), stack.examples(SMALL)
    sequential = depth.serial_depth(stack.training_step(stack.sequential_loss(SMALL)), *arguments)
    layout = Layout(chain=8)
    program, given = stack.laid_out(SMALL, layout)
    turns, residual = stack.told(SMALL)
    row = chain_rows[layout.name]
    assert (row["iterations"], row["residual"]) == (turns, residual)
    assert row["sequential depth"] == sequential
    assert row["depth"] == analyze(program, *given, turns=turns).depth
    assert row["depth"] < analyze(program, *given, turns=turns + 1).depth
    assert row["depth speedup"] == sequential / row["depth"]


def test_a_chain_is_predicted_with_its_messages(chain_rows: dict) -> None:
    for layout in sharding.LAYOUTS[1:]:
        row = chain_rows[layout.name]
        computed, sent = predicted.over_the_chain(SMALL, layout, HERE, row.get("iterations", 0))
        assert row["predicted ms"] == pytest.approx(1e3 * (computed + sent))
        assert row["of it messages"] == pytest.approx(1e3 * sent)
        assert row["log2"] == pytest.approx(log2(row["predicted ms"] / row["ms"]))
        assert (
            0
            < row["predicted speedup"]
            <= predicted.sequential(SMALL, HERE.device) / (computed + sent) * (1 + 1e-9)
        )
    assert "predicted ms" not in chain_rows[sharding.LAYOUTS[0].name]


def test_a_layout_that_learns_something_else_has_no_speedup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(size, layout):
        step = stack.training_step(
            lambda *given: stack.sequential_loss(size)(*given) * jnp.float32(1.001)
        )
        return step, jax.device_put((stack.weights(size), stack.examples(size)), jax.devices()[0])

    monkeypatch.setattr(chains, "laid_out", other)
    monkeypatch.setattr(chains, "told", lambda size: (3, 0.0))
    monkeypatch.setattr(chains, "over_the_chain", lambda *_: (1.0, 0.5))
    monkeypatch.setattr(baselines, "UNROLLS", ())
    monkeypatch.setattr(chains, "LOOP", 0)
    (row,) = chains.rows(SMALL, [Layout(chain=8)], HERE, 1)
    assert row["note"] == "wrong: differs from one device by 1.0e-03"
    assert row["predicted ms"] == 1500
    assert not {"speedup", "over lax.scan", "over one device"} & set(row)


# -- what jax says, and the command


def test_operands_on_different_devices_are_refused_by_jax() -> None:
    assert tutorials.apart()["result"].startswith("ValueError: Received incompatible devices")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up model of this device, and few programs."""
    monkeypatch.setattr(options.depth, "at_hand", lambda: generic_cpu(2))
    monkeypatch.setattr(baselines, "UNROLLS", ())
    monkeypatch.setattr(chains, "LOOP", 0)
    monkeypatch.setattr(
        sharding, "LAYOUTS", [layout for layout in sharding.LAYOUTS if layout.method != "newton"]
    )


@pytest.mark.usefixtures("quick")
def test_the_command_runs_from_start_to_end(tmp_path: Path, capsys) -> None:
    sharding.main(["--quick", "--repeats", "2", "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"drawn in {folder / 'toy.png'}",
    ]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["devices"] == 8
    assert environment["complete"] is True
    names = ("chain", "measured scaling", "scaling on paper", "tutorials")
    parts = {name: [row for row in rows if row["part"] == name] for name in names}
    assert [len(found) for found in parts.values()] == [3, 4, 12, 19]
    assert all(row["row"] in text for row in parts["tutorials"] + parts["chain"])
    scaling = [(row["scaling"], row["devices"], row["L"]) for row in parts["measured scaling"]]
    assert scaling == [("strong", 1, 64), ("strong", 8, 64), ("weak", 8, 64), ("weak", 1, 8)]
    assert [row["over one device"] for row in parts["measured scaling"] if row["devices"] == 1] == [
        1,
        1,
    ]
    assert all(
        row["predicted ms"] > row["of it messages"] and "note" not in row
        for row in parts["measured scaling"]
    )
    for row in parts["scaling on paper"]:
        assert 0 <= row["of it messages"] < row["predicted ms"]
        assert row["predicted speedup"] == pytest.approx(row["lax.scan ms"] / row["predicted ms"])
    depths = [
        row["depth speedup"] for row in parts["scaling on paper"] if row["scaling"] == "weak"
    ][:3]
    assert depths[0] < depths[1] < depths[2]  # the longer the chain, the more


@pytest.mark.usefixtures("quick")
def test_what_is_stopped_midway_leaves_what_it_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rows(*_):
        yield {"row": "first", "ms": 1.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(sharding.chains, "rows", rows)
    command = ["--quick", "--parts", "chain", "--keep", "toy", "--out", str(tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        sharding.main(command)
    environment, kept = results.read(tmp_path / results.device() / "toy.jsonl")
    assert environment["complete"] is False
    assert kept == [{"part": "chain", "row": "first", "ms": 1.0}]
    sharding.main([*command, "--seconds", "-1"])  # over before it begins: no rows, and no figure
    assert [path.name for path in (tmp_path / results.device()).iterdir()] == ["toy.jsonl"]


def test_with_fewer_devices_it_runs_again_where_they_are_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def run(command, env, check):
        seen.append((command[1:], env["JAX_PLATFORMS"]))
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(sharding, "has_devices", lambda: False)
    monkeypatch.setattr(sharding.subprocess, "run", run)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(SystemExit) as ended:
        sharding.main(["--quick"])
    assert ended.value.code == 3
    assert seen == [(["-m", "experiments", "sharding", "--quick"], "cpu")]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit, match="jax has 8 devices"):  # no circle
        sharding.main(["--quick"])


def test_a_row_is_printed_in_words() -> None:
    row = {
        "difference": 0.0,
        "collectives": {"all-gather": {"number": 2, "bytes": 2000}},
        "parameter bytes": 64,
        "max ms": 1.0,
    }
    assert shown(row) == {
        "difference": "0",
        "collectives": "2 all-gather 2 kB",
        "parameter bytes": "64 B",
    }


def test_chains_have_a_table_of_speed() -> None:
    rows = [
        {"part": "chain", "row": "a", "ms": 1.0, "loss": 2.0, "depth": 3},
        {"part": "tutorials", "row": "b", "loss": 4.0},
    ]
    chain, tutorials = sharding.tables(rows)
    assert [line.split() for line in chain.splitlines()[2:9]] == [
        *(["row", "loss"], ["---", "----"], ["a", "2"], []),
        *(["row", "ms", "depth"], ["---", "--", "-----"], ["a", "1", "3"]),
    ]
    assert tutorials.splitlines()[2].split() == ["row", "loss"]


# -- several processes


def losses_of(step, weights, batch) -> list[float]:
    losses = []
    for _ in range(3):
        loss, weights = jax.block_until_ready(step(weights, batch))
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize(("number", "method"), [(2, "newton"), (4, "sequential")])
def test_several_processes_train_as_one_does(number: int, method: str) -> None:
    mesh = mesh_of((8,), ("chain",))
    chain, batch = stack.placed(SMALL, mesh)
    step, alone = (
        stack.parallel_step(chain, mesh, method),
        jax.jit(stack.training_step(stack.sequential_loss(SMALL))),
    )
    wanted, weights = losses_of(step, chain.inputs, batch), stack.weights(SMALL)
    assert wanted[2] < wanted[0]
    assert wanted == pytest.approx(losses_of(alone, weights, stack.examples(SMALL)), rel=1e-6)
    assert processes.run(number, SMALL, 3, 90, method) == pytest.approx(
        wanted, rel=processes.TOLERANCE
    )


def test_the_command_compares_the_losses(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    losses = {1: [2.0, 1.0], 2: [2.0, 1.0 + 1e-7]}
    monkeypatch.setattr(sharding.processes, "run", lambda number, *_: losses[number])
    sharding.main(["--processes", "2"])
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["0", "2.00000000", "2.00000000"],
        ["1", "1.00000000", "1.00000010"],
    ]
    losses[2] = [2.0, 1.00001]
    with pytest.raises(SystemExit, match=r"2 processes: the loss differs by 1\.0e-05"):
        sharding.main(["--processes", "2"])
    losses[2] = [2.0]
    with pytest.raises(SystemExit, match="2 steps by one process, 1 by 2"):
        sharding.main(["--processes", "2"])


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_process_dies_the_other_ends_with_an_error(victim: int) -> None:
    with processes.team(2, SMALL, 10**7, "sequential") as team:
        end = time.monotonic() + 60
        while not team.losses:
            assert time.monotonic() < end, team.printed(0)
            assert team.codes() == [None, None], team.printed(0)
            time.sleep(0.05)
        team.processes[victim].kill()
        codes = team.wait(60)
        other = codes[1 - victim]
    assert codes[victim] == -9
    # By itself, within GRACE of the death: it still ran then, and `team` has not had to kill it.
    assert other not in (None, 0, -9)


def test_a_run_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen] = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess,
        "Popen",
        lambda *args, **kw: started.append(popen(*args, **kw)) or started[-1],
    )
    with pytest.raises(processes.Failed, match="2 of 2 processes have not ended after 1 s"):
        processes.run(2, SMALL, 10**7, seconds=1)
    assert [process.poll() for process in started] == [-9, -9]


def test_a_process_that_fails_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(processes.Failed, match=r"process 0 of 1 ended with 1(.|\n)*ValueError"):
        processes.run(1, dataclasses.replace(SMALL, length=-1), 1, seconds=60)
