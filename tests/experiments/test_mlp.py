"""The experiment on multilayer perceptrons, from start to end at a size that takes seconds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bench.engine import Variant
from experiments.mlp import run as mlp


def test_the_command_runs_from_start_to_end(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "LOOPS", dict.fromkeys(mlp.DIRECTIONS, 0))
    monkeypatch.setitem(mlp.VARIANTS, "backward", {"blocks": mlp.VARIANTS["backward"]["blocks"]})
    sizes = ("--lengths", "12", "--widths", "2", "--directions", "forward", "backward")
    rows, _ = run_command(mlp, *sizes, "--repeats", "1")
    assert [row["direction"] for row in rows if row["baseline"]] == ["forward", "backward"]
    keys = ("kind", "L", "w", "batch")
    assert {tuple(row[key] for key in keys) for row in rows} == {("tanh", 12, 2, 1)}
    assert not [row for row in rows if "note" in row]
    assert all(row["depth"] > 0 and row["predicted ms"] > 0 and row["speedup"] > 0 for row in rows)
    assert {row["program"] for row in rows if "iterations" in row} == {"auto", "newton"}


def test_a_gradient_is_had_in_every_way() -> None:
    case = mlp.case(mlp.Size("relu", 12, 2, 1), "gradient")
    assert list(case.variants) == ["auto", "sequential / blocks", "newton / blocks"]
    counted = {name for name, program in case.variants.items() if isinstance(program, Variant)}
    assert counted == {"auto", "newton / blocks"}  # how many iterations they take
    (one, x), (other, _) = case.arguments
    assert one["w"].shape == (12, 2, 2)
    assert x.shape == (1, 2)
    assert not jnp.allclose(one["w"], other["w"])


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
