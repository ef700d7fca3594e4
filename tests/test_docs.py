"""The documentation: its Python runs and prints what it says; its reference is complete."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import deeppcr
import deeppcr.diffusion
import depth

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

MODULES = {"layers", "sharding", "diffusion"}  # their own names are in the reference


def test_every_python_block_runs(tmp_path):
    pages = [str(page) for page in PAGES if "```python" in page.read_text(encoding="utf-8")]
    assert len(pages) >= 6
    command = [sys.executable, "-W", "error", "-m", "tests.pages", *pages]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_has_every_public_name():
    reference = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    # A function with the name of its module is found by its full name, shown by the public one.
    shown = [
        heading or name
        for name, heading in re.findall(
            r"^::: (\S+)(?:\n +options: {heading: ([\w.]+))?", reference, re.MULTILINE
        )
    ]
    public = {
        f"{package.__name__}.{name}"
        for package in (deeppcr, deeppcr.diffusion, depth)
        for name in package.__all__
    }
    missing = public - {f"deeppcr.{name}" for name in MODULES} - set(shown)
    assert not missing
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_pages_link_to_what_is_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", config, re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)
