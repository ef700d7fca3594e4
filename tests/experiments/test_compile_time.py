"""The experiments on compile and analysis time: every way computes the same, and the tables come out."""

import jax
import jax.numpy as jnp
import pytest

from experiments import analysis, compile_time, training_loop


@pytest.fixture(autouse=True)
def as_users_have_it():
    """float32, and the usual promotion: what the experiments are run with."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_all_ways_to_compile_compute_the_same():
    x = jnp.linspace(-1, 1, compile_time.BATCH * compile_time.WIDTH).reshape(compile_time.BATCH, compile_time.WIDTH)
    results = [jax.jit(run)(make(3), x) for make, run in compile_time.WAYS.values()]
    assert all(jnp.allclose(result, results[0], atol=1e-5) for result in results)


def test_compile_time_prints_a_table_and_draws(capsys, tmp_path):
    compile_time.main(["--lengths", "1", "2", "--repeats", "1", "--plot", str(tmp_path / "times.png")])
    printed = capsys.readouterr().out
    assert all(name in printed for name in compile_time.WAYS)
    assert (tmp_path / "times.png").stat().st_size > 1000


def test_all_training_loops_train_the_same(monkeypatch, capsys):
    monkeypatch.setattr(training_loop, "STEPS", 3)
    monkeypatch.setattr(training_loop, "MODULES", 3)
    training_loop.main(["--repeats", "1"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    losses = [float(row[-1]) for row in rows]
    assert len(losses) == len(training_loop.WAYS)
    assert max(losses) - min(losses) < 1e-3 * max(losses)


def test_analysis_prints_a_table(monkeypatch, capsys):
    small = [
        ("straight line", analysis.straight(30, 2)),
        ("5 doublings", analysis.doublings(5)),
        ("training", analysis.training(2, 10)),
    ]
    monkeypatch.setattr(analysis, "programs", lambda: iter(small))
    analysis.main([])
    printed = capsys.readouterr().out
    assert "straight line" in printed
    assert " 32 " in printed  # 2^5 sines
