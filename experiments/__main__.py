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

USAGE = (
    "usage: python -m experiments NAME [options] [--out DIR]        (NAME --help lists the options)"
)
OURS = ("deeppcr", "depth", "experiments")


def registry() -> dict[str, str]:
    """The experiments, name -> module: each module of this package that is not itself a package."""
    found = pkgutil.iter_modules(experiments.__path__)
    return {
        entry.name: f"experiments.{entry.name}"
        for entry in found
        if not entry.ispkg and not entry.name.startswith("_")
    }


def summary(name: str) -> str:
    """The first line of an experiment's docstring, read without importing it: its extras may be missing."""
    source = Path(experiments.__path__[0], f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def listing(names: Mapping[str, str]) -> str:
    """Every experiment with a line on what it does."""
    width = max(map(len, names), default=0)
    lines = [f"  {name:<{width}}  {summary(name)}" for name in sorted(names)]
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
    # On GPUs a product of float32 is one of TF32 by default: no two programs then agree to float32, and Newton's residual stalls.
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")  # read when jax is imported
    options = _redirected(rest)
    try:
        importlib.import_module(names[name]).main(options)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        sys.exit(
            f'{name} needs {error.name}, which is not installed: pip install "deeppcr[experiments]"'
        )


def _redirected(options: list[str]) -> list[str]:
    """The options without `--out DIR`, which every experiment takes: its results then go to DIR/<device>."""
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument("--out", type=Path)
    found, rest = common.parse_known_args(options)
    if found.out:
        from experiments.common import results

        results.write_into(
            found.out
        )  # before the experiment is imported: some look where results go only then
    return rest


if __name__ == "__main__":
    main(sys.argv[1:])
