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

# What a reader runs takes a minute; a part of it shows the same.
SHORTER = {
    "my_rnn_trains_faster.ipynb": {
        "steps = 1000": "steps = 400",
        "[(8, 1), (8, 64), (64, 1), (64, 64)]": "[(8, 1)]",
    },
    "my_sampler_in_ten_iterations.ipynb": {
        "jax.random.key(1), 2000)": "jax.random.key(1), 500)",
        "steps, samples = 100, 8": "steps, samples = 100, 2",
        "[(100, 1), (100, 8), (1000, 1), (1000, 8)]": "[(100, 1)]",
        '("the one here", "H100")': '("the one here", "TPU v5e")',  # which has no kernels to write
    },
}

# Each is a program of its own, in one process: to start it takes as long as to run a notebook.
RUN = """
import gc, json, sys
import matplotlib
gc.set_threshold(50_000, 50, 50)
matplotlib.use("agg")
for name, cells in json.load(sys.stdin).items():
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{name}, cell {number}", "exec"), names)
"""


def cells(name):
    return json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]


def code(name):
    return ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]


def test_every_notebook_is_run():
    assert {path.name for path in NOTEBOOKS.iterdir()} == set(SHOWN)


def shorter(name):
    """The cells of a notebook at the size of a test, and what has to hold after them."""
    first, *others = code(name)
    # Here all is installed: the first cell has to see that. The magic is no Python, an error is.
    first = re.sub(rf"^( +){INSTALL}.*$", r"\1raise ImportError", first, flags=re.MULTILINE)
    for long, short in SHORTER[name].items():
        assert sum(cell.count(long) for cell in others) == 1
        others = [cell.replace(long, short) for cell in others]
    return [first, *others, SHOWN[name]]


def test_notebooks_run_and_show_what_they_say(tmp_path):
    command = [sys.executable, "-W", "error", "-c", RUN]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        input=json.dumps({name: shorter(name) for name in SHOWN}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_install_only_what_is_missing_and_keep_no_outputs(name):
    first, *others = code(name)
    condition = r"^if find_spec\(.deeppcr.\) is None:\n    place = .*\n"
    assert re.search(rf"{condition}    {INSTALL} .* @ {{place}}\"$", first, re.MULTILINE)
    assert not any("%" + "pip" in cell or cell.startswith(("!", "%")) for cell in others)
    for cell in cells(name):
        assert cell["cell_type"] == "markdown" or (
            cell["outputs"] == [] and cell["execution_count"] is None
        )
