"""Runs the Python in pages of Markdown as it stands there: ``python -m tests.pages PAGE...``.

Every page is a program of its own. Lines of comment below a ``print(...)`` are what it prints, with
``...`` for anything, as in a doctest.
"""

import ast
import contextlib
import doctest
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(text: str) -> Iterator[str]:
    """Every ```python block, moved down to the line that it has in ``text``."""
    for found in re.finditer(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield "\n" * text[: found.start(1)].count("\n") + found.group(1)


def run(text: str, name: str) -> None:
    """Run all blocks of a page; a line number in an error is one of the page.

    Raises:
        AssertionError: something else is printed than the page says.
    """
    namespace = {"__name__": "__main__"}
    for block in blocks(text):
        for statement in ast.parse(block, name).body:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(ast.Module([statement], []), name, "exec"), namespace)
            wanted, got = promised(statement, block), printed.getvalue()
            if wanted and not doctest.OutputChecker().check_output(wanted, got, OPTIONS):
                raise AssertionError(
                    f"{name}, line {statement.lineno} prints\n{got}\nand not\n{wanted}"
                )


def promised(statement: ast.stmt, block: str) -> str:
    """The lines of comment below a call of print, without their "# "."""
    call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    if not call or ast.unparse(statement.value.func) != "print":
        return ""
    wanted = []
    for line in block.splitlines()[statement.end_lineno :]:
        if not line.startswith("#"):
            break
        wanted.append(line[2:] + "\n")
    return "".join(wanted)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        run(page.read_text(encoding="utf-8"), str(page))
