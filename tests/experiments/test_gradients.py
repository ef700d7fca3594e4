"""`python -m experiments gradients`.

Adjoints, long sequences, learning and speech, and what is kept, printed and drawn of them.
"""

import json
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depth
from experiments.bench import plots
from experiments.bench.engine import distance
from experiments.bench.table import Row
from experiments.gradients import figure, silero
from experiments.gradients import run as gradients
from experiments.gradients.layers import Layer
from experiments.gradients.learner import Learner
from experiments.gradients.network import GRID, Network, Size
from experiments.gradients.speech import Detector
from experiments.gradients.tasks import parity, tasks
from experiments.models import cells
from experiments.models.data import find_package


def test_the_command_runs_from_start_to_end(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "find_package", lambda name, at: None)
    tiny = Size(Network("gru", 2), 6, names=("auto", "newton"))
    monkeypatch.setattr(gradients, "grid", lambda *_: [tiny])
    sizes = ("--quick", "--lengths", "6", "--widths", "2", "--batches", "2", "--repeats", "1")
    rows, text = run_command(gradients, *sizes, "--parts", "adjoints", "grid", "speech")
    assert "no speech: silero-vad is not installed" in text
    assert "\nadjoints, gradient, auto: " in text
    assert {(row["kind"], row["L"], row["w"]) for row in rows} == {("gru", 6, 2)}
    found = {
        (part, direction): [
            row["program"] for row in rows if (row["part"], row["direction"]) == (part, direction)
        ]
        for part, direction in (("adjoints", "gradient"), ("grid", "forward"))
    }
    assert sum(map(len, found.values())) == len(rows)  # quick: a direction for each part
    loops = ["lax.scan", "unrolled"]
    adjoints = ["adjoint, backprop", "adjoint, recurrence", "adjoint, pcr"]
    assert found["adjoints", "gradient"] == [*loops, "auto", *adjoints]
    assert found["grid", "forward"] == [*loops, "auto", "newton"]
    assert not [row for row in rows if "note" in row]  # all of them compute what lax.scan computes
    keys = ("depth", "predicted ms", "speedup", "depth speedup", "predicted speedup", "ms")
    assert all(min(row[key] for key in keys) > 0 for row in rows)
    counted = {row["program"] for row in rows if "iterations" in row}
    assert counted == {"auto", "newton"}


def test_the_adjoints_are_different_programs() -> None:
    case = Size(Network("gru", 2), 64, 8, "adjoints").case("gradient")
    depths = [
        depth.analyze(case.variants[f"adjoint, {name}"].run, *case.arguments[0]).depth
        for name in ("pcr", "recurrence", "backprop")
    ]
    assert depths[0] < depths[1] < depths[2]


def test_inputs_differ_from_call_to_call_and_within_a_batch() -> None:
    (_, start, xs), (_, _, others) = Size(Network("gru", 3), 5, 8).case("forward").arguments
    assert start.shape == (8, 3)
    assert xs.shape == (5, 8, 3)
    assert (xs[:, 0] != xs[:, 1]).all()
    assert (xs != others).all()


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"quick": True}, [(1000, 4, 8)]),
        ({"lengths": [7, 5], "widths": [2], "batches": [1]}, [(7, 2, 1), (5, 2, 1)]),
        ({"quick": True, "batches": [3]}, [(1000, 4, 3)]),
        ({}, [(length, n, batch) for length, n in gradients.SIZES for batch in (1, 8)]),
    ],
)
def test_what_is_measured(given: dict[str, Any], sizes: list[tuple[int, int, int]]) -> None:
    asked = {"quick": False, "lengths": None, "widths": None, "batches": None} | given
    found = gradients.adjoints(Namespace(**asked))
    assert [(size.length, size.network.n, size.batch) for size in found] == sizes


def test_the_most_important_sizes_come_first_and_none_twice() -> None:
    for platform in ("cpu", "gpu"):
        sizes = gradients.grid(False, platform)
        assert sizes[0] == Size(Network("gru", 1), 100_000, 1)
        assert len(set(sizes)) == len(sizes)
    assert {1000, 10_000, 100_000, 1_000_000} <= {size.length for size in sizes}
    assert {size.network.n for size in sizes} >= {1, 64}


