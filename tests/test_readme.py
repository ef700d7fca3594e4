"""How pages are run and what they promise is read; `tests.test_docs` runs the README and the site."""

from pathlib import Path

import pytest

from tests.pages import blocks, run

ROOT = Path(__file__).parent.parent


def test_blocks_are_found_and_keep_their_lines():
    text = "one\n```python\na = 1\n```\n```sh\nls\n```\n```python\nb = a\nc = 2\n```\n"
    assert list(blocks(text)) == ["\n\na = 1\n", "\n\n\n\n\n\n\n\nb = a\nc = 2\n"]


@pytest.mark.parametrize("comment", ["# 3", "# ...", "x = 1  # whatever"])
def test_what_a_page_says_is_printed(comment):
    run(f"```python\nprint(1 + 2)\n{comment}\n```\n", "page.md")


@pytest.mark.parametrize("comment", ["# 4", "# 3\n# 3"])
def test_what_is_not_printed_is_found(comment):
    with pytest.raises(AssertionError, match=r"page\.md, line 4 prints\n3\n"):
        run(f"one\n\n```python\nprint(1 + 2)\n{comment}\n```\n", "page.md")


def test_it_is_read_in_one_sitting():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
