"""Over 8 devices.

Every row has the result of one device, the command runs, and several processes train as one does.
"""

import dataclasses
import subprocess
import time
from functools import cache
from math import inf, log2
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deeppcr
import depth
from experiments.bench import engine, plots, programs, timing
from experiments.bench.costs import analyze
from experiments.bench.timing import Effort
from experiments.sharding import chains, links, predicted, processes, stack, tutorials
from experiments.sharding import run as sharding
from experiments.sharding.stack import Layout, mesh_of, put
from experiments.sharding.tutorials import Comparison
from tests.experiments.conftest import DEVICE

SMALL = stack.Size(16, 4, 8)
LAYOUTS = sharding.LAYOUTS[:2] + sharding.LAYOUTS[-1:]
CASES = {case.name: case for case in [*tutorials.comparisons(16), *tutorials.perceptrons(16, 16)]}
HERE = predicted.Machine(DEVICE, links.LINKS["H200"], cores=2)
FREE = links.Link(256, inf, 0.0, 1e30, 0.0, 1e30, "")
PAPER = predicted.Machine(depth.devices["H200"], links.LINKS["H200"])
ONCE = Effort(1)


def alone(case: Comparison):
    """The loss of a row on one device, computed again."""
    here = case.here if case.here is not None else jax.device_get(case.arguments)
    return case._statistics(jax.jit(case.alone or case.program)(*here))["loss"]


@cache
def row_of(name: str) -> dict:
    """The row of a case: compiled and run once for all that is asked of it."""
    return CASES[name].row(ONCE)


@pytest.mark.parametrize("name", CASES)
def test_every_row_has_the_loss_of_one_device(name: str) -> None:
    row = row_of(name)
    assert row["loss"] == pytest.approx(alone(CASES[name]), rel=1e-6)
    assert row["difference"] < 1e-6
    assert row["ms"] > 0


def test_in_float64_what_is_learned_is_the_same() -> None:
    case = CASES["MLP 16, batch 4 x tensor 2"]
    there = jax.tree.map(lambda x: x.astype(jnp.float64), case.arguments)
    many, one = jax.jit(tutorials.train)(*there), jax.jit(tutorials.train)(*jax.device_get(there))
    for a, b in zip(jax.tree.leaves(many), jax.tree.leaves(one), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


def test_a_row_that_computes_something_else_has_a_note_and_no_speedup() -> None:
    x = put(np.ones((8, 2), np.float32), mesh_of((8,), ("i",)), "i")
    times = lambda factor: lambda x: x * jnp.float32(factor)  # noqa: E731
    row = Comparison("wrong", times(1.0001), (x,), alone=times(1.0)).row(ONCE)
    assert row["note"] == "wrong: differs from one device by 1.0e-04"
    assert "over one device" not in row
    assert row["error"] == pytest.approx(1e-4, rel=1e-2)


def test_a_row_that_cannot_be_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program, *arguments, **options):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no memory\nmore")

    monkeypatch.setattr(engine, "build", refuse)
    note = CASES["8 matmuls, one device"].row(ONCE)["note"]
    assert note == "failed: RESOURCE_EXHAUSTED: no memory"


def test_a_row_tells_times_of_one_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([30.0, 3.0, 60.0, 6.0, 90.0, 9.0])  # of both programs, alternating
    monkeypatch.setattr(timing, "clock", lambda call: next(seconds))
    row = CASES["MLP 16, batch 8-way"].row(Effort(3, patience=inf))
    found = [row[key] for key in ("min ms", "ms", "max ms", "repeats")]
    assert found == pytest.approx([100, 200, 300, 3])
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
        patch.setattr(programs, "UNROLLS", ())
        patch.setattr(chains, "LOOP", 0)
        return {
            row["row"].partition(", ")[2]: row
            for row in chains.rows(SMALL, LAYOUTS, HERE, Effort(2))
        }


def test_every_layout_learns_what_one_device_does(chain_rows: dict) -> None:
    assert list(chain_rows) == [layout.name for layout in LAYOUTS]
    loss = alone_for_three_steps()[0]
    for row in chain_rows.values():
        assert row["loss"] == pytest.approx(loss, rel=1e-6)
        assert row["difference"] < 1e-6
        assert row["error"] < 1e-6
        assert row["collectives"]
        assert row["sequential"] == "lax.scan"
        assert row["speedup"] == pytest.approx(row["sequential ms"] / row["ms"])
        assert row["over lax.scan"] == pytest.approx(row["lax.scan ms"] / row["ms"])
        assert row["over one device"] > 0
        assert "note" not in row


