"""The examples in docstrings."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# In a process of its own: users have float32, and no strictness but that warnings are errors here.
DOCTESTS = """
import doctest, importlib, pkgutil
import jax, jax.numpy as jnp, numpy as np
import deeppcr
import depth
packages = [deeppcr, depth]
found = [m.name for p in packages for m in pkgutil.walk_packages(p.__path__, p.__name__ + ".")]
names = [name for name in found if "__main__" not in name]
known = {"jax": jax, "jnp": jnp, "np": np, "deeppcr": deeppcr, "depth": depth}
runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
finder = doctest.DocTestFinder()
for name in names:
    module = importlib.import_module(name)
    for test in finder.find(module, extraglobs=known):
        if test.examples:
            runner.run(test)
            print(test.name, len(test.examples))
raise SystemExit(runner.failures)
"""


def test_the_examples_in_docstrings():
    command = [sys.executable, "-W", "error", "-c", DOCTESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {line.split()[0].rpartition(".")[2] for line in done.stdout.splitlines()}
    assert {"Chain", "forward", "scan", "solve", "solve_bidiagonal"} <= ran
