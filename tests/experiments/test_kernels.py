"""Launches are counted as XLA's text of a compiled program has them."""

import pytest

from deeppcr.loops import FALLBACK
from experiments.bench import plots
from experiments.kernels import figure as kernels_figure
from experiments.kernels import run as kernels
from experiments.kernels import targets
from experiments.kernels.launches import Total, launches

TEXT = """HloModule jit_f, is_scheduled=true

%fused_add (param_0: s32[]) -> s32[] {
  %param_0 = s32[] parameter(0)
  ROOT %add.1 = s32[] add(%param_0, %param_0)
}

%body.1 (arg: (s32[], f32[8]{0})) -> (s32[], f32[8]) {
  %arg = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[8]{0} get-tuple-element(%arg), index=1
  %kernel.1 = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused_add
  %copy.1 = f32[8]{0} copy(%kernel.1)
  %next = s32[] fusion(%i), kind=kLoop, calls=%fused_add
  ROOT %tuple.1 = (s32[], f32[8]{0}) tuple(%next, %copy.1)
}

%condition.1 (arg.2: (s32[], f32[8]{0})) -> pred[] {
  %arg.2 = (s32[], f32[8]{0}) parameter(0)
  ROOT %less = pred[] fusion(%arg.2), kind=kLoop, calls=%fused_add
}

%branch.a (p: f32[8]) -> f32[8] {
  ROOT %p = f32[8]{0} parameter(0)
}

%branch.b (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %w = f32[8]{0} custom-call(%q), custom_call_target="cublas"
}

ENTRY %main.9 (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0), metadata={op_name="x"}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]{0}) tuple(%zero, %x.1)
  %known = (s32[], f32[8]{0}) while(%start), condition=%condition.1, body=%body.1, OF_KNOWN
  %open = (s32[], f32[8]{0}) while(%known), condition=%condition.1, body=%body.1, metadata={op_name="jit(f)/SCOPE/while"}
  %either = f32[8]{0} conditional(%zero, %x.1, %x.1), branch_computations={%branch.a, %branch.b}
  %yes = f32[8]{0} conditional(%zero, %x.1, %x.1), true_computation=%branch.b, false_computation=%branch.a
  ROOT %end = (f32[8]{0}, s32[]{:T(256)}) fusion(%open), kind=kLoop, calls=%fused_add
}
""".replace("SCOPE", FALLBACK).replace(
    "OF_KNOWN", 'metadata={op_name="jit(f)/while"}, backend_config={"known_trip_count":{"n":"10"}}'
)


def test_launches_are_all_that_does_something():
    found = launches(TEXT)
    assert found.here == 3  # the longer way of each branch, and the last kernel
    assert [
        (loop.name, loop.trips, loop.body.here, loop.condition.here) for loop in found.loops
    ] == [
        ("jit(f)/while", 10, 3, 1),
        (f"jit(f)/{FALLBACK}/while", None, 3, 1),
    ]


@pytest.mark.parametrize(("trips", "expected"), [(0, Total(44, 1)), (5, Total(64, 6))])
def test_the_host_waits_where_the_number_of_trips_depends_on_data(trips, expected):
    asked = []
    assert launches(TEXT).total(lambda name: asked.append(name) or trips) == expected
    assert asked == [f"jit(f)/{FALLBACK}/while"]


def test_a_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        launches("nothing")


def test_without_the_plugin_a_line_says_what_to_install(monkeypatch):
    def without(*_, **__):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(targets.topologies, "get_topology_desc", without)
    with pytest.raises(SystemExit, match="pip install --no-deps jax-cuda13-plugin"):
        kernels.main(["--quick"])


def cases():
    """The quick ones."""
    return [make() for make in kernels.makers(quick=True)]


class Recorded(targets.Target):
    """A target that compiles to a text known beforehand."""

    def compile(self, f, *arguments):
        return TEXT


def test_rows_say_what_is_launched_and_what_that_takes():
    (case,) = [case for case in cases() if case.labels["direction"] == "forward"]
    rows = {row["program"]: row for row in kernels.rows(case, Recorded("H200", None))}
    assert list(rows) == ["lax.scan", "lax.scan, unroll 4", "lax.scan, unroll 16", "newton"]
    newton = rows["newton"]
    assert newton["iterations"] >= 3
    assert (newton["launches"], newton["waits"]) == (
        44,
        1,
    )  # its loop is a fallback in that text
    assert newton["latency ms"] == pytest.approx(1e3 * (20e-6 + 44 * 2.5e-6 + 15e-6))
    assert newton["fewer launches"] == newton["latency speedup"] == 1
    assert 0 < newton["depth"] < rows["lax.scan"]["depth"]
    assert newton["predicted ms"] < rows["lax.scan"]["predicted ms"]


def test_the_figure_has_a_line_for_every_case(tmp_path):
    case = {
        "kind": "tanh",
        "L": 1024,
        "w": 8,
        "batch": 1,
        "direction": "forward",
        "latency ms": 0.1,
        "predicted ms": 0.2,
    }
    rows = [case | {"program": "lax.scan", "sequential": True, "launches": 4000}]
    rows += [case | {"program": "newton", "sequential": False, "launches": 100}]
    rows += [rows[0] | {"kind": None, "data": "digits", "direction": "training step"}]
    assert kernels_figure.named(rows[1]) == "tanh, L = 1,024, w = 8, forward"
    assert kernels_figure.named(rows[2]) == "digits, L = 1,024, w = 8, training step"
    plots.save(tmp_path / "figure.png", kernels_figure.pictures(rows))
    plots.save(tmp_path / "empty.png", kernels_figure.pictures([]))
    assert (tmp_path / "figure.png").stat().st_size > (tmp_path / "empty.png").stat().st_size > 0


def test_programs_are_compiled_for_the_target_where_jax_can():
    try:
        found = targets.target("H200")
    except targets.Unavailable:
        pytest.skip("no plugin for CUDA")
    (case,) = [case for case in cases() if case.labels["direction"] == "backward"]
    rows = {row["program"]: row for row in kernels.rows(case, found)}
    assert rows["blocks"]["waits"] == 0
    assert rows["blocks"]["launches"] < rows["lax.scan"]["launches"] / 100
