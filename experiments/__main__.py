"""The command line of the experiments: `python -m experiments NAME [options]`."""

import ast
import importlib
import os
import pkgutil
import re
import sys
from pathlib import Path

import experiments
from experiments.bench.progress import INTERRUPTED, PROGRESS

USAGE = """usage: python -m experiments NAME [--quick] [options]

Each experiment measures on this machine, prints tables and draws a picture. --quick takes under a
minute on two cores, NAME --help lists all options, Ctrl-C prints what there is so far."""
OURS = ("deeppcr", "depth", "experiments")
SHARED = ("bench", "models", "networks", "results")  # packages that experiments use


def registry() -> dict[str, str]:
    """The experiments, name -> module: a module of this package, or ``run`` of a package in it."""
    return {
        entry.name: f"experiments.{entry.name}" + ".run" * entry.ispkg
        for entry in pkgutil.iter_modules(experiments.__path__)
        if not entry.name.startswith("_") and entry.name not in SHARED
    }


def listing() -> str:
    """Every experiment with its question, and how long it takes.

    Modules are read without importing them: packages that they need may not be installed.
    """
    lines = [USAGE, "", f"  {'':<12}  {'takes':<7} answers"]
    for name, module in registry().items():
        path = Path(experiments.__path__[0], *module.split(".")[1:]).with_suffix(".py")
        text = path.read_text(encoding="utf-8")
        takes = re.search(r'^TAKES = "(.*)"', text, re.MULTILINE)
        question = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        lines.append(f"  {name:<12}  {takes[1] if takes else '':<7} {question}")
    return "\n".join([*lines, "", "Times are those of two CPU cores, without --quick."])


def main(argv: list[str]) -> None:
    """Run the experiment that ``argv`` names, or list them all."""
    names = registry()
    if not argv or argv[0] in ("-h", "--help"):
        print(listing())
        return
    name, *options = argv
    if name not in names:
        sys.exit(f"no experiment is called {name!r}; there are: {', '.join(names)}")
    # On GPUs a product of float32 is one of TF32 by default: no two programs then agree to float32,
    # and Newton's residual stalls.
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # read when jax is imported
    try:
        with PROGRESS.shown():
            with PROGRESS.interrupts():
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
