"""The command line of the experiments: `python -m experiments NAME [options]`."""

import ast
import importlib
import os
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import experiments
from experiments.bench.progress import INTERRUPTED, PROGRESS, interrupts

USAGE = """usage: python -m experiments NAME [--quick] [options]

Each experiment measures on this machine, prints tables and draws a picture. --quick takes under a
minute on two cores, NAME --help lists all options, Ctrl-C prints what there is so far."""
OURS = ("deeppcr", "depth", "experiments")
SHARED = ("bench", "models")  # packages that experiments use


def registry() -> dict[str, str]:
    """The experiments, name -> module.

    Each module of this package, and the module `run` of each package in it that is not shared.
    """
    found = pkgutil.iter_modules(experiments.__path__)
    return {
        entry.name: f"experiments.{entry.name}" + ".run" * entry.ispkg
        for entry in found
        if not entry.name.startswith("_") and entry.name not in SHARED
    }


def summary(module: str) -> tuple[str, str]:
    """The question that an experiment answers, and how long it takes.

    The first line of its docstring and its constant ``TAKES``, read without importing it: packages
    that it needs may not be installed.
    """
    path = Path(experiments.__path__[0], *module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    takes: Any = ""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TAKES":
            takes = ast.literal_eval(node.value)
    return (ast.get_docstring(tree) or "").partition("\n")[0], takes


def listing(names: Mapping[str, str]) -> str:
    """Every experiment with its question, and how long it takes."""
    width = max(map(len, names), default=0)
    lines = [USAGE, "", f"  {'':<{width}}  {'takes':<7} answers"]
    for name in sorted(names):
        question, takes = summary(names[name])
        lines.append(f"  {name:<{width}}  {takes:<7} {question}")
    return "\n".join([*lines, "", "Times are those of two CPU cores, without --quick."])


def main(argv: list[str]) -> None:
    """Run the experiment that ``argv`` names, or list them all."""
    names = registry()
    if not argv or argv[0] in ("-h", "--help"):
        print(listing(names))
        return
    name, *options = argv
    if name not in names:
        sys.exit(f"no experiment is called {name!r}; there are: {', '.join(sorted(names))}")
    # On GPUs a product of float32 is one of TF32 by default: no two programs then agree to float32,
    # and Newton's residual stalls.
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # read when jax is imported
    try:
        with PROGRESS.shown():
            with interrupts():
                module = importlib.import_module(names[name])
            module.main(options)
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C")
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        extra = 'pip install "deeppcr[experiments]"'
        sys.exit(f"{name} needs {error.name}, which is not installed: {extra}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # jax may crash if Python shuts down during a computation
        raise
