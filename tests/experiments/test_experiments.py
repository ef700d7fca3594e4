"""Every experiment runs from its command line to its files once, in small; and what it concludes."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from deeppcr import Newton
from experiments import (
    calls,
    decide,
    demo,
    headline,
    iterations,
    loops,
    mlp,
    recurrence,
    report,
    text,
)
from experiments.bench import results
from experiments.bench.engine import distance
from experiments.bench.results import FOLDER
from experiments.bench.table import Row
from experiments.compiling import run as compiling
from experiments.field import run as field
from experiments.field.claims import Claim
from experiments.foresight import programs as random_programs
from experiments.foresight import run as foresight
from experiments.gradients import run as gradients
from experiments.gradients.layers import Layer
from experiments.gradients.network import Network, Size
from experiments.gradients.tasks import tasks
from experiments.models import chains, published, zoo
from experiments.recurrent import beside_torch, networks, wide
from experiments.recurrent import run as recurrent
from experiments.recurrent.compared import compared
from experiments.resnet import run as resnet
from tests.experiments.conftest import Run

FEW = ("--quick", "--repeats", "1")
CANDIDATES = decide.CANDIDATES


@pytest.fixture(scope="module", autouse=True)
def standard_promotion() -> Iterator[None]:
    """Optax raises a float to the power of an int32 counter, which strict promotion forbids."""
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # in all threads
    yield
    jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that compile and run in a second."""
    for module, name, value in (
        (mlp, "LOOPS", dict.fromkeys(mlp.DIRECTIONS, 0)),
        (mlp, "sizes", lambda *_: [mlp.Size("tanh", 12, 2, 1)]),
        (recurrence, "PARALLEL", ("pcr",)),
        (recurrence, "QUICK", ((12, 2),)),
        (decide, "HARD", {"logistic": lambda: chains.logistic_chain(12)}),
        (decide, "FAR_DEVICES", ("TPU v5e",)),
        (decide, "CANDIDATES", _few_candidates()),
        (decide, "LONGEST_LOOP", 0),
        (decide, "SMALL", zoo.Specimen("tanh", 2, 12, 1)),
        (headline, "SHORT", 12),
        (foresight, "QUICK", 1),
        (random_programs, "LENGTHS", (12,)),
        (random_programs, "WIDTHS", (2,)),
        (demo, "digits", lambda _, original=demo.digits: original(3, 4, 2, 2)),
        (demo, "tracking", lambda _, original=demo.tracking: original(2, 12)),
        (gradients, "QUICK", ((3, 2),)),
        (gradients, "tasks", lambda: {"rows": tasks()["rows"]._replace(steps=2)}),
        (gradients, "grid", lambda quick: [Size(Network("gru", 2), 3)]),
        (gradients, "layers", lambda quick: [Layer("GRUCell", length=3, units=2, batch=2)]),
        (recurrent, "QUICK", _trained()),
        (beside_torch, "MODULES", {}),
        (resnet, "QUICK", resnet.Scale((4,), 4, 3, 60.0, 1e9, (1,), *2 * [("dense / dense",)])),
        (resnet, "LONGEST_LOOP", 0),
        (calls, "QUICK_LATER", 1),
        (calls, "entries", lambda *_, original=calls.entries: original(8, 2)),
        (iterations, "QUICK_FORMS", ("dense", "plain", "trust region")),
        (iterations, "QUICK_COUNTS", {"dense": (1, 3), "diagonal": (), "scalar": ()}),
        (iterations, "problem", lambda kind, size, length: _problem(kind)),
        (iterations, "LOOP", 0),
        (iterations, "LOGISTIC_LENGTH", 12),
        (compiling, "QUICK_LENGTHS", (2,)),
        (compiling, "training", lambda *_, original=compiling.training: original(2, 3)),
        (
            loops,
            "LOOPS",
            {"orbits": lambda _: loops.orbits(3), "few nodes": lambda _: loops.hierarchy(3, 2)},
        ),
        (text, "QUICK_STEPS", 2),
        (text, "LAYERS", 1),
        (text, "WIDTH", 8),
        (text, "LENGTH", 10),
        (text, "PROMPT", 5),
        (field, "claims", lambda quick: _claims()),
        (field, "window_claims", lambda quick: iter(())),
        (field, "QUICK_GAINS", (0.6, 1.8)),
        (field, "QUICK_LENGTHS", (16, 32)),
    ):
        monkeypatch.setattr(module, name, value)