def test_the_summary_has_means_and_the_least() -> None:
    def auto(direction: str, plain: float, strong: float, program: str = "auto") -> Row:
        return {
            "part": "adjoints",
            "direction": direction,
            "program": program,
            "over lax.scan": plain,
            "speedup": strong,
        }

    rows = [
        auto("gradient", 2, 1),
        auto("gradient", 8, 4),
        auto("forward", 3, 3),
        auto("gradient", 99, 99, "adjoint, pcr"),
    ]
    assert list(gradients.summary(rows))[1:] == [
        "adjoints, gradient, auto: 4.00x lax.scan (geometric mean; least 2.00x), 2.00x the fastest loop (least 1.00x)",
        "adjoints, forward, auto: 3.00x lax.scan (geometric mean; least 3.00x), 3.00x the fastest loop (least 3.00x)",
    ]
    assert list(gradients.summary([])) == [[]]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_a_gru_is_its_formula() -> None:
    weights = cells.gru_weights(2, 3)
    h, x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    h = h[:, :2]
    W, U, b, c = (np.asarray(weights[name], np.float64) for name in "WUbc")
    rx, ux, nx = np.split(x @ W + b, 3, axis=-1)
    rh, uh, nh = np.split(h @ U + c, 3, axis=-1)
    update = sigmoid(ux + uh)
    expected = (1 - update) * np.tanh(nx + sigmoid(rx + rh) * nh) + update * h
    np.testing.assert_allclose(
        cells.gru(weights, jnp.asarray(h), jnp.asarray(x)), expected, rtol=1e-5
    )


def test_an_lstm_is_its_formula() -> None:
    weights = cells.lstm_weights(2, 3)
    h, c, x = np.random.default_rng(0).standard_normal((3, 5, 3)).astype(np.float32)
    h, c = h[:, :2], c[:, :2]
    W, U, b = (np.asarray(weights[name], np.float64) for name in "WUb")
    i, f, g, o = np.split(x @ W + h @ U + b, 4, axis=-1)
    cell = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    found = cells.lstm(weights, (jnp.asarray(h), jnp.asarray(c)), jnp.asarray(x))
    np.testing.assert_allclose(found[1], cell, rtol=1e-5)
    np.testing.assert_allclose(found[0], sigmoid(o) * np.tanh(cell), rtol=1e-5)


def test_every_variant_has_the_gradient_of_the_scan() -> None:
    case = Size(Network("lstm", 2), length=5, batch=2).case("gradient")
    assert {"lax.scan, unroll 4", "unrolled"} <= case.baselines.keys()
    assert list(case.variants) == list(GRID["gradient"])
    alike = ("auto", "newton")  # see test_all_variants_train_alike
    runs = {name: one.run for name, one in case.variants.items() if name not in alike}
    runs["lax.scan"] = case.baselines["lax.scan"]
    found = jax.jit(lambda *given: {name: run(*given) for name, run in runs.items()})(
        *case.arguments[0]
    )
    for name in runs:
        assert distance(found[name], found["lax.scan"]) < 1e-5, name


def test_what_solves_a_chain_finds_the_states_of_its_program() -> None:
    case = Size(Network("lstm", 2), 5, 2, "adjoints").case("forward")
    assert list(case.variants) == ["auto", "newton, recurrence"]
    solution = case.variants["newton, recurrence"].solve(*case.arguments[1])
    expected = jax.jit(case.baselines["lax.scan"])(*case.arguments[1])
    assert distance(solution.trajectory[0], expected) < 1e-5
    assert solution.stats.iterations > 0


def test_a_layer_of_deeppcr_has_the_gradient_of_flax() -> None:
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        case = Layer("GRUCell", length=5, units=2, batch=2).case()
        assert list(case.baselines) == ["lax.scan", "lax.scan, unroll 4", "lax.scan, unroll 16"]
        runs = case.baselines["lax.scan"], case.variants["auto"].run
        expected, found = jax.jit(lambda *given: [run(*given) for run in runs])(*case.arguments[0])
    assert distance(found, expected) < 1e-5


def test_the_derivative_of_one_number_is_its_own_diagonal() -> None:
    assert "newton, diagonal" not in Size(Network("gru", 1), 9).case("forward").variants
    assert "newton, diagonal" in Size(Network("lstm", 1), 9).case("forward").variants


def wheel_of_aeon(folder: Path) -> Path:
    """With series of 2 to 5 frames of 2 features, which stand still for one of both classes."""
    rng = np.random.default_rng(0)

    def series(length: int, label: int) -> str:
        frames = rng.standard_normal((2, 1)) + label * rng.standard_normal((2, length))
        return ":".join([*(",".join(map(str, feature)) for feature in frames), str(label + 1)])

    path = folder / "aeon.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for part, count in (("TRAIN", 8), ("TEST", 4)):
            lines = [series(2 + k % 4, k % 2) for k in range(count)]
            text = "\n".join(["# text", "@problemName a", "@data", *lines, ""])
            name = f"aeon/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts"
            wheel.writestr(name, text)
    return path


