"""Nodes and cycles are counted as compiled programs have them."""

import math
from functools import partial

import jax
import pytest

import depth
from deeppcr.linear import CyclicReduction, Diagonals
from deeppcr.loops import FALLBACK
from experiments import mlp
from experiments.bench.costs import is_fallback
from experiments.gradients import network
from experiments.headline import HEADLINES
from experiments.kernels import cycles, targets
from experiments.kernels import run as kernels
from experiments.kernels.launches import read
from tests.targets import target_or_skip

TEXT = """HloModule jit_f, is_scheduled=true

ENTRY %main.9 (x.1: f32[8]) -> f32[8] {
  %early = f32[8]{0} fusion(%x.1), kind=kLoop, backend_config={"reification_cost":[{"exec_time_us":7,"name":""},{"exec_time_us":1,"name":"sol"}]}
  %given = f32[8]{0} custom-call(%x.1), custom_call_target="__gpu$xla.gpu.ptx", backend_config={"reification_cost":[]}
  %known = (s32[], f32[8]{0}) while(%start), condition=%condition.1, body=%body.1, OF_KNOWN
  %open.2 = (s32[], f32[8]{0}) while(%known), condition=%condition.1, body=%body.1, metadata={op_name="jit(f)/SCOPE/while"}
}
""".replace("SCOPE", FALLBACK).replace(
    "OF_KNOWN", 'metadata={op_name="jit(f)/while"}, backend_config={"known_trip_count":{"n":"10"}}'
)
METADATA = """
thunk_metadata {
  thunk_info {
    profile_annotation: "early"
    thunk_id: 2
  }
  thunk_kind: "kCustomKernel"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "known"
    thunk_id: 3
  }
  thunk_kind: "kWhile"
}
thunk_metadata {
  thunk_info {
    profile_annotation: "open.2"
    thunk_id: 9
  }
  thunk_kind: "kWhile"
}
"""
# As jax 0.10 dumps them: a condition is not indented.
BY_THE_HOST = """000: kCommandBuffer [source | next=003 (1)]
    001: kCopy         [source | sink] kCopy
    002: kCustomKernel [source | sink] add grid: [1, 1, 1] threads: [8, 1, 1]  shared_memory: 0 bytes
003: kWhile         [prev=000 (1) | next=009 (1)]
condition:
    004: kCustomKernel [source | sink] compare
  body:
    000: kCommandBuffer [source | sink]
        005: kCustomKernel       [source | sink] tanh
        006: kDynamicSliceFusion [source | sink] params=1, results=1
            007: kCopy [source | sink] kCopy
    008: kGemm [source | sink] gemm
009: kWhile         [prev=003 (1) | next=012 (1)]
condition:
    010: kCustomKernel [source | sink] and
  body:
    011: kCustomKernel [source | sink] tanh
012: kConditional   [prev=009 (1) | sink]
  false_branch:
    013: kCopy [source | sink] kCopy
  true_branch:
    014: kCustomKernel [source | sink] exp
    015: kCustomKernel [source | sink] exp
"""


@pytest.mark.parametrize("trips", [0, 5])
def test_what_runs(trips):
    asked = []
    found = read(TEXT, BY_THE_HOST, METADATA)
    # A graph of 2; 10 trips of a graph of 2 and a product; conditions; the longer branch.
    assert found.total(lambda name: asked.append(name) or trips) == 2 + 30 + 2 * trips + 1 + 2
    assert asked == [f"jit(f)/{FALLBACK}/while"]
    assert found.trip(lambda name: FALLBACK not in name) == 3
    # A launch for each of them, and the estimate of the first kernel.
    assert found.seconds(lambda _: trips) == pytest.approx((35 + 2 * trips + 7) * 1e-6)
    rare = METADATA.replace('"early"', '"given"').replace("thunk_id: 2", "thunk_id: 11")
    assert math.isfinite(read(TEXT, BY_THE_HOST, rare).seconds(lambda _: 0))  # which does not run
    called = METADATA.replace('"early"', '"given"')
    assert math.isinf(read(TEXT, BY_THE_HOST, called).seconds(lambda _: trips))


def test_without_the_plugin_a_line_says_what_to_install(monkeypatch):
    def without(*_, **__):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(targets.topologies, "get_topology_desc", without)
    with pytest.raises(SystemExit, match="pip install --no-deps jax-cuda13-plugin"):
        kernels.main(["--quick"])


ON_TPU = """HloModule jit_f, is_scheduled=true

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[]{:T(128)} add(%x, %y)
}

%counted.body (p: (s32[], f32[4096,1])) -> (s32[], f32[4096,1]) {
  %x = f32[4096,1]{0,1:T(1,128)} fusion(%p), calls=%add, backend_config={"estimated_cycles":"50"}
  %tuple = (s32[], f32[4096,1]{1,0:T(8,128)}) tuple(%x)
}

%counted.condition (p: (s32[], f32[4096,1])) -> pred[] {
  %end = s32[]{:T(128)} constant(10)
  ROOT %lt = pred[]{:T(512)} compare(%get-tuple-element, %end), direction=LT
}

%open.body (p: (s32[], f32[4096,1])) -> (s32[], f32[4096,1]) {
  %x = f32[4096,1]{1,0:T(8,128)} fusion(%p), calls=%add, backend_config={"estimated_cycles":"700"}
}

%open.condition (p: (s32[], f32[4096,1])) -> pred[] {
  %less = pred[]{:T(512)} fusion(%p), calls=%add, backend_config={"estimated_cycles":"3"}
  ROOT %and = pred[]{:T(512)} and(%less, %less)
}

%no (p: f32[]) -> f32[] {
  ROOT %x = f32[]{:T(128)} fusion(%p), calls=%add, backend_config={"estimated_cycles":"5"}
}

%yes (p: f32[]) -> f32[] {
  ROOT %x = f32[]{:T(128)} fusion(%p), calls=%add, backend_config={"estimated_cycles":"20"}
}

ENTRY %main (x: f32[4096,1]) -> f32[4096,1] {
  %x = f32[4096,1]{1,0:T(8,128)} fusion(%p), calls=%add, backend_config={"estimated_cycles":"1"}
  %known = (s32[], f32[4096,1]{1,0}) while(%x), condition=%counted.condition, body=%counted.body
  %open = (s32[], f32[4096,1]{1,0}) while(%x), condition=%open.condition, body=%open.body, OPEN
  %rare = (s32[], f32[4096,1]{1,0}) while(%x), condition=%open.condition, body=%open.body, RARE
  %either = f32[] conditional(%p, %x, %x), branch_computations={%no, %yes}
}
"""
for scope, name in (("OPEN", "newton iteration"), ("RARE", FALLBACK)):
    ON_TPU = ON_TPU.replace(scope, f'metadata={{op_name="jit(f)/{name}/while"}}')