def _few_candidates() -> Any:
    """Two of each direction."""
    few = {
        "forward": ("sequential", "newton"),
        "gradient": ("sequential / backprop", "sequential / sequential"),
    }
    return {
        direction: {name: decide.CANDIDATES[direction][name] for name in names}
        for direction, names in few.items()
    }


def _trained() -> Any:
    """Small ones of each part."""
    lstm, buffer = networks.Size("LSTM", 2, 4, 2), wide.BUFFERS[0]._replace(size=4, length=4)
    layer = recurrent.LAYER._replace(length=3, units=2, batch=2, features=2)
    gru = networks.Size("GRU", 2, 4, 2)
    return {"networks": [lstm, layer], "buffers": [buffer], "forward": [gru]}


def _claims() -> Iterator[Claim]:
    yield Claim("RNN", "", "1", lambda: published.contracting_rnn(64), most=1)


def _problem(kind: str) -> iterations.Problem:
    return iterations.Problem("tanh", chains.mlp_chain(2, 12, "tanh", jax.random.key(0)))


def programs(rows: list[Row], **labels: Any) -> list[str]:
    return [row["program"] for row in rows if labels.items() <= row.items()]


RUNS: dict[str, tuple[Any, tuple[str, ...], int]] = {  # module, options, number of rows
    "calls": (calls, ("--quick",), 15),
    "compiling": (compiling, FEW, 2 + 5 + 4),
    "decide": (decide, FEW, 2 + 3 + 2),
    "demo": (demo, ("--quick",), 2 * (2 + 2)),
    "field": (field, FEW, 1 + 4 + 1),
    "foresight": (foresight, FEW, 2 + 4),
    "gradients": (gradients, FEW, 6 + 4 + 4 + 4),
    "iterations": (iterations, FEW, 2 + 3 + 3 * 2 + 3),
    "headline": (headline, FEW, 2 + 3),
    "mlp": (mlp, FEW, 3 + 4),
    "loops": (loops, FEW, 2 * 2 * 2),
    "recurrence": (recurrence, FEW, 5 + 1),
    "recurrent": (recurrent, FEW, 3 + 4 + 3 + 2),
    "resnet": (resnet, FEW, 2 + 2 + 1),
    "text": (text, FEW, 2 + 1 + 1),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("small")
def test_it_runs_from_start_to_end(name: str, run_command: Run) -> None:
    module, options, count = RUNS[name]
    rows, text = run_command(module, *options)
    assert len(rows) == count, [row.get("program") for row in rows]
    assert not [row for row in rows if "note" in row], rows
    assert "--columns says what they are" in text
    for row in rows:  # what is compared with jax.lax.scan computes the same
        assert row.get("ended", "converged") != "converged" or row.get("error", 0) < 1e-3, row
        if {"baseline", "speedup"} <= row.keys():
            assert min(row["speedup"], row.get("predicted ms", 1.0)) > 0
    (SAID.get(name) or (lambda rows: None))(rows)


def in_decide(rows: list[Row]) -> None:
    judged = [row for row in rows if row["part"] == "regret"]
    assert {row["direction"] for row in judged} == {"forward", "gradient"}
    assert all(row["regret %"] >= 0 for row in judged)
    assert all(row["chosen"] in CANDIDATES[row["direction"]] for row in judged)
    assert {"sequential", "newton", "auto"} < judged[0]["seconds"].keys()
    mapped = [row for row in rows if row["part"] == "map"]
    assert all({"realised", "predicted, here", "predicted, TPU v5e"} < row.keys() for row in mapped)
    assert [row["method"] for row in rows if row["part"] == "giving-up"] == [
        *("sequential", "auto", "newton")
    ]


def in_demo(rows: list[Row]) -> None:
    trained = [row for row in rows if "losses" in row]
    assert [row["part"] for row in trained] == [*2 * ["digits"], *2 * ["filter"]]
    for plain, ours in zip(trained[::2], trained[1::2], strict=True):
        np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-4)
        assert plain["losses"][-1] < plain["losses"][0]
    assert trained[0]["losses"][0] == pytest.approx(np.log(10), abs=1e-4)  # all digits look alike
    devices = [row["device"] for row in rows if row["part"] == "a step"]
    assert devices == 2 * ["here, measured", "H100, predicted"]


