"""The documentation: its Python runs and prints what it says; its reference is complete."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import deeppcr
import deeppcr.diffusion
import depth
from experiments import report

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

MODULES = {"layers", "sharding", "diffusion"}  # their own names are in the reference


def test_every_python_block_and_every_example_in_docstrings_runs(tmp_path):
    """In one process: users have float32, and no strictness but that warnings are errors here."""
    every = [ROOT / "README.md", *PAGES]
    pages = [str(page) for page in every if "```python" in page.read_text(encoding="utf-8")]
    assert len(pages) >= 7
    command = [sys.executable, "-W", "error", "-m", "tests.pages", *pages, "deeppcr", "depth"]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


FORMULAS = r"""# A page

A state $z_l$ in `$HOME`, and a block:

$$
A_l \approx \frac{\partial f}{\partial z}, \quad \max_l r_l < 1
$$

```sh
echo $HOME
```

::: toy.step
"""

TOY = '''
__all__ = ["step"]


def step(z: float) -> None:
    r"""One step, $\\lambda_{l-1}$.

    Args:
        z: a state, of shape $w$.
    """
'''


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Builds a site of one page, as ours is built, and returns its main part."""
    pytest.importorskip("mkdocs", reason="make docs installs what the site is built with")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    def built(markdown):
        pages = tmp_path / "docs"
        pages.mkdir()
        (pages / "index.md").write_text(markdown)
        config = load_config(
            str(ROOT / "mkdocs.yml"),
            docs_dir=str(pages),
            site_dir=str(tmp_path / "site"),
            nav=["index.md"],
        )
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        html = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
        return html[html.index("<article") : html.index("</article")]

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "toy.py").write_text(TOY)
    return built


def test_formulas_are_typeset(site):
    html = site(FORMULAS)
    assert "<msub><mi>z</mi><mi>l</mi></msub>" in html
    assert "<munder><mi>max</mi>" in html
    assert "<msub><mi>λ</mi>" in html  # of the docstring
    assert html.count("<math") == 4
    assert html.count("$HOME") == 2
    assert "$" not in re.sub(r"<(pre|code).*?</\1>", "", html, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("It costs 5 $ a step.", "a dollar sign outside of formulas and code: 'It costs 5"),
        (r"Blocks $\blocks_l$.", r"\blocks is not known to latex2mathml"),
        ("Rows $a & b$.", "an & outside of a matrix"),
        ("# About $z_l$", "a formula in a heading"),
    ],
)
def test_what_cannot_be_typeset_stops_the_build(site, caplog, page, complaint):
    with pytest.raises(Exception, match="BuildError"):
        site(page)
    assert complaint in caplog.text


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


FIGURE = re.compile(
    r"""
    \d\s?[x×]\b(?!\s?\d)                                          # 2.9x
    | \d\s?%                                                       # 35 %
    | \d\s?(ns|us|µs|ms|s|(nano|micro|milli)?seconds?|minutes?)\b    # 12 ms
    | \d\s?([kKMG]i?B|bytes)\b                                      # 16 MB
    | \d\s+times\b                                                 # 5 times as long
    | \b(two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred)\s+times\s+
      (as|the|faster|slower|longer|shorter|less|more|fewer)\b       # ten times faster
    | \bfactor\s+of\s+\d                                           # within a factor of 2
    | \btakes?\s+\d+(\s+to\s+\d+)?(\s+\w+)?\s+iterations\b         # takes 24 damped iterations
    | \b\d+\s+to\s+\d+\s+iterations\b                              # 25 to 83 iterations
    """,
    re.VERBOSE,
)
GENERATED = re.compile(
    r"<!-- results: .*?<!-- end of results -->|<!-- measured: \w+ -->.*?<!-- end -->"  # by report.py
    r"|^```.*?^```|`[^`\n]+`|\$\$.*?\$\$|\$[^$\n]+\$|<!--.*?-->",  # code, formulas, comments
    re.DOTALL | re.MULTILINE,
)


def figures(text):
    """What of the prose of a page looks like a measured figure, with some words around it."""
    prose = " ".join(GENERATED.sub("-", text).split())
    return [
        prose[max(found.start() - 40, 0) : found.end() + 20] for found in FIGURE.finditer(prose)
    ]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_no_figure_is_typed_into_prose(page):
    """Measured figures are generated from the result files: see docs/measured.py and report.py."""
    assert not figures(page.read_text(encoding="utf-8"))


def test_figures_in_prose_are_found():
    assert figures("That is 3.4x and\nmore.")
    assert not figures(f"{report.BEGIN}\n| 2.9x |\n{report.END}\n`4 ms`, 4 x 2\n```\n12 ms\n```")