def test_the_cycles_of_a_call():
    found = cycles.read(ON_TPU)
    assert found.total(lambda _: 4) == 1 + 10 * 50 + (4 * 700 + 5 * 3) + 20
    assert found.trip(lambda name: not is_fallback(name)) == 700
    with pytest.raises(ValueError, match="estimated cycles"):
        cycles.read(TEXT)


def cases():
    """The quick ones."""
    return [make() for make in kernels.makers(quick=True)]


def test_programs_of_each_kind_are_counted():
    assert all(any(title.startswith(word) for title in HEADLINES) for word in kernels.WORDS)
    assert len(kernels.WORDS) < len(kernels.makers(quick=False)) < len(HEADLINES)


class Recorded(targets.Gpu):
    """A GPU, for which all is compiled to thunks known beforehand."""

    def compile(self, lowered, options=()):
        return read(TEXT, BY_THE_HOST, METADATA)

    def lower(self, f, *arguments):
        return None


def test_rows_say_what_is_launched():
    (case,) = [case for case in cases() if case.labels["direction"] == "forward"]
    rows = {row["program"]: row for row in kernels.rows(case, Recorded("H200", None))}
    loops = ["lax.scan", "lax.scan, unroll 4", "lax.scan, unroll 16"]
    assert list(rows) == [*loops, "newton"]
    newton = rows["newton"]
    assert newton["iterations"] >= 3
    # Its loop is a fallback in that text.
    assert (newton["nodes"], newton["fewer nodes"], newton["a trip"]) == (35, 1, 3)
    assert kernels.named(newton) == "MLP, forward pass"
    # By this text's estimate; and by the model of the target, of the program that it compiles.
    assert newton["XLA ms"] == pytest.approx((35 + 7) * 1e-3)
    assert newton["depth / XLA"] == newton["depth ms"] / newton["XLA ms"]
    assert rows["lax.scan"]["depth ms"] > 10 * newton["depth ms"]
    assert rows["lax.scan"]["kernels"] < newton["kernels"]


def test_programs_are_compiled_for_the_target_where_jax_can():
    found = target_or_skip("H200")
    (case,) = [case for case in cases() if case.labels["direction"] == "backward"]
    rows = {row["program"]: row for row in kernels.rows(case, found)}
    assert rows["blocks"]["nodes"] < rows["lax.scan"]["nodes"] / 100


# One to three more than where an iteration takes the activations that the test of the one before
# has computed: that gained no time that was measured, and was a mechanism of its own.
@pytest.mark.parametrize(
    ("make", "most"),
    [
        (partial(mlp.case, mlp.Size("tanh", 1024, 8, 1)), 18),
        (network.Size(network.Network("gru", 1), 100_000).case, 17),
        (network.Size(network.Network("gru", 16), 10_000).case, 27),
    ],
    ids=["layers of 8", "gru of 1", "gru of 16"],
)
def test_an_iteration_takes_few_kernels(make, most):
    found = target_or_skip("H200")
    with jax.enable_x64(False):  # else the counter of the first iterations takes one more
        with found.chosen():
            case = make("forward")
        program = found.compile(kernels.lowered(case.variants["newton"], case.arguments[0], found))
    solves = [thunk for thunk in program.thunks if thunk.kind == "kCustomKernel"]
    assert solves or 0 < program.trip(lambda name: not is_fallback(name)) <= most
    assert len(solves) <= 1


def test_a_round_of_cyclic_reduction_reads_the_blocks_of_the_last():
    found, blocks = target_or_skip("H200"), jax.ShapeDtypeStruct((2048, 8, 256), "float32")
    solve = lambda a, b: CyclicReduction().solve_unguarded(Diagonals(a), b)  # noqa: E731
    text = found.lower(solve, blocks, blocks).compile().as_text()
    kernels_of = [line for line in text.partition("ENTRY")[2].splitlines() if "fusion(" in line]
    assert sum("%arguments_0_" in line for line in kernels_of) == 2  # the first, and the last


def test_a_small_kernel_of_a_tpu_takes_what_xla_estimates():
    found = target_or_skip("TPU v5e")
    with jax.enable_x64(False):
        text = found.lower(jax.numpy.sin, jax.ShapeDtypeStruct((8,), "float32")).compile().as_text()
    program = cycles.read(text)
    latency = depth.devices["TPU v5e"].kernel_latency
    assert found.seconds(program, lambda _: 0) == pytest.approx(latency, rel=0.1)