def test_the_demo_ends_with_what_it_gained() -> None:
    train = {"losses differ": 2e-7, "compile s": 1.0}
    rows = [
        {"part": part, **train, "train s": seconds}
        for part, seconds in zip(2 * ["digits"] + 2 * ["filter"], (8.0, 2.0, 3.0, 4.0), strict=True)
    ]
    assert list(demo.conclusion([*rows, {"part": "a step"}])) == [
        "deeppcr.scan trained digits 4.0 and filter 0.8 times as fast as lax.scan, compiling "
        "included 3.0 and 0.8 times, and the losses are the same to 2e-07."
    ]
    assert not list(demo.conclusion(rows[:1]))  # interrupted


def in_foresight(rows: list[Row]) -> None:
    assert [row["direction"] for row in rows] == 2 * ["forward"] + 4 * ["gradient"]
    assert programs(rows, direction="forward") == ["sequential", "jax.lax.scan"]
    chosen = [row for row in rows if "speedup" in row]
    assert [row["program"] for row in chosen] == [rows[0]["program"], rows[2]["program"]]
    (text, *_) = foresight.summary(rows)
    assert text.startswith("all: rows 6, median ")


def test_errors_of_predictions_are_factors() -> None:
    ratios, gains = (0.5, 1.0, 1.25, 4.0), (3.0, 1.5)
    rows: list[Row] = [{"predicted / measured": ratio} for ratio in ratios]
    for row, gain in zip(rows, gains, strict=False):
        row |= {"predicted speedup": gain, "speedup": 3.0}
    found = foresight.errors(rows)
    assert found["median"] == pytest.approx((1.25 + 2) / 2)
    assert (found["rows"], found["within 2, %"]) == (4, 75)
    assert found["speedup, median"] == pytest.approx(1.5)


def test_programs_of_a_seed_are_the_same_and_others_differ() -> None:
    first, again, other = ([each.name for each in random_programs.drawn(s, 8)] for s in (0, 0, 1))
    assert first == again != other
    kinds = {each.kind for each in random_programs.drawn(0, 8)}
    assert kinds == {"cell", "filter", "equation", "layers", "leaves", "short"}


def in_gradients(rows: list[Row]) -> None:
    adjoints = ["adjoint, backprop", "adjoint, recurrence", "adjoint, pcr"]
    assert programs(rows, part="adjoints") == ["lax.scan", "unrolled", "auto", *adjoints]
    assert programs(rows, part="grid") == ["lax.scan", "unrolled", "auto", "newton"]
    assert programs(rows, part="layers")[::3] == ["lax.scan", "auto"]
    trained = [row for row in rows if row["part"] == "training"]
    assert [row["program"] for row in trained][1:] == ["auto", "newton", "lax.scan, nudged"]
    assert all(row["losses differ"] < 1e-5 and row["alike for"] == 2 for row in trained)
    first, last = trained[0]["losses"]
    assert first == pytest.approx(np.log(10), abs=1e-4) != last  # all classes look alike


def in_iterations(rows: list[Row]) -> None:
    assert programs(rows, part="damping") == ["lax.scan", "plain", "trust region"]
    none, once, last, *_ = [row for row in rows if row["part"] == "accuracy"]
    assert none["error"] > once["error"] > last["error"]
    assert (none["k"], once["k"], once["ended"]) == (0, 1, "not converged")


def in_resnet(rows: list[Row]) -> None:
    first, exact, stopped = (row for row in rows if "losses" in row)
    np.testing.assert_allclose(exact["losses"], first["losses"], atol=1e-5)
    assert exact["gradient error"] < 1e-5
    assert stopped["gradient error"] > 1e-4
    assert (stopped["k"], stopped["ended"]) == (1, "not converged")
    assert first["accuracy"] == pytest.approx(exact["accuracy"], abs=0.01)


def in_headline(rows: list[Row]) -> None:
    titles = dict.fromkeys(row["title"] for row in rows)  # with the length that was measured
    assert list(titles) == ["GRU, 8 units, T = 12, batch 8, gradient", "MLP, forward pass"]
    assert all(map(headline.is_headline, rows))


