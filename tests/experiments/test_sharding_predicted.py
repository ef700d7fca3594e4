"""What a training step over devices should take: messages, shared cores, layers that wait, slopes that are summed."""

import dataclasses
from math import inf

import pytest

import deeppcr
import depth
from depth.device import generic_cpu
from experiments.sharding_rows import links, messages, predicted, stack
from experiments.sharding_rows.measured import mesh_of
from experiments.sharding_rows.stack import Layout

SMALL = stack.Size(16, 4, 8)
HERE = predicted.Machine(generic_cpu(2), links.LINKS["H200"], cores=2)
FREE = links.Link(256, inf, 0.0, 1e30, 0.0, 1e30, "")
PAPER = predicted.Machine(depth.devices["H200"], links.LINKS["H200"])


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


def test_turns_that_are_a_loop_of_their_own_are_not_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("deeppcr.loops.ahead", lambda turns: min(turns, 3))
    assert [predicted.counted(turns) for turns in (None, 2, 5)] == [None, 0, 2]


def test_layers_that_run_one_by_one_wait_for_one_another() -> None:
    size = stack.Size(1024, 4, 8)
    machine = dataclasses.replace(PAPER, link=FREE)
    given = stack.weights(size), *stack.examples(size)
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
    assert messages._seconds(mesh_of((2,), ("i",)), 3) > 0
    monkeypatch.setattr(messages, "_seconds", lambda mesh, size: 2e-6 + 4 * size / 1e9)
    link = messages.link_at_hand.__wrapped__(2)
    assert link.message(10**6, 1) == pytest.approx(2e-6 + 1e-3, rel=1e-3)


def test_iterations_are_those_of_the_solution() -> None:
    iterations, residual = stack.told(SMALL)
    assert 1 <= iterations <= SMALL.length
    assert residual < 1e-4
