"""Over 8 devices: every row has the result of one device, the command runs, and several processes train as one does."""

import dataclasses
import subprocess
import time
from functools import cache, partial
from math import inf
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import sharding
from experiments.common import results
from experiments.sharding_rows import links, mlp, processes, scaling, stack, tutorials
from experiments.sharding_rows.measured import Case, mean_square, measure, mesh_of, put, shown

SMALL = stack.Size(16, 4, 8)
CASES = {case.name: case for case in [*tutorials.cases(16), *mlp.cases(16, 16), *stack.cases(SMALL)]}


def alone(case: Case):
    """The loss of a row on one device, computed again."""
    here = case.here if case.here is not None else jax.device_get(case.arguments)
    return (case.loss or mean_square)(jax.jit(case.alone or case.program)(*here))


@cache
def measured(name: str) -> dict:
    """The row of a case: compiled and run once for all that is asked of it."""
    return measure(CASES[name], repeats=1)


@pytest.mark.parametrize("name", CASES)
def test_every_row_has_the_loss_of_one_device(name: str) -> None:
    row = measured(name)
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


def test_a_row_that_computes_something_else_is_refused() -> None:
    x = put(np.ones((8, 2), np.float32), mesh_of((8,), ("i",)), "i")
    with pytest.raises(AssertionError, match=r"wrong: differs from one device by 1.0e-04"):
        measure(Case("wrong", lambda x: x * jnp.float32(1.0001), (x,), alone=lambda x: x), repeats=1)


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
    assert measured(name)["collectives"] == sent


@pytest.mark.parametrize(
    ("spec", "shard"),
    list(zip(tutorials.SPECS, [(4, 8), (8, 4), (4, 16), (16, 8), (2, 16)], strict=True)),
)
def test_a_result_follows_its_operand(spec, shard) -> None:
    assert measured(f"sin of P{spec}")["result"] == f"P{spec}: 8 x {shard}"


def test_a_chain_leaves_an_eighth_of_its_parameters_on_each_device() -> None:
    whole = 4 * 16 * (4 * 4 + 4)
    rows = {name: measured(f"16 layers of 4, {name}") for name in ("chain 8-way, newton", "batch 8-way, lax.scan")}
    assert [row["parameter bytes"] for row in rows.values()] == [whole // 8, whole]


def test_operands_on_different_devices_are_refused_by_jax() -> None:
    assert tutorials.apart()["result"].startswith("ValueError: Received incompatible devices")


def test_the_command_runs_from_start_to_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(sharding, "FOLDER", tmp_path)
    monkeypatch.setattr(sharding, "write", partial(results.write, folder=tmp_path))
    chosen = [case for name, case in CASES.items() if name.startswith("16 layers") and "newton" not in name]  # which compile long
    monkeypatch.setattr(sharding.stack, "cases", lambda size: chosen)
    sharding.main(["--quick", "--keep", "toy"])
    folder = tmp_path / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [f"kept in {folder / 'toy.jsonl'}", f"drawn in {folder / 'toy.png'}"]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["devices"] == 8
    names = ("tutorials", "chain", "measured scaling", "scaling on paper")
    parts = {name: [row for row in rows if row["part"] == name] for name in names}
    assert [len(found) for found in parts.values()] == [19, 3, 4, 12]
    assert all(row["row"] in text for row in parts["tutorials"] + parts["chain"])
    assert all(row["collectives"] for row in parts["chain"])
    for row in parts["measured scaling"]:
        assert row["speedup"] == pytest.approx(row["ms, lax.scan, one device"] / row["ms, chain"])
    for row in parts["scaling on paper"]:
        assert 0 <= row["of it messages"] < row["ms, chain"]


def test_with_fewer_devices_it_runs_again_where_they_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
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
    row = {"difference": 0.0, "collectives": {"all-gather": {"number": 2, "bytes": 2000}}, "parameter bytes": None}
    assert shown(row) == {"difference": "0", "collectives": "2 all-gather 2 kB", "parameter bytes": ""}


# -- on paper


def test_messages_in_a_switch_and_in_a_torus() -> None:
    switch = links.Link(8, inf, 1e-6, 1e9, 1e-5, 1e8, "")
    assert switch.message(1000, 1) == switch.message(1000, 4) == pytest.approx(2e-6)
    assert switch.message(1000, 8) == pytest.approx(2e-5)
    torus = dataclasses.replace(switch, group=256, row=16)
    assert [torus.message(1000, d) for d in (1, 8, 16, 128)] == pytest.approx([2e-6, 16e-6, 2e-6, 16e-6])
    assert [links.distances(count) for count in (1, 2, 8)] == [[], [1], [1, 2, 4]]
    # 4 devices, 800 bytes: halves to the second next, quarters to the next, and back.
    assert switch.all_reduce(800, 4) == pytest.approx(2 * (2 * 1e-6 + 600e-9))
    assert switch.all_reduce(800, 1) == 0


def test_one_device_on_paper_computes_and_sends_nothing() -> None:
    link = links.LINKS["H200"]
    computed, sent = scaling.over_the_chain(SMALL, 1, "H200", link, 3)
    assert sent == 0
    assert computed > 0
    of_eight, sent = scaling.over_the_chain(dataclasses.replace(SMALL, length=8 * 16), 8, "H200", link, 3)
    assert of_eight > computed  # as many layers each, and the maps of all to combine
    assert sent > 0
    assert scaling.over_the_batch(SMALL, 16, "H200", link) is None


def test_iterations_are_those_of_the_solution() -> None:
    assert 1 <= scaling.iterations(SMALL) <= SMALL.length


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
    step, alone = stack.parallel_step(chain, mesh, method), jax.jit(stack.training_step(stack.sequential_loss(SMALL)))
    wanted, weights = losses_of(step, chain.inputs, batch), stack.weights(SMALL)
    assert wanted[2] < wanted[0]
    assert wanted == pytest.approx(losses_of(alone, weights, stack.examples(SMALL)), rel=1e-6)
    assert processes.run(number, SMALL, 3, 90, method) == pytest.approx(wanted, rel=processes.TOLERANCE)


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
    monkeypatch.setattr(processes.subprocess, "Popen", lambda *args, **kw: started.append(popen(*args, **kw)) or started[-1])
    with pytest.raises(processes.Failed, match="2 of 2 processes have not ended after 1 s"):
        processes.run(2, SMALL, 10**7, seconds=1)
    assert [process.poll() for process in started] == [-9, -9]


def test_a_process_that_fails_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(processes.Failed, match=r"process 0 of 1 ended with 1(.|\n)*ValueError"):
        processes.run(1, dataclasses.replace(SMALL, length=-1), 1, seconds=60)
