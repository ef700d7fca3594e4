"""The experiment on eager calls: every program computes the same, and nothing is compiled twice."""

import jax
import pytest

from experiments import calls


@pytest.fixture(autouse=True)
def as_users_have_it():
    """float32, and the usual promotion: what the experiments are run with."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        yield


def test_the_command_runs_from_start_to_end(run_command, monkeypatch) -> None:
    every = calls.entries(4, 2)
    newton = {"forward", "solve_bidiagonal"}
    few = {
        entry: {
            name: call for name, call in found.items() if entry in newton or "newton" not in name
        }
        for entry, found in every.items()
    }
    monkeypatch.setattr(calls, "entries", lambda length, layers: few)
    rows, _ = run_command(calls, "--length", "4", "--layers", "2", "--calls", "1")
    assert {row["entry"] for row in rows} == set(every)
    for row in rows:
        assert row["error"] < 1e-5
        assert min(row["first ms"], row["second ms"], row["later ms"]) > 0
        if row["program"].startswith("deeppcr"):
            assert row["compiled"].endswith(", 0, 0")
