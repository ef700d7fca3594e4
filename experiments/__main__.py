"""The command line of the experiments: `python -m experiments NAME [options]`."""

import argparse
import ast
import importlib
import os
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path

import experiments

USAGE = "usage: python -m experiments NAME [options] [--out DIR]    (NAME --help lists the options)"
OURS = ("deeppcr", "depth", "experiments")
SHARED = ("bench", "models")  # what the experiments are made of


def registry() -> dict[str, str]:
    """The experiments, name -> module.

    Each file of this package, and the file `run` of each folder that is not shared.
    """
    found = pkgutil.iter_modules(experiments.__path__)
    return {
        entry.name: f"experiments.{entry.name}" + ".run" * entry.ispkg
        for entry in found
        if not entry.name.startswith("_") and entry.name not in SHARED
    }


def summary(module: str) -> str:
    """The first line of an experiment's docstring, read without importing it.

    Its extras may be missing.
    """
    path = Path(experiments.__path__[0], *module.split(".")[1:]).with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def listing(names: Mapping[str, str]) -> str:
    """Every experiment with a line on what it does."""
    width = max(map(len, names), default=0)
    lines = [f"  {name:<{width}}  {summary(names[name])}" for name in sorted(names)]
    return "\n".join([USAGE, "", *lines])


def main(argv: list[str]) -> None:
    """Run the experiment that `argv` names, or list them all."""
    names = registry()
    if not argv or argv[0] in ("-h", "--help"):
        print(listing(names))
        return
    name, *rest = argv
    if name not in names:
        sys.exit(f"no experiment is called {name!r}; there are: {', '.join(sorted(names))}")
    # On GPUs a product of float32 is one of TF32 by default: no two programs then agree to float32,
    # and Newton's residual stalls.
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # read when jax is imported
    options = _redirected(rest)
    try:
        importlib.import_module(names[name]).main(options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        extra = 'pip install "deeppcr[experiments]"'
        sys.exit(f"{name} needs {error.name}, which is not installed: {extra}")


def _redirected(options: list[str]) -> list[str]:
    """The options without `--out DIR`, which every experiment takes.

    Its results then go to DIR/<device>.
    """
    shared = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    shared.add_argument("--out", type=Path)
    found, rest = shared.parse_known_args(options)
    if found.out:
        from experiments.bench import results

        results.write_into(found.out)  # before the experiment is imported: some read it only then
    return rest


if __name__ == "__main__":
    main(sys.argv[1:])
