"""The README and the site: their Python runs and prints what it says, and nothing is missing."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import deeppcr
import deeppcr.diffusion
import depth
from experiments import report
from tests.pages import blocks, run

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
EVERY = [ROOT / "README.md", *PAGES]
SITE = "make docs installs what the site is built with"

MODULES = {"layers", "sharding", "diffusion", "extend"}  # their own names are in the reference


def test_every_python_block_and_every_example_in_docstrings_runs(tmp_path):
    """In one process: users have float32, and no strictness but that warnings are errors here."""
    pages = [str(page) for page in EVERY if "```python" in page.read_text(encoding="utf-8")]
    assert len(pages) >= 7
    command = [sys.executable, "-W", "error", "-m", "tests.pages", *pages, "deeppcr", "depth"]
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_blocks_are_found_and_keep_their_lines():
    text = "one\n```python\na = 1\n```\n```sh\nls\n```\n```python\nb = a\nc = 2\n```\n"
    assert list(blocks(text)) == ["\n\na = 1\n", "\n\n\n\n\n\n\n\nb = a\nc = 2\n"]


@pytest.mark.parametrize(
    ("comment", "is_right"),
    [
        ("# 3", True),
        ("# ...", True),
        ("x = 1  # whatever", True),
        ("# 4", False),
        ("# 3\n# 3", False),
    ],
)
def test_what_a_page_says_is_printed(comment, is_right):
    page = f"one\n\n```python\nprint(1 + 2)\n{comment}\n```\n"
    if is_right:
        run(page, "page.md")
    else:
        with pytest.raises(AssertionError, match=r"page\.md, line 4 prints\n3\n"):
            run(page, "page.md")


def test_the_readme_is_read_in_one_sitting():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 180
    assert lines.index("```python") < 40


CODE = re.compile(r"^```.*?^```|`[^`\n]+`|<!--.*?-->", re.DOTALL | re.MULTILINE)
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)


def wrong_formulas(text):
    """What of a page cannot be typeset: unknown commands, braces, headings, and stray dollars."""
    katex = (DOCS / "assets/katex/katex.min.js").read_text(encoding="utf-8")
    text = CODE.sub("", text)
    formulas = ["".join(found) for found in FORMULA.findall(text)]
    commands = {name for latex in formulas for name in re.findall(r"\\([a-zA-Z]+)", latex)}
    found = [f"\\{name}" for name in commands if f'"\\\\{name}"' not in katex]
    found += [latex for latex in formulas if latex.count("{") != latex.count("}")]
    found += [latex for latex in formulas if "&" in latex and r"\begin" not in latex]
    found += [line for line in text.splitlines() if re.match(r"#+ .*\$", line)]
    return found + [line for line in FORMULA.sub("", text).splitlines() if "$" in line]


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.name)
def test_formulas_can_be_typeset(page):
    assert not wrong_formulas(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page",
    ["It costs 5 $ a step.", r"$\blocks_l$", "Rows $a & b$.", "# About $z_l$", "$a_{l$ and $b$"],
)
def test_formulas_that_cannot_be_typeset_are_found(page):
    assert wrong_formulas(page)
    assert not wrong_formulas(r"$\lVert z_l \rVert$ in `$HOME`, $\text{so}$")


def test_formulas_are_drawn_without_a_network():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in re.findall(r"assets/katex/[\w.-]+", config):
        assert (DOCS / name).exists()
    style = (DOCS / "assets/katex/katex.min.css").read_text(encoding="utf-8")
    fonts = set(re.findall(r"url\((fonts/[\w-]+\.woff2)\)", style))
    assert len(fonts) == 20
    assert all((DOCS / "assets/katex" / font).exists() for font in fonts)
    assert "://" not in "".join(re.findall(r"extra_.*", config))


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
        for package in (deeppcr, deeppcr.diffusion, deeppcr.extend, depth)
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


@pytest.mark.parametrize("page", EVERY, ids=lambda page: page.name)
def test_no_figure_is_typed_into_prose(page):
    """Measured figures are generated from the result files: see docs/macros.py and report.py."""
    assert not figures(page.read_text(encoding="utf-8"))


def test_figures_in_prose_are_found():
    assert figures("That is 3.4x and\nmore.")
    assert not figures(f"{report.BEGIN}\n| 2.9x |\n{report.END}\n`4 ms`, 4 x 2\n```\n12 ms\n```")


MARKER = re.compile(r"<!-- \{\{ (table|pictures)\((.*)\) \}\} -->")


@functools.cache
def macros():
    """The module that fills tables and pictures in."""
    pytest.importorskip("pandas", reason=SITE)
    spec = importlib.util.spec_from_file_location("macros", DOCS / "macros.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def marked(kind):
    """The names in all markers of a kind."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    return {name for of, names in MARKER.findall(text) if of == kind
            for name in re.findall(r'"(\w+)"', names)}  # fmt: skip