def in_recurrent(rows: list[Row]) -> None:
    (lstm, layer, *below) = compared(rows, "networks")
    assert {"by hand, ms", "default, MB", "lax.scan, compile s", "chosen"} < lstm.keys()
    assert [line["kind"] for line in below] == ["geometric mean", "worst"]
    speedups = [line["over lax.scan"] for line in (lstm, layer)]
    assert [line["over lax.scan"] for line in below] == pytest.approx(
        [np.prod(speedups) ** 0.5, min(speedups)]
    )
    assert "checkpoints, ms" in compared(rows, "buffers")[0]
    assert "default, MB" not in compared(rows, "forward")[0]


SAID = {
    "decide": in_decide,
    "demo": in_demo,
    "foresight": in_foresight,
    "gradients": in_gradients,
    "headline": in_headline,
    "iterations": in_iterations,
    "recurrent": in_recurrent,
    "resnet": in_resnet,
}


def test_all_programs_of_a_case_compute_the_same_arrays() -> None:
    small = [networks.Size(kind, 2, 6, 3).problem() for kind in networks.KINDS]
    every = [*wide.PROGRAMS, *wide.BUFFERS[:1]]
    small += [wide.beside_checkpoints(one._replace(size=4, length=6)) for one in every]
    for problem in small:
        case = problem.case()
        programs = {**case.baselines, **case.variants}
        for name in beside_torch.threads():  # see below
            programs.pop(name, None)
        shapes = [jax.eval_shape(run, *case.arguments[0]) for run in programs.values()]
        assert shapes == len(shapes) * shapes[:1], problem.labels


@pytest.mark.parametrize("kind", beside_torch.MODULES)
def test_torch_has_the_same_gradient(kind: str) -> None:
    pytest.importorskip("torch", reason="it is measured where it is installed")
    problem = networks.Size(kind, 2, 6, 3).problem()
    torch = problem.others[beside_torch.ALONE]
    found = torch.comparable(torch.run(*torch.prepare(*problem.arguments[0])))
    assert distance(found, jax.jit(problem.program(jax.lax.scan))(*problem.arguments[0])) < 1e-5


def test_only_what_is_right_is_compared() -> None:
    labels = {"kind": "dense", "L": 8, "w": 2, "batch": 1, "direction": "forward"}
    rows: list[Row] = [
        labels | {"program": "lax.scan", "baseline": True, "ms": 4.0, "speedup": 0.5},
        labels | {"program": "sequential", "baseline": True, "ms": 2.0, "speedup": 1.0},
        labels | {"program": "pcr", "baseline": False, "ms": 1.0, "speedup": 2.0},
        labels | {"program": "prefix_scan", "baseline": False, "ms": 0.5, "note": "wrong"},
        labels | {"program": "associative_scan", "baseline": False, "ms": 3.0, "speedup": 2 / 3},
    ]
    found = recurrence.compared(rows, "sequential")
    assert (found["sequential"], found["sequential ms"]) == ("sequential", 2.0)
    assert (found["parallel"], found["associative ms"], found["auto/best"]) == ("pcr", 3.0, 2.0)


@pytest.mark.parametrize(
    ("given", "found", "holds"),
    [
        ({"most": 6}, ("converged", 6, 1e-7), True),
        ({"most": 6}, ("converged", 7, 1e-7), False),
        ({"most": 6}, ("finished sequentially", 6, 0.0), False),
        ({"error": 2.4e-7}, ("converged", 99, 2e-7), True),
        ({"error": 2.4e-7}, ("converged", 1, 3e-7), False),
        ({"most": 6}, ("converged", 6, 1e-2), False),
        ({"converges": False}, ("finished sequentially", 256, 0.0), True),
        ({"converges": False}, ("converged", 2, 0.0), False),
    ],
)
def test_which_claims_pass(
    given: dict[str, Any], found: tuple[str, int, float], holds: bool
) -> None:
    claim = Claim("", "", "", pytest.fail, {"linearize": "identity", "atol": 1e-6}, **given)
    assert claim.holds(*found) is holds
    assert (claim.said, claim.method) == ("Picard, atol 1e-6", Newton("identity", atol=1e-6))


