"""Results are older than the code where the programs that they are of have changed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from experiments.bench import fresh, results
from experiments.bench.engine import Case, Variant

ROOT = Path(__file__).parents[2]


def samples(program: Callable[..., Any]) -> SimpleNamespace:
    """An experiment on one program, and on a loop, which does not count."""
    given = Variant(program, prepare=lambda x: (x + 1,))
    case = Case({"L": 3}, [(jnp.ones(3, jnp.float32),)], {"lax.scan": jnp.sin}, {"auto": given})
    return SimpleNamespace(samples=lambda: [case])


def test_results_are_old_where_another_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = jax.jit(lambda x: jnp.where(x > 0, x, 2.0))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "experiment", lambda name: samples(lambda x: program(x)))
    path, row = results.path_of("toy"), {"L": 3}
    assert fresh.old("toy") == "not measured"
    results.write(path, [row])
    assert "nobody knows" in fresh.old("toy")
    results.write(path, [row], programs=fresh.digests("toy"))
    assert not fresh.old("toy")

    @jax.jit
    def renamed(x: Any) -> Any:
        return jnp.where(x > 0, x, 2.0)

    monkeypatch.setattr(results, "experiment", lambda name: samples(renamed))
    assert not fresh.old("toy")
    monkeypatch.setattr(results, "experiment", lambda name: samples(lambda x: x + 1))
    assert fresh.old("toy").endswith("other programs run: 3: auto")
    # Rows that were kept are older than those that were measured anew.
    older = results.groups(path)
    results.write(path, [row | {"batch": 1}], older, programs=fresh.digests("toy"))
    assert "other programs" in fresh.old("toy")
    with monkeypatch.context() as other:
        other.setattr(jax, "__version__", f"{results.version()}.99")
        assert not fresh.old("toy")  # whose programs are not those of this jax


def test_the_results_of_this_jax_are_of_the_programs_that_run() -> None:
    """In a process of its own: tests compile in a hurry, in float64."""
    if not (folder := results.path_of("").parent).exists():
        pytest.skip(f"nothing is measured with the jax of {folder.name}")
    line = [sys.executable, "-m", "experiments", "suite", "--check"]
    environment = {key: os.environ[key] for key in os.environ if key != "XLA_FLAGS"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "programs" in done.stdout + done.stderr, done.stderr
    assert "other programs run" not in done.stdout, done.stdout
    assert not done.returncode, done.stderr
