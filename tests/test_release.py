"""What a release is made of agrees: the version, the changelog, the citation, the command line."""

import contextlib
import importlib.util
import os
import platform
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

import deeppcr
import depth

ROOT = Path(__file__).parent.parent


def command_line(*options):
    # A platform that does not exist: to start a device would raise.
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "no-such-platform"}
    command = [sys.executable, "-W", "error", "-m", "deeppcr", *options]
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)


def test_the_command_line_says_what_is_installed_and_starts_no_device():
    done = command_line("--version")
    assert done.returncode == 0, done.stderr
    numbers, folders = done.stdout.splitlines()
    assert numbers.startswith(f"deeppcr {deeppcr.__version__}, jax {jax.__version__}, ")
    assert f"numpy {np.__version__}, Python {platform.python_version()}, " in numbers
    assert numbers.endswith(platform.platform())
    here, there = (Path(package.__file__).parent for package in (deeppcr, depth))
    assert folders == f"deeppcr in {here}, depth in {there}"


@pytest.mark.parametrize(("options", "code", "where"), [([], 0, "out"), (["--verison"], 2, "err")])
def test_the_command_line_without_a_known_option_says_how_it_is_used(
    options, code, where, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["deeppcr", *options])
    with pytest.raises(SystemExit) if code else contextlib.nullcontext() as ended:
        runpy.run_module("deeppcr", run_name="__main__")
    assert not code or ended.value.code == code
    assert getattr(capsys.readouterr(), where).startswith(
        "usage: python -m deeppcr [-h] [--version]"
    )


def test_one_sentence_says_what_it_is_wherever_somebody_first_meets_it(capsys, monkeypatch):
    with (ROOT / "pyproject.toml").open("rb") as file:
        sentence = tomllib.load(file)["project"]["description"]
    monkeypatch.setattr(sys, "argv", ["deeppcr"])
    runpy.run_module("deeppcr", run_name="__main__")
    printed = capsys.readouterr().out.replace("\n", " ")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("**deeppcr m")[2]
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("site_description: ")[2]
    help_of_scan = deeppcr.scan.__doc__.partition("\n")[0]
    met = ["M" + readme.partition("**")[0], site.partition("\n")[0].strip('"')]
    met += [deeppcr.__doc__, help_of_scan, printed[printed.index("Makes") :][: len(sentence)]]
    assert [each.replace("`", "").replace("\n", " ").strip() for each in met] == [sentence] * 5


PUBLIC = [deeppcr, deeppcr.diffusion, deeppcr.layers, deeppcr.nn, deeppcr.sharding, depth]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_dir_shows_what_is_public(module):
    more = {"nn", "__version__"} if module is deeppcr else set()
    assert set(dir(module)) == more | set(module.__all__)
    assert not {each for each in dir(module) if not hasattr(module, each)}


def test_nn_is_shown_where_it_can_be_imported(monkeypatch):
    """`inspect.getmembers` and `help` take every name that is shown."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "nn" not in dir(deeppcr)


def test_the_version_is_written_once():
    with (ROOT / "pyproject.toml").open("rb") as file:
        settings = tomllib.load(file)
    assert settings["project"]["dynamic"] == ["version"]
    source = ROOT / settings["tool"]["hatch"]["version"]["path"]
    assert source.samefile(deeppcr.__file__)
    assert f'__version__ = "{deeppcr.__version__}"' in source.read_text(encoding="utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?", deeppcr.__version__)


def test_the_changelog_has_what_is_to_come_and_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *released = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert first == "Unreleased"
    dated = [re.fullmatch(r"(\S+) - \d{4}-\d\d-\d\d", title) for title in released]
    assert deeppcr.__version__ in [found and found[1] for found in dated]
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert "deprecation policy" in text.casefold()


def test_the_citation_is_of_this_version_and_of_the_paper():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(cited)  # required by the format
    assert cited["cff-version"] == "1.2.0"
    assert cited["version"] == deeppcr.__version__
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert cited["license"] == tomllib.load(file)["project"]["license"]
    (paper,) = cited["references"]
    assert {"type", "title", "authors"} <= set(paper)
    assert paper["authors"][0]["family-names"] == "Danieli"
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:2309.16318"}]


def test_workflows_run_what_is_there():
    """What they call is a target of the Makefile, or .ci/run, so that CI and GitHub do the same."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {".venv/.complete", *re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()}
    run = set()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        run |= {step["run"] for job in jobs for step in job["steps"] if "run" in step}
    assert ".ci/run" in run
    assert {line.split()[1] for line in run if line.startswith("make ")} <= targets