@pytest.mark.parametrize(
    ("iterations", "verdict"),
    [
        ({-0.5: (4, 5), -0.001: (5, 40), 0.5: (10, 90)}, "yes"),
        ({-0.5: (4, 40), 0.5: (10, 90)}, "no"),
        ({-0.5: (4, 5), 0.5: (10, 12)}, "no"),
        ({-0.5: (4, 5)}, "no"),
    ],
)
def test_the_verdict_on_predictability(iterations: Any, verdict: str) -> None:
    rows = [
        {"gain": rate, "growth rate": rate, "L": length, "iterations": count}
        for rate, counts in iterations.items()
        for length, count in zip((10, 100), counts, strict=True)
    ]
    assert field.verdict(rows)["pass"] == verdict


def row(program: str, ms: float, title: str = "MLP, forward pass", **more: Any) -> Row:
    case = {"title": title, "kind": "tanh", "L": 1024, "w": 8, "direction": "forward", **more}
    case |= {"program": program, "baseline": program == "lax.scan", "ms": ms, "speedup": 8 / ms}
    return case | {"predicted speedup": 1.0 if program == "lax.scan" else 5.0}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The results of a CPU with two versions of jax and of a GPU, which the README shows not."""
    loop = {"depth speedup": 1.0, "trace s": 1.0, "compile s": 2.0}
    ours = loop | {"over lax.scan": 9.0, "predicted ms": 2.0, headline.RATIO: 2.0}
    rows = [row("lax.scan", 8.0) | loop, row("newton", 16.0), row("auto", 1.0) | ours]
    rows += [row("unconverged", 0.1) | {"ended": "not converged"}]
    older = [row("lax.scan", 8.0) | loop, row("auto", 4.0) | ours]
    for name, mine in {
        "cpu/jax-0.12": rows,
        "cpu/jax-0.9": older,
        "nvidia-a/jax-0.12": older,
    }.items():
        results.write(tmp_path / name / "headline.jsonl", mine, complete=name == "cpu/jax-0.9")
        results.write(tmp_path / name / "gradients.jsonl", mine)
    results.write(tmp_path / "cpu/jax-0.13" / "mlp.jsonl", [])  # without the README's programs
    return tmp_path


def test_the_readme_says_what_the_files_of_the_newest_jax_say(toy: Path) -> None:
    readme = toy / "README.md"
    sentence = "<!-- measured: forward -->?<!-- end -->"
    readme.write_text(f"# Toy {sentence}\n{report.BEGIN}\nold\n{report.END}\nthe rest\n")
    devices = report.read(toy)
    report.rewrite(readme, report.readme(devices), report.measured_ranges(devices))
    text = readme.read_text()
    expected = "8.0 times (median; 8.0 to 8.0)"
    assert text.startswith(f"# Toy <!-- measured: forward -->{expected}<!-- end -->\n")
    assert text.endswith(f"\n{report.END}\nthe rest\n")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    of = {line[0]: line[1:] for line in table}
    # Speedup, predicted, over lax.scan, ms, predicted, predicted / measured, compile, published.
    assert of["MLP, forward pass"] == ["8", "5", "9", "1", "2", "2", "3 (3)", "30 (DeepPCR)"]
    assert of["MLP, backward pass alone"] == [*7 * [""], "200 (DeepPCR)"]
    assert "(experiments/results/cpu/jax-0.12/headline.png)" in text
    assert re.search(r"^cpu: .* Stopped early\.$", text, re.MULTILINE)
    assert "nvidia" not in text
    for wrong, said in (
        (report.BEGIN, "has 0 places for results"),
        ("measured: forward", "no range is called"),
    ):
        readme.write_text(text.replace(wrong, "measured: else"))
        with pytest.raises(SystemExit, match=said):
            report.rewrite(readme, "", {"forward": ""})


def test_our_own_readme_says_what_the_kept_files_say(tmp_path: Path) -> None:
    ours = FOLDER.parents[1] / "README.md"
    copy = tmp_path / "README.md"
    copy.write_text(ours.read_text(encoding="utf-8"), encoding="utf-8")
    devices = report.read()
    report.rewrite(copy, report.readme(devices), report.measured_ranges(devices))
    assert copy.read_text(encoding="utf-8") == ours.read_text(encoding="utf-8")