def test_a_chain_leaves_an_eighth_of_its_parameters_on_each_device(chain_rows: dict) -> None:
    whole = 4 * 16 * (4 * 4 + 4)
    assert [row["parameter bytes"] for row in chain_rows.values()] == [
        whole,
        whole // 8,
        whole // 4,
    ]


def test_depth_is_that_of_the_programs(chain_rows: dict) -> None:
    arguments = stack.weights(SMALL), stack.batch_of(SMALL)
    sequential = depth.serial_depth(stack.training_step(stack.sequential_loss(SMALL)), *arguments)
    layout = Layout(chain=8)
    program, given = stack.laid_out(SMALL, layout)
    iterations, residual = stack.solve_stack(SMALL)
    row = chain_rows[layout.name]
    assert (row["iterations"], row["residual"]) == (iterations, residual)
    assert row["sequential depth"] == sequential
    assert row["depth"] == analyze(program, *given, trips=iterations).depth
    assert row["depth"] < analyze(program, *given, trips=iterations + 1).depth
    assert row["depth speedup"] == sequential / row["depth"]


def test_a_chain_is_predicted_with_its_messages(chain_rows: dict) -> None:
    for layout in LAYOUTS[1:]:
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
    assert "predicted ms" not in chain_rows[LAYOUTS[0].name]


def test_a_layout_that_learns_something_else_has_no_speedup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(size, layout):
        step = stack.training_step(
            lambda *given: stack.sequential_loss(size)(*given) * jnp.float32(1.001)
        )
        return step, jax.device_put((stack.weights(size), stack.batch_of(size)), jax.devices()[0])

    monkeypatch.setattr(chains, "laid_out", other)
    monkeypatch.setattr(chains, "solve_stack", lambda size: (3, 0.0))
    monkeypatch.setattr(chains, "over_the_chain", lambda *_: (1.0, 0.5))
    monkeypatch.setattr(programs, "UNROLLS", ())
    monkeypatch.setattr(chains, "LOOP", 0)
    (row,) = chains.rows(SMALL, [Layout(chain=8)], HERE, ONCE)
    assert row["note"] == "wrong: differs from one device by 1.0e-03"
    assert row["predicted ms"] == 1500
    assert not {"speedup", "over lax.scan", "over one device"} & set(row)


# -- what jax says, and the command


def test_operands_on_different_devices_are_refused_by_jax() -> None:
    assert tutorials.apart()["note"].startswith("jax refuses: Received incompatible devices")


def test_the_command_runs_from_start_to_end(
    run_command, monkeypatch: pytest.MonkeyPatch, chain_rows: dict
) -> None:
    def known(size, layouts, machine, effort):
        """In the place of `chains.rows`: cells of a row of above, for nothing is compiled again."""
        row = chain_rows[LAYOUTS[1].name]
        for layout in layouts:
            name = f"{size.length} layers, {layout.name}"
            yield row | {"row": name, "devices": layout.devices, "L": size.length}

    monkeypatch.setattr(chains, "rows", known)
    some = [CASES[name] for name in ("8 matmuls, pmap", "P(None, 'b') @ P('b', None)")]
    monkeypatch.setattr(stack, "solve_stack", lambda size: (3, 0.0))
    monkeypatch.setattr(sharding, "LAYOUTS", LAYOUTS[:1])
    monkeypatch.setattr(sharding, "LINKS", ("H200",))
    monkeypatch.setattr(predicted, "ON_PAPER", (1, *[0] * 4, 4))  # every fifth
    monkeypatch.setattr(predicted, "STRONG", stack.Size(4 * predicted.SHARD, 4, 8))
    monkeypatch.setattr(tutorials, "comparisons", lambda size: iter(some))
    monkeypatch.setattr(tutorials, "perceptrons", lambda width, batch: iter(()))
    rows, text = run_command(sharding, "--quick", "--repeats", "2")
    names = ("chain", "measured scaling", "scaling on paper", "tutorials")
    parts = {name: [row for row in rows if row["part"] == name] for name in names}
    assert [len(found) for found in parts.values()] == [1, 4, 4, 3]
    assert all(row["row"] in text for row in parts["tutorials"] + parts["chain"])
    scaling = [(row["scaling"], row["devices"], row["L"]) for row in parts["measured scaling"]]
    assert scaling == [("strong", 1, 128), ("strong", 8, 128), ("weak", 8, 128), ("weak", 1, 16)]
    assert all(
        row["predicted ms"] > row["of it messages"] and "note" not in row
        for row in parts["measured scaling"]
    )
    for row in parts["scaling on paper"]:
        assert 0 <= row["of it messages"] < row["predicted ms"]
        assert row["predicted speedup"] == pytest.approx(row["lax.scan ms"] / row["predicted ms"])
    short, long = [
        row["depth speedup"] for row in parts["scaling on paper"] if row["scaling"] == "weak"
    ]
    assert short < long  # the longer the chain, the more