def test_all_variants_train_alike_on_series_of_several_lengths(tmp_path: Path) -> None:
    task = tasks(wheel_of_aeon(tmp_path))["vowels"]
    assert (task.train_x.shape, task.test_x.shape, task.classes) == ((8, 5, 2), (4, 5, 2), 2)
    assert task.train_y[:, -1].tolist() == [0, 1] * 4
    np.testing.assert_array_equal(task.train_lengths, [2, 3, 4, 5] * 2)
    mask = task.mask(task.train_lengths)
    assert mask is not None
    assert not task.train_x[~mask].any()
    np.testing.assert_allclose(task.train_x[mask].std(axis=0), 1, rtol=1e-5)
    assert "vowels" not in tasks(tmp_path)

    network = Network("gru", 2)
    weights, xs = cells.gru_weights(2), np.swapaxes(task.train_x, 0, 1)
    states = network.states(jax.lax.scan)
    found = states(weights, network.start(8), xs, mask.T)[-1, 1]
    expected = states(weights, network.start(1), xs[:3, 1:2])[-1, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)

    rows = list(Learner(task, steps=3, batch=4).train())
    assert [row["program"] for row in rows] == ["lax.scan", "auto", "newton", "lax.scan, nudged"]
    assert all(row["losses differ"] < 1e-5 and row["alike for"] == 3 for row in rows)
    assert rows[0]["losses"][0] == pytest.approx(np.log(2), abs=1e-4)  # both classes look alike
    assert len(set(rows[0]["losses"])) == 3  # it learns something, and so do the others


def test_the_parity_of_a_few_bits_is_learnt() -> None:
    learner = Learner(parity(count=256, bits=5), steps=300)
    update, training = jax.jit(learner.update(jax.lax.scan)), learner.first()
    assert learner.accuracy(training[0]) < 0.75
    for batch in learner.batches():
        training, _ = update(training, *batch)
    assert learner.accuracy(training[0]) > 0.95


def test_the_tasks() -> None:
    found = tasks()
    rows, pixels, bits = found["rows"], found["pixels"], found["parity"]
    np.testing.assert_array_equal(rows.train_x.reshape(len(rows.train_x), 64, 1), pixels.train_x)
    assert (rows.length, pixels.length, bits.length) == (8, 64, 64)
    assert (rows.classes, pixels.classes, bits.classes) == (10, 10, 2)
    ones = (bits.test_x[..., 0] > 0).sum(axis=1)
    np.testing.assert_array_equal(bits.test_y[:, -1], ones % 2)
    for task in found.values():
        assert task.weights(0.0).sum() == pytest.approx(1)
        assert not {x.tobytes() for x in task.test_x[:5]} & {x.tobytes() for x in task.train_x}
    assert np.flatnonzero(pixels.weights(0.0)).tolist() == [63]
    counted = [np.count_nonzero(bits.weights(done)) for done in (0.0, 0.3, 1.0)]
    assert counted == [4, 28, 64]


def test_a_package_that_is_missing_is_none() -> None:
    assert find_package("no_such_package_at_all") is None
    assert find_package("numpy") == Path(np.__file__).parent


