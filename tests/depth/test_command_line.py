"""``python -m depth``: what it prints of functions, and what it says of bad input."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import depth
from depth.__main__ import argument, main

ROOT = Path(__file__).parents[2]
MODEL = '''
import numpy as np
import jax
import jax.numpy as jnp
from helper_of_the_model import scale


class Model:
    @staticmethod
    def step(w, x):
        return jnp.tanh(w @ x)


def step(w, x):
    """Depth 1 + 3 + 1."""
    return jnp.tanh(w @ x)


def sines(x):
    return scale(jnp.sin(jnp.sin(x)))


def until(x):
    return jax.lax.while_loop(lambda x: x[0] < 9, lambda x: x * 2, x)


def nothing():
    return jnp.zeros(3)


def host(x):
    return jnp.asarray(np.sin(x))


def lost(x):
    return unknown + x


def text(x):
    return "text"


weights = 3
added = jax.tree_util.Partial(step, weights)
'''


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with a file and a module; what a run changes of the interpreter is put back."""
    for name in ("model_file.py", "model_module.py", "inside/model_inside.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(MODEL)
        Path(path.parent, "helper_of_the_model.py").write_text("def scale(x):\n    return x * 2\n")
    monkeypatch.chdir(tmp_path)
    known, path, x64 = set(sys.modules), list(sys.path), jax.config.read("jax_enable_x64")
    yield tmp_path
    for name in set(sys.modules) - known:
        if "model" in name:
            del sys.modules[name]
    sys.path[:] = path
    jax.config.update("jax_enable_x64", x64)


@pytest.fixture
def run(capsys):
    """Runs it, and hands back what is printed."""

    def run(*argv):
        main(list(argv))
        output = capsys.readouterr()
        assert output.err == ""
        return output.out

    return run


def depth_in(text):
    """The depth that is printed."""
    (found,) = re.findall(r"^depth +(?:>= )?([\d,]+)$", text, re.MULTILINE)
    return int(found.replace(",", ""))


NAMED = ["./model_file.py:step", "inside/model_inside.py:step", "inside.model_inside:step"]


# -- functions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", NAMED)
def test_a_function_and_the_types_of_its_arguments(run, named, monkeypatch):
    monkeypatch.syspath_prepend("inside")
    text = run(named, "f32[8,8]", "f32[8]")
    assert depth_in(text) == 5
    assert "dot_general" in text
    assert "model_" in text.splitlines()[-1], "the critical path names lines of the file"


def test_a_file_by_its_full_path_and_what_it_imports_from_beside(run, place, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert depth_in(run(f"{place}/inside/model_inside.py:sines", "f32[8]")) == 3
    assert depth_in(run(f"{place}/model_file.py:nothing")) == 0
    Path(place, "model_data.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Sizes:\n    width: int = 3\n\n\ndef step(x):\n    return x + Sizes().width\n"
    )
    assert depth_in(run(f"{place}/model_data.py:step", "f32[8]")) == 1


def test_a_name_inside_another_in_a_process_of_its_own():
    command = [sys.executable, "-m", "depth", "model_file.py:Model.step", "f32[8,8]", "f32[8]"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (depth_in(done.stdout), done.stderr) == (5, "")


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_device_wherever_it_is_given_adds_a_time(run, at):
    """A launch of a call and two kernels: 72 + 2 * 2.5 us, and next to no work."""
    argv = ["model_file.py:step", "f32[8,8]", "f32[8]"]
    argv[at:at] = ["--device", "H100"]
    assert run(*argv).splitlines()[-2:] == ["", "predicted  77 us on H100"]
    assert f" on {depth.at_hand().name}\n" in run(*["here" if x == "H100" else x for x in argv])


def test_trip_counts(run):
    assert "a lower bound, since" in run("model_file.py:until", "f32[8]")
    text = run("model_file.py:until", "f32[8]", "--trip-counts", "7")
    assert depth_in(text) == 15  # 7 comparisons and products, and the comparison that ends it
    assert ">=" not in text


TYPES = {
    "f32[8,16]": ((8, 16), "float32"),
    " f32[8, 16] ": ((8, 16), "float32"),
    "bf16[3]": ((3,), "bfloat16"),
    "pred[0]": ((0,), "bool"),
    "c128[3]": ((3,), "complex128"),
    "i64[3]": ((3,), "int64"),
    "u8[3]": ((3,), "uint8"),
}


@pytest.mark.parametrize("text", TYPES)
def test_types(text):
    got = argument(text)
    assert (got.shape, got.dtype) == TYPES[text]


@pytest.mark.parametrize("named", ["model_file.py", "model_module"])
def test_wide_types_are_wide_without_x64_and_the_interpreter_stays_as_it_was(run, named):
    jax.config.update("jax_enable_x64", False)
    before = list(sys.path)
    text = run(f"{named}:sines", "f64[8]")
    assert "bytes    392, " in text  # three times 64 in and 64 out, and the 2
    assert "bytes    196, " in run(f"{named}:sines", "f32[8]")
    assert jax.config.read("jax_enable_x64") is False
    assert sys.path == before


LINES = MODEL.splitlines()
BAD = {
    "nothing": ([], "function"),
    "one type of two": (["model_file.py:step", "f32[8]"], "missing a required argument: 'x'"),
    "types that do not fit": (
        ["model_file.py:step", "f32[3,4]", "f32[5]"],
        f"error: model_file.py:{LINES.index('def step(w, x):') + 3}: TypeError: dot_general requires contracting dimensions to have",
    ),
    "an array for numpy": (
        ["model_module:host", "f32[3]"],
        f"error: model_module.py:{LINES.index('def host(x):') + 2}: TracerArrayConversionError: The numpy.ndarray conversion",
    ),
    "a mistake": (["model_file.py:lost", "f32[3]"], "py:36: NameError: name 'unknown' is not"),
    "no arguments for an object": (["model_file.py:added"], "error: Partial: missing a required"),
    "no signature": (["builtins:max", "f32[3]"], "error: max: TracerBoolConversionError"),
    "no array": (["model_file.py:text", "f32[3]"], "error: text: TypeError: function text at"),
    "an unknown dtype": (["model_file.py:step", "f99[8]"], "f99[8]"),
    "a missing function": (["model_file.py:stop"], "stop"),
    "no separator": (["model_file.py"], "model_file.py"),
    "a missing file": (["model_lost.py:step"], "model_lost.py"),
    "a missing module": (["model_lost.inside:step"], "model_lost"),
    "an unknown device": (["model_file.py:sines", "--device", "H300"], "H300"),
    "negative trips": (["model_file.py:sines", "--trip-counts", "-1"], "-1"),
}


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("argv", "named"), BAD.values(), ids=BAD)
def test_bad_input_is_named(capsys, argv, named):
    with pytest.raises(SystemExit) as stopped:
        main(list(argv))
    output = capsys.readouterr()
    assert (stopped.value.code, output.out) == (2, "")
    assert "usage: python -m depth" in output.err
    assert named in output.err.splitlines()[-1]
