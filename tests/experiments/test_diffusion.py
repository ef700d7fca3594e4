"""Diffusion sampling: quality by hand, the cache of trained models, and the command in small."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from deeppcr import Newton
from experiments.diffusion import latent
from experiments.diffusion import run as diffusion
from experiments.diffusion.sampling import DRAWS, Setup, schedule_of, wasserstein
from experiments.models import training

BRIEF = latent.Training(width=8, steps=2, coder_width=8, coder_steps=2, judge_steps=2)
TINY = diffusion.Scale(
    sizes=(2,),
    steps=(4,),
    batches=(10,),
    middle=(2, 4, 10),
    stopped=(2,),
    stopped_batch=10,
    methods=(),  # see test_all_draws_differ_and_every_sampler_makes_the_same_of_them
    counts=(("picard", (1,)),),
    training=BRIEF,
    longest_loop=0,
)
SAMPLES = {"W1 to sequential", "same class"}
SETS = {"W1, other noise", "accuracy"}
TIMED = {
    "depth speedup",
    *["kind", "w", "L", "batch", "direction", "program", "baseline", "ms", "error", "speedup"],
}


def untrained(
    loss: Any, first: training.Params, steps: int, rate: float, key: jax.Array
) -> training.Params:
    """In the place of `training.train`: nothing is learnt, but the loss can be differentiated."""
    gradient = jax.eval_shape(jax.grad(loss), first, key)
    assert jax.tree.map(jnp.shape, gradient) == jax.tree.map(jnp.shape, first)
    return first


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for weights that is this module's alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CACHE", tmp_path_factory.mktemp("cache"))
        patch.setattr(latent, "train", untrained)
        yield


@pytest.fixture(scope="module")
def generator() -> latent.Generator:
    return latent.generator(2, BRIEF)


def test_samples_that_are_shifted_are_as_far_as_the_shift() -> None:
    samples = np.random.default_rng(0).normal(size=(50, 3))
    assert wasserstein(samples, samples[::-1]) == 0
    assert wasserstein(samples, samples + np.array([1.0, -2.0, 0.0])) == pytest.approx(1.0)
    a, b = np.array([[0.0], [1.0]]), np.array([[0.0], [0.0], [1.0], [5.0]])
    # F - G: 1/2 - 1/2 from 0 to 1, 1 - 3/4 from 1 to 5
    assert wasserstein(a, b) == wasserstein(b, a) == 1.0


def test_what_was_trained_is_read_again_and_remade_if_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []
    monkeypatch.setattr(
        latent, "train", lambda *arguments: calls.append(1) or untrained(*arguments)
    )
    monkeypatch.setattr(training, "CACHE", tmp_path)
    first = latent.judge(BRIEF)
    (file,) = tmp_path.iterdir()
    again = latent.judge(BRIEF)
    assert len(calls) == 1
    images = latent.data.pixels()[0][:9]
    np.testing.assert_array_equal(first(images), again(images))
    file.write_bytes(file.read_bytes()[:1000])
    latent.judge(BRIEF)
    assert len(calls) == 2
    latent.judge(BRIEF)
    assert len(calls) == 2  # it was written anew
    latent.judge(dataclasses.replace(BRIEF, seed=1))
    assert len(calls) == 3
    assert len(list(tmp_path.iterdir())) == 2  # and nothing else is left there


def test_all_draws_differ_and_every_sampler_makes_the_same_of_them(
    generator: latent.Generator,
) -> None:
    setup = Setup(generator, schedule_of("DDPM"), 4, 10)
    arguments = setup.arguments()
    assert len(arguments) == DRAWS
    assert len({float(x[0, 0]) for _, x, _, _ in arguments}) == DRAWS
    assert setup.labels.tolist() == [*range(10)] * DRAWS
    run, found = jax.jit(setup.sequential()), []
    variant = setup.variant({"method": Newton(window=2), "coarse": 2}, found)
    expected = [run(*each) for each in arguments]
    for each, samples in zip(arguments, expected, strict=True):
        np.testing.assert_allclose(variant.solve(*each).value, samples, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(setup.images(found), setup.images(expected), rtol=1e-4, atol=1e-4)
    noise = jnp.concatenate([x for _, x, _, _ in arguments])  # rounding depends on the batch size
    np.testing.assert_array_equal(setup.noise(), generator.decode(noise))


def test_the_command_runs_from_start_to_end(run_command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "QUICK", TINY)
    rows, text = run_command(diffusion, "--quick", "--repeats", "1")
    assert "speed: kind = latent, L = 4, w = 2, batch = 10, direction = forward\n" in text
    speed, stopped = ([row for row in rows if row["part"] == part] for part in ("speed", "stopped"))
    assert len(speed) + len(stopped) == len(rows)
    parallel = [row for row in speed if not row["baseline"]]
    assert [row["program"] for row in parallel] == ["auto"]
    for row in speed:
        assert set(row) >= TIMED
        assert row["error"] < 1e-4
    first, loose, last = (row for row in stopped if not row["baseline"])
    assert (first["program"], first["ended"], first["iterations"]) == (
        "picard, 1",
        "not converged",
        1,
    )
    assert loose["program"] == "picard, rtol 0.01"
    assert first["iterations"] < loose["iterations"] <= last["iterations"]
    assert (last["program"], last["ended"]) == ("picard, converged", "converged")
    assert first["W1 to sequential"] > 10 * last["W1 to sequential"]
    assert first["error"] > 10 * last["error"]
    assert set(last) >= TIMED - {"speedup"} | SAMPLES | SETS
    assert last["same class"] == 1


def test_iterations_by_scheduler_and_tolerance(
    run_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = dataclasses.replace(TINY, methods=("picard", "diagonal"), schedulers=("Heun",))
    monkeypatch.setattr(diffusion, "QUICK", scale)
    monkeypatch.setattr(diffusion, "MOST_COLUMNS", 1)  # one iteration of diagonal Newton
    rows, text = run_command(diffusion, "--quick", "--parts", "iterations")
    assert "iterations: " in text
    assert {(row["scheduler"], row["L"]) for row in rows} == {("Heun", 4)}
    counted, stopped = (
        {row["tolerance"]: row for row in rows if row["program"] == method}
        for method in scale.methods
    )
    assert list(counted) == list(stopped) == ["1e-3", "noise", "rounding"]
    last = counted["rounding"]
    assert last["error"] < 1e-5
    for row in counted.values():
        assert row["ended"] == "converged"
        assert 1 <= row["iterations"] <= last["iterations"]
    assert "ms" not in last
    # A count that is stopped says so; then so is one to a stricter tolerance, without a solve.
    first, other, last = stopped.values()
    assert (first["iterations"], first["ended"]) == (1, "not converged")
    assert first["note"].startswith("stopped: ")
    assert first["error"] > 1e-3
    assert (last["iterations"], last["ended"]) == (1, "not converged")
    assert last["note"] == other["note"] == "not run: 1e-3 takes too long"
    assert "iterations" not in other