def detector_weights() -> dict[str, np.ndarray]:
    """Random ones, of the shapes that silero-vad has."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "stft_conv.weight": (258, 1, 256),
        "final_conv.weight": (1, 128, 1),
    }
    for number, (before, after) in enumerate([(129, 128), (128, 64), (64, 64), (64, 128)], 1):
        shapes |= {f"conv{number}.weight": (after, before, 3), f"conv{number}.bias": (after,)}
    shapes |= {f"lstm_cell.{name}": (512, 128) for name in ("weight_ih", "weight_hh")}
    shapes |= {f"lstm_cell.{name}": (512,) for name in ("bias_ih", "bias_hh")} | {
        "final_conv.bias": (1,)
    }
    return {
        name: (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype("<f4")
        for name, shape in shapes.items()
    }


def test_weights_are_read_from_a_wheel(tmp_path: Path) -> None:
    weights = detector_weights()
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, value in weights.items():
        header[name] = {
            "dtype": "F32",
            "shape": value.shape,
            "data_offsets": [len(data), len(data) + value.nbytes],
        }
        data += value.tobytes()
    text = json.dumps(header).encode()
    with zipfile.ZipFile(tmp_path / "silero.whl", "w") as wheel:
        wheel.writestr(
            "silero_vad/data/silero_vad_16k.safetensors",
            len(text).to_bytes(8, "little") + text + data,
        )
    found = silero.read_weights(tmp_path / "silero.whl")
    assert found is not None
    assert found.keys() == weights.keys()
    for name in weights:
        np.testing.assert_array_equal(found[name], weights[name])
    assert silero.read_weights(tmp_path) is None


def test_weights_of_another_type_are_refused() -> None:
    text = json.dumps({"a": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    with pytest.raises(ValueError, match="a is of type F16, expected F32"):
        silero.read_safetensors(len(text).to_bytes(8, "little") + text + b"12")


def convolve(x: np.ndarray, weight: np.ndarray, stride: int, pad: int) -> np.ndarray:
    """``[in, samples] -> [out, samples]``, by its definition."""
    x = np.pad(x, ((0, 0), (pad, pad)))
    starts = range(0, x.shape[1] - weight.shape[2] + 1, stride)
    return np.stack(
        [np.einsum("oit,it->o", weight, x[:, s : s + weight.shape[2]]) for s in starts], axis=1
    )


def test_features_are_those_of_one_frame_after_another() -> None:
    weights, sound = detector_weights(), silero.make_sound(0.1)
    before, expected = np.zeros(64), []
    for start in range(0, len(sound) - 511, 512):
        frame = np.concatenate([before, sound[start : start + 512]])
        before = frame[-64:]
        spectrum = convolve(
            np.concatenate([frame, frame[-2:-66:-1]])[None], weights["stft_conv.weight"], 128, 0
        )
        x = np.hypot(spectrum[:129], spectrum[129:])
        for number, stride in enumerate((1, 2, 2, 1), 1):
            x = np.maximum(
                convolve(x, weights[f"conv{number}.weight"], stride, 1)
                + weights[f"conv{number}.bias"][:, None],
                0,
            )
        expected.append(x[:, 0])
    assert len(expected) == 3
    np.testing.assert_allclose(silero.features(weights, sound), expected, rtol=1e-3, atol=1e-4)


def test_all_variants_hear_the_same() -> None:
    detector = Detector(detector_weights(), seconds=0.3)
    rows = list(detector.listen())
    assert [row["program"] for row in rows] == ["lax.scan", "auto", "newton, trust region"]
    assert all(row["probabilities differ"] < 1e-5 for row in rows)
    assert [len(row["probabilities"]) for row in rows] == [9, 9, 9]
    assert detector.case().labels["L"] == 9


def test_sound_is_the_same_every_time_and_within_bounds() -> None:
    sound = silero.make_sound(1.0)
    assert sound.dtype == np.float32
    assert 0.05 < np.abs(sound).max() < 1
    np.testing.assert_array_equal(sound, silero.make_sound(1.0))


def row(**cells: Any) -> dict[str, Any]:
    known = {
        "part": "grid",
        "kind": "gru",
        "batch": 1,
        "direction": "forward",
        "baseline": False,
        "w": 1,
        "L": 10,
    }
    return known | {"predicted speedup": 2.0} | cells


def test_the_figure_takes_the_best_that_is_parallel_and_right(tmp_path: Path) -> None:
    rows = [
        row(program="lax.scan", baseline=True, speedup=9.0),
        row(program="auto", speedup=8.0),
        row(program="newton", speedup=3.0),
        row(program="newton, diagonal", speedup=4.0),
        row(program="newton, cyclic reduction", note="wrong"),
        row(program="newton", speedup=5.0, L=100),
    ]
    best = figure.best_parallel(rows)
    assert [(found["L"], found["speedup"]) for found in best] == [(10, 4.0), (100, 5.0)]
    pytest.importorskip("matplotlib")
    trained = {
        "part": "training",
        "kind": "parity",
        "program": "auto",
        "losses": [2.0, 1.0],
        "w": 2,
        "L": 9,
    }
    trained |= {"accuracy": 0.5, "alike for": 2}
    heard = {"part": "heard", "program": "auto", "probabilities": [0.1, 0.9]}
    plots.save(tmp_path / "rnn.png", figure.pictures([*rows, trained, heard]))
    assert (tmp_path / "rnn.png").stat().st_size > 10_000
