"""The experiment on multilayer perceptrons: from start to end at a size that takes seconds, and what it needs."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depth.device import generic_cpu
from experiments import mlp
from experiments.common import baselines, options, plots, results, versus

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up calibration, and few programs."""
    monkeypatch.setattr(options.depth, "calibrate", lambda refresh: generic_cpu(2))
    monkeypatch.setattr(baselines, "UNROLLS", ())
    monkeypatch.setattr(mlp, "LOOPS", dict.fromkeys(mlp.DIRECTIONS, 0))
    monkeypatch.setitem(mlp.PROGRAMS, "backward", {"blocks": mlp.PROGRAMS["backward"]["blocks"]})


@pytest.mark.usefixtures("tiny")
def test_the_command_runs_from_start_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--lengths", "12", "--widths", "2", "--directions", "forward", "backward"]
    mlp.main([*size, "--repeats", "1", "--keep", "toy", "--out", str(tmp_path)])
    folder = tmp_path / results.device()
    text = capsys.readouterr().out
    assert text.splitlines()[-2:] == [
        f"kept in {folder / 'toy.jsonl'}",
        f"drawn in {folder / 'toy.png'}",
    ]
    assert (folder / "toy.png").read_bytes().startswith(b"\x89PNG")
    environment, rows = results.read(folder / "toy.jsonl")
    assert environment["complete"] is True
    assert [row["direction"] for row in rows if row["baseline"]] == ["forward", "backward"]
    assert all(
        (row["kind"], row["L"], row["w"], row["batch"]) == ("tanh", 12, 2, 1) for row in rows
    )
    assert not [row for row in rows if "note" in row]
    assert all(row["depth"] > 0 and row["predicted ms"] > 0 and row["speedup"] > 0 for row in rows)
    assert {row["program"] for row in rows if "iterations" in row} == {"auto", "newton"}


def test_a_gradient_is_had_in_every_way() -> None:
    case = mlp.case(mlp.Size("relu", 12, 2, 1), "gradient")
    assert list(case.programs) == ["auto", "sequential / blocks", "newton / blocks"]
    told = {name for name, program in case.programs.items() if isinstance(program, versus.Program)}
    assert told == {"auto", "newton / blocks"}  # how many iterations they take
    (one, x), (other, _) = case.arguments
    assert one["w"].shape == (12, 2, 2)
    assert x.shape == (1, 2)
    assert not jnp.allclose(one["w"], other["w"])


@pytest.mark.usefixtures("tiny")
def test_without_matplotlib_there_is_a_line_instead_of_a_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _: None)
    mlp.main(["--quick", "--seconds", "-1", "--plot", str(tmp_path / "none.png")])
    assert "no figure: matplotlib is not installed" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_jax_and_numpy_are_all_it_needs() -> None:
    others = ("matplotlib", "tqdm", "optax", "flax", "equinox", "sklearn")
    program = f"""
import sys
sys.modules |= dict.fromkeys({others}, None)
import experiments.mlp, experiments.suite, experiments.report
from experiments.common.progress import progress
assert list(progress([1, 2])) == [1, 2]
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_most_important_sizes_come_first() -> None:
    everything = mlp.default_sizes(quick=False, on_cpu=False)
    assert len(everything) == len(set(everything)) == 2 * 9 * 6 * 3
    assert everything[0] == mlp.Size("tanh", 1024, 2, 1)
    assert [size for size in everything if size.length == 1024][:3] == [
        mlp.Size("tanh", 1024, w, 1) for w in (2, 4, 8)
    ]
    assert {size.kind for size in everything[:20]} == {"tanh"}
    assert len(mlp.default_sizes(quick=False, on_cpu=True)) < 20


def test_all_directions_are_of_one_network() -> None:
    layers, x = mlp.network(mlp.Size("tanh", 5, 3, 2), seed=1)
    z = np.asarray(x)
    for w, b in zip(*map(np.asarray, (layers["w"], layers["b"])), strict=True):
        z = np.tanh(z @ w + b)
    np.testing.assert_allclose(jax.jit(mlp.forward("tanh", jax.lax.scan))(layers, x), z, rtol=1e-5)
    assert (
        mlp.step("relu", jnp.full((1, 3), -9.0), jax.tree.map(lambda leaf: leaf[0], layers)).min()
        == 0
    )
    backward = mlp.backward("tanh", jax.lax.scan)
    assert backward.prepare is not None
    pulled = jax.jit(backward.run)(*backward.prepare(layers, x))
    whole = jax.jit(mlp.gradient("tanh", jax.lax.scan))(layers, x)
    for a, b in zip(jax.tree.leaves(pulled), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
        assert np.any(np.asarray(a) != 0)
