"""The notebooks run from the first cell to the last, and show what they say they show."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"
INSTALL = "%pip install"

# What has to hold of the names that a notebook leaves behind, beside the assertions in its cells.
SHOWN = {
    "my_rnn_trains_faster.ipynb": """
losses = {name: found[1] for name, found in runs.items()}
assert list(losses) == ["jax.lax.scan", "the same, unrolled", "deeppcr.scan"]
for found in losses.values():
    assert found.shape == (steps,)
    np.testing.assert_allclose(found, losses["jax.lax.scan"], rtol=1e-2)
assert losses["deeppcr.scan"][-1] < 0.1 * losses["deeppcr.scan"][0]
""",
    "my_sampler_in_ten_iterations.ipynb": """
assert losses[-100:].mean() < 0.3 * losses[0]
for name, solution in found.items():
    np.testing.assert_allclose(solution.value, sequential.value, atol=1e-3)
    apart = [float(jnp.abs(images - sequential.value).max()) for images in history[name]]
    assert len(apart) <= 11
    assert apart[0] > 1
    assert apart[-1] < 0.05
assert found["Newton"].stats.iterations < 10
""",
}

RUN = """
import json, sys
import matplotlib
matplotlib.use("agg")
for number, cell in enumerate(json.load(sys.stdin)):
    exec(compile(cell, f"cell {number}", "exec"))
"""


def cells(name):
    return json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]


def code(name):
    return ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]


def test_every_notebook_is_run():
    assert {path.name for path in NOTEBOOKS.iterdir()} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_run_and_show_what_they_say(name, tmp_path):
    first, *others = code(name)
    # Here all is installed: the first cell has to see that. The magic is no Python, an error is.
    first = re.sub(rf"^( +){INSTALL}.*$", r"\1raise ImportError", first, flags=re.MULTILINE)
    command = [sys.executable, "-W", "error", "-c", RUN]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        input=json.dumps([first, *others, SHOWN[name]]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_install_only_what_is_missing_and_keep_no_outputs(name):
    first, *others = code(name)
    assert re.search(rf"^if find_spec\(.deeppcr.\) is None:\n    {INSTALL} ", first, re.MULTILINE)
    assert not any("%" + "pip" in cell or cell.startswith(("!", "%")) for cell in others)
    for cell in cells(name):
        assert cell["cell_type"] == "markdown" or (
            cell["outputs"] == [] and cell["execution_count"] is None
        )
