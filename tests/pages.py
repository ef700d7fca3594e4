"""Runs the Python in pages of Markdown as it stands there: ``python -m tests.pages PAGE...``.

Of anything else in the place of a page, a package, it runs the examples in docstrings.

Every page is a program of its own. Lines of comment below a ``print(...)`` are what it prints, with
``...`` for anything, as in a doctest.
"""

import ast
import contextlib
import doctest
import gc
import importlib
import io
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

EXACT = doctest.NORMALIZE_WHITESPACE
OPTIONS = doctest.ELLIPSIS | EXACT


def blocks(text: str) -> Iterator[str]:
    """Every ```python block, moved down to the line that it has in ``text``."""
    for found in re.finditer(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield "\n" * text[: found.start(1)].count("\n") + found.group(1)


def run(text: str, name: str) -> str:
    """Run all blocks of a page; a line number in an error is one of the page.

    Returns:
        The page with what is printed in the place of what it promises.

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
            if not wanted:
                continue
            if not doctest.OutputChecker().check_output(wanted, got, OPTIONS):
                raise AssertionError(
                    f"{name}, line {statement.lineno} prints\n{got}\nand not\n{wanted}"
                )
            text = text.replace(commented(wanted), commented(got), 1)
    return text


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


def commented(text: str) -> str:
    """Lines as a page has them."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def run_docstrings(package: str) -> None:
    """Run the examples in all docstrings of a package; doctest prints what differs.

    Raises:
        AssertionError: something else is returned than an example says.
    """
    names = {"jax", "numpy", "deeppcr", "depth"}
    known = {name: importlib.import_module(name) for name in names}
    known |= {"jnp": known["jax"].numpy, "np": known["numpy"]}
    runner, finder = doctest.DocTestRunner(optionflags=EXACT), doctest.DocTestFinder()
    path = known[package].__path__
    for found in pkgutil.walk_packages(path, f"{package}."):
        if "__main__" not in found.name:
            module = importlib.import_module(found.name)
            for test in finder.find(module, extraglobs=known):
                runner.run(test)
    assert not runner.failures, f"{runner.failures} examples of {package} failed"
    assert runner.tries > 0, f"{package} has no examples"


if __name__ == "__main__":
    gc.freeze()  # imports are no garbage, and jax makes very many objects
    gc.set_threshold(50_000, 50, 50)
    for name in sys.argv[1:]:
        if name.endswith(".md"):
            run(Path(name).read_text(encoding="utf-8"), name)
        else:
            run_docstrings(name)