def test_every_table_is_shown_and_measured():
    assert marked("table") == set(macros().TABLES)
    for name in marked("table"):
        assert "Not measured yet" not in macros().table(name), name


def test_every_picture_is_shown():
    drawn = {path.stem for path in (ROOT / "experiments/results").rglob("*.png")}
    assert marked("pictures") == drawn - {"headline"}


def test_a_marker_that_names_nothing_is_an_error():
    with pytest.raises(ValueError, match="no table is called 'fun'; there are: gradients_memory, "):
        macros().table("fun")
    with pytest.raises(ValueError, match=r"there is no picture fun\.png in "):
        macros().pictures(["fun"])


def toy(monkeypatch, experiment, rows):
    """The only results there are."""
    head = {"processor": "Toy", "cores": 1, "jax": "0.10.2", "time": "2026-01-02T03"}
    head["commit"] = 40 * "a"
    device = report.Device(Path("toy/jax-0.10"), {experiment: [head]}, {experiment: rows})
    monkeypatch.setattr(macros(), "devices", lambda: [device])


def test_a_table_of_the_site_is_made_of_rows(monkeypatch):
    row = {"part": "width", "chain": "gru", "w": 2, "L": 64, "program": "lax.scan", "ms": 2.0}
    dense = {"program": "dense", "baseline": False, "ms": 5000.0, "speedup": 1 / 2500}
    rows = [
        row | {"baseline": True, "speedup": 1.0},
        row | dense | {"iterations": 5, "ended": "converged", "temp MB": 1.5},
    ]
    toy(monkeypatch, "iterations", rows)
    lines = macros().table("iterations_width").splitlines()
    assert "| 2 | 64 | 5 (2,500x) |" in lines
    assert (
        '<p class="source">toy: Toy, 1 core, jax 0.10.2, commit aaaaaaa, 2026-01-02.</p>' in lines
    )
    assert macros().table("diffusion_rounding") == "*Not measured yet.*"


def test_long_words_in_a_table_are_broken_into_lines(monkeypatch):
    """Else they push the last columns off the page."""
    note = "sequential, unroll 4 / blocks, sequential"
    row = {"part": "regret", "kind": "gru", "fastest": note, "regret %": 3.0, "noise %": 1.0}
    toy(monkeypatch, "decide", [row])
    (line,) = (line for line in macros().table("decide_worst").splitlines() if "gru" in line)
    assert f'<span class="wide">{note}</span> | 3 | 1 |' in line
    assert ".wide {" in (DOCS / "style.css").read_text(encoding="utf-8")


TOY = '''
__all__ = ["step"]


def step(z: float) -> None:
    r"""One step, $\\lambda_{l-1}$.

    Args:
        z: a state, of shape $w$.
    """
'''


def test_a_page_is_filled_and_formulas_are_marked(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs_macros", reason=SITE)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(ROOT)
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "docs/__pycache__").mkdir(parents=True)
    (tmp_path / "docs/__pycache__/macros.cpython-311.pyc").touch()
    page = 'A state $z_l$ in `$HOME`.\n\n<!-- {{ table("calls_eager") }} -->\n\n::: toy.step\n'
    (tmp_path / "docs/index.md").write_text(page + '\n--8<-- "CHANGELOG.md"\n')
    places = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
    config = load_config(str(ROOT / "mkdocs.yml"), nav=["index.md"], **places)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    html = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert r'<span class="arithmatex">\(z_l\)</span>' in html
    assert r"\lambda_{l-1}" in html  # of the docstring
    assert html.count("$HOME") == 1
    assert "solve_bidiagonal" in html  # of the table
    assert "Unreleased" in html  # of the changelog
    pictures = {path.relative_to(ROOT) for path in ROOT.glob("experiments/results/*/*/mlp.png")}
    assert pictures
    assert all((tmp_path / "site" / path).exists() for path in pictures)
    assert not (tmp_path / "site/__pycache__").exists()


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:[^:\n]+: )?([\w/]+\.md)$", config, re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)