def test_with_fewer_devices_it_runs_again_where_they_are_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def replace(program, command, env):
        seen.append((command[1:], env["JAX_PLATFORMS"]))
        raise SystemExit

    monkeypatch.setattr(sharding, "has_devices", lambda: False)
    monkeypatch.setattr(sharding.os, "execve", replace)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(SystemExit):
        sharding.main(["--quick"])
    assert seen == [(["-m", "experiments", "sharding", "--quick"], "cpu")]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with pytest.raises(SystemExit, match="expected 8 devices"):  # no circle
        sharding.main(["--quick"])


def test_collectives_are_printed_as_their_number_and_bytes() -> None:
    sent = {"all-gather": {"number": 2, "bytes": 2000}, "all-reduce": {"number": 1, "bytes": 40}}
    row = {"collectives": sent, "parameter bytes": 64, "ms": 1.0}
    expected = {"collectives": 3, "received": "2.04 kB", "parameter bytes": "64 B", "ms": 1.0}
    assert sharding.printed(row) == expected
    assert sharding.printed({"ms": 1.0}) == {"ms": 1.0}


def test_without_scaling_the_picture_has_a_bar_for_each_row(tmp_path: Path) -> None:
    plots.save(
        tmp_path / "bars.png", sharding.pictures([{"part": "tutorials", "row": "a", "ms": 2.0}])
    )
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


# -- several processes


@cache
def alone_for_three_steps() -> list[float]:
    """The losses of the sequential program on one device."""
    step = jax.jit(stack.training_step(stack.sequential_loss(SMALL)))
    losses, weights = [], stack.weights(SMALL)
    for _ in range(3):
        loss, weights = jax.block_until_ready(step(weights, stack.batch_of(SMALL)))
        losses.append(float(loss))
    assert losses[2] < losses[0]
    return losses


def test_several_processes_train_as_one_does() -> None:
    found = processes.run(2, SMALL, 3, 90, "newton")
    assert found == pytest.approx(alone_for_three_steps(), rel=processes.TOLERANCE)


def test_the_command_compares_the_losses(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    losses = {1: [2.0, 1.0], 2: [2.0, 1.0 + 1e-7]}
    monkeypatch.setattr(sharding.processes, "run", lambda number, *_: losses[number])
    sharding.main(["--processes", "2"])
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        ["0", "2.00000000", "2.00000000"],
        ["1", "1.00000000", "1.00000010"],
    ]
    losses[2] = [2.0, 1.00001]
    with pytest.raises(SystemExit, match=r"2 processes: the loss differs by 1\.0e-05"):
        sharding.main(["--processes", "2"])
    losses[2] = [2.0]
    with pytest.raises(SystemExit, match="2 steps by one process, 1 by 2"):
        sharding.main(["--processes", "2"])


