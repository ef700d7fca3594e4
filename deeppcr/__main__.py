"""The command line: ``python -m deeppcr --version`` says what is installed, and where."""

import argparse
import platform
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

import deeppcr
import depth


def versions() -> str:
    """What a report of a problem should begin with.

    The folder of ``depth`` is shown because that name is short: another package may hide ours.
    """
    parts = {
        "deeppcr": deeppcr.__version__,
        "jax": jax.__version__,
        "jaxlib": jax.lib.__version__,
        "numpy": np.__version__,
        "Python": platform.python_version(),
    }
    numbers = ", ".join(f"{name} {version}" for name, version in parts.items())
    ours, beside = Path(deeppcr.__path__[0]), Path(depth.__path__[0])
    return f"{numbers}, {platform.platform()}\ndeeppcr in {ours}, depth in {beside}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    summary = (deeppcr.__doc__ or "").replace("`", "")
    parser = argparse.ArgumentParser(
        prog="python -m deeppcr",
        description=f"{summary} This is a library: import deeppcr.",
        epilog="python -m depth --help: the serial depth and the predicted time of a program.",
    )
    parser.add_argument(
        "--version", action="store_true", help="print the versions in use and the platform"
    )
    options = parser.parse_args(argv)
    if options.version:
        print(versions())
    else:
        parser.print_help()


if __name__ == "__main__":
    main()