def module(name):
    """A module of ``docs`` that the site is built with."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def measured():
    """The module that fills tables and pictures in."""
    return module("measured")


def test_the_changelog_is_that_of_the_repository(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs", reason="make docs installs what the site is built with")
    monkeypatch.syspath_prepend(DOCS)
    hooks = module("hooks")
    monkeypatch.setattr(hooks, "ROOT", tmp_path)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="changelog.md"))
    assert hooks.on_page_markdown("# Changes", page) == "# Changes"  # not written yet
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n")
    assert hooks.on_page_markdown("# Changes", page) == "# Changelog\n"


def test_a_link_to_the_repository_appears_once_it_is_known(monkeypatch):
    pytest.importorskip("mkdocs", reason="make docs installs what the site is built with")
    from mkdocs.config import load_config

    monkeypatch.delenv("DEEPPCR_REPOSITORY", raising=False)
    assert not load_config(str(ROOT / "mkdocs.yml")).repo_url
    monkeypatch.setenv("DEEPPCR_REPOSITORY", "https://git.example.org/toy")
    assert load_config(str(ROOT / "mkdocs.yml")).repo_url == "https://git.example.org/toy"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_tables_and_pictures_of_pages_are_there(measured, page):
    text = measured.fill(page.read_text(encoding="utf-8"), up="")
    assert not re.findall(r"<!-- (?:table|picture).*", text)
    assert "Not measured yet" not in text


def test_all_that_is_measured_is_shown(measured):
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    tables = set(re.findall(r"<!-- table: (\w+) -->", text))
    assert tables == set(measured.TABLES)
    filled = "\n".join(measured.fill(page.read_text(encoding="utf-8"), up="") for page in PAGES)
    drawn = {path.name for path in (ROOT / "experiments/results").rglob("*.png")}
    assert drawn - {"headline.png"} == set(re.findall(r"\]\([^)]*/(\w+\.png)\)\]", filled))


def test_a_marker_that_names_nothing_is_an_error(measured):
    with pytest.raises(ValueError, match="no table is called 'fun'; there are: overview, "):
        measured.fill("<!-- table: fun -->", up="")
    with pytest.raises(ValueError, match=r"there is no picture fun\.png in "):
        measured.fill("<!-- pictures: fun -->", up="")


def test_pictures_say_where_they_are(measured, tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    for name in ("mlp", "mlp_forward", "mlp_times"):
        (tmp_path / "toy" / f"{name}.png").write_bytes(b"")
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    text = measured.fill("<!-- picture: mlp_times -->\n<!-- pictures: mlp -->\n", up="../")
    place = "../experiments/results/toy/{}.png"
    shown = [place.format(name) for name in ("mlp_times", "mlp", "mlp_forward")]
    assert re.findall(r"!\[[^]]*\]\(([^)]*)\)", text) == shown


def test_a_table_of_the_site_is_made_of_rows(measured, monkeypatch):
    row = {"part": "width", "chain": "gru", "w": 2, "L": 64, "ms": 2.0, "temp MB": 1.5}
    rows = [
        row | {"program": "lax.scan", "baseline": True},
        row | {"program": "dense", "baseline": False, "ms": 5000.0, "speedup": 1 / 2500}
        | {"iterations": 5, "ended": "converged"},
    ]  # fmt: skip
    rows = [{key: line[key] for key in (*list(row)[:4], "program", *line)} for line in rows]
    head = {"processor": "Toy", "cores": 1, "jax": "0.10.2", "time": "2026-01-02T03"}
    toy = report.Device("toy", ROOT, {"iterations": [head]}, {"iterations": rows})
    monkeypatch.setattr(measured, "devices", lambda: [toy])
    lines = measured.fill("<!-- table: iterations_width -->", up="").splitlines()
    assert "| 2 | 64 | 2 | 5 (2,500x) | 1.5 |" in lines
    assert '<p class="source">toy: Toy, 1 core, jax 0.10.2, 2026-01-02.</p>' in lines


def test_counts_of_a_sampler_are_listed_by_its_number_of_steps(measured):
    row = {"part": "iterations", "scheduler": "Heun", "program": "dense", "ended": "converged"}
    row |= {"tolerance": "rounding"}
    rows = [
        row | {"L": 1000, "iterations": 6},
        row | {"L": 50, "iterations": 5},
        row | {"L": 50, "iterations": 2, "tolerance": "1e-3"},
        row | {"L": 50, "iterations": 312, "program": "diagonal", "ended": "not converged"},
        {key: row[key] for key in ("part", "scheduler", "program", "tolerance")}
        | {"L": 1000, "program": "diagonal", "note": "not run"},
    ]
    assert measured.diffusion_rounding({"diffusion": rows}) == [
        {
            "scheduler": "Heun",
            "dense, 50 / 1000 steps": "5 / 6",
            "diagonal, 50 / 1000 steps": "over 312 / -",
        }
    ]
    assert measured.diffusion_rounding({}) == []


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", config, re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)