def test_when_a_process_dies_the_other_ends_with_an_error() -> None:
    """What they have computed until then is right, too."""
    victim = 1
    with processes.team(2, SMALL, 10**7, "sequential") as team:
        end = time.monotonic() + 60
        while len(team.losses) < 3:
            assert time.monotonic() < end, team.printed(0)
            assert team.codes() == [None, None], team.printed(0)
            time.sleep(0.05)
        team.processes[victim].kill()
        codes = team.wait(60)
        other = codes[1 - victim]
        losses = team.losses[:3]
    assert losses == pytest.approx(alone_for_three_steps(), rel=processes.TOLERANCE)
    assert codes[victim] == -9
    # By itself, within GRACE of the death: it still ran then, and `team` has not had to kill it.
    assert other not in (None, 0, -9)


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Lets processes run commands of a shell, which start sooner than Python and jax."""

    def run(commands: str) -> None:
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{commands}\n")
        script.chmod(0o700)
        monkeypatch.setattr(processes.sys, "executable", str(script))

    return run


def test_a_run_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, instead) -> None:
    instead("trap '' TERM\nexec sleep 60")
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


def test_a_process_that_fails_is_shown(instead) -> None:
    instead("echo ValueError: a length below 0 >&2\nexit 3")
    with pytest.raises(processes.Failed, match=r"process 0 of 1 ended with 3(.|\n)*ValueError"):
        processes.run(1, SMALL, 1, seconds=60)


# -- predicted


def test_messages_in_a_switch_and_in_a_torus() -> None:
    switch = links.Link(8, inf, 1e-6, 1e9, 1e-5, 1e8, "")
    assert switch.message(1000, 1) == switch.message(1000, 4) == pytest.approx(2e-6)
    assert switch.message(1000, 8) == pytest.approx(2e-5)
    torus = dataclasses.replace(switch, group=256, row=16)
    assert [torus.message(1000, d) for d in (1, 8, 16, 128)] == pytest.approx(
        [2e-6, 16e-6, 2e-6, 16e-6]
    )
    assert [links.distances(count) for count in (1, 2, 8)] == [[], [1], [1, 2, 4]]
    # 4 devices, 800 bytes: halves to the second next, quarters to the next, and back.
    assert switch.all_reduce(800, 4) == pytest.approx(2 * (2 * 1e-6 + 600e-9))
    assert switch.all_reduce(800, 1) == 0


def test_one_device_on_paper_computes_and_sends_nothing() -> None:
    computed, sent = predicted.over_the_chain(SMALL, Layout(), PAPER, 3)
    assert sent == 0
    assert computed > 0
    of_eight, sent = predicted.over_the_chain(
        dataclasses.replace(SMALL, length=8 * 16), Layout(chain=8), PAPER, 3
    )
    assert of_eight > computed  # as many layers each, and the maps of all to combine
    assert sent > 0
    assert predicted.over_the_batch(SMALL, 16, PAPER) is None


def test_simulated_devices_share_cores() -> None:
    assert [HERE.crowd(count) for count in (1, 2, 8)] == [1, 1, 4]
    assert PAPER.crowd(8) == 1
    alone = predicted.over_the_chain(
        SMALL, Layout(chain=8), dataclasses.replace(HERE, cores=None), 3
    )
    shared = predicted.over_the_chain(SMALL, Layout(chain=8), HERE, 3)
    assert shared == pytest.approx((4 * alone[0], alone[1]))


def test_layers_that_run_one_by_one_wait_for_one_another() -> None:
    size = stack.Size(1024, 4, 8)
    machine = dataclasses.replace(PAPER, link=FREE)
    given = stack.weights(size), *stack.batch_of(size)
    run = stack.chain_loss(deeppcr.Chain(stack.layer_of(size), given[0]), method="sequential")
    forward = depth.predict(depth.analyze(run, *given), PAPER.device)
    one_by_one, _ = predicted.over_the_chain(size, Layout(chain=8, method="sequential"), machine, 0)
    at_once, _ = predicted.over_the_chain(size, Layout(chain=8), machine, 3)
    assert one_by_one > forward
    assert at_once < forward


def test_slopes_of_a_batch_over_devices_are_summed() -> None:
    bytes_of_an_eighth = 4 * 16 * (4 * 4 + 4) / 4
    sent = [predicted.over_the_chain(SMALL, Layout(4, batch), PAPER, 3)[1] for batch in (1, 2)]
    half = predicted.over_the_chain(dataclasses.replace(SMALL, batch=4), Layout(4), PAPER, 3)[1]
    assert sent[1] == pytest.approx(half + PAPER.link.all_reduce(bytes_of_an_eighth, 2))
    assert sent[1] > sent[0] > half


def test_a_message_is_measured_at_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert links._seconds(mesh_of((2,), ("i",)), 3) > 0
    monkeypatch.setattr(links, "_seconds", lambda mesh, size: 2e-6 + 4 * size / 1e9)
    link = links.link_at_hand.__wrapped__(2)
    assert link.message(10**6, 1) == pytest.approx(2e-6 + 1e-3, rel=1e-3)


def test_iterations_are_those_of_the_solution() -> None:
    iterations, residual = stack.solve_stack(SMALL)
    assert 1 <= iterations <= SMALL.length
    assert residual < 1e-4
