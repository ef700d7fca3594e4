"""The command line: the score of a function or of an example.

python -m depth --example mlp                             an example program of the package
python -m depth model.py:step "f32[64]" "f32[64,64]"      your function and its argument types
python -m depth package.model:step "f32[64]" --device H100
"""

import argparse
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from depth.analysis import analyze
from depth.cost import predict
from depth.device import Device
from depth.examples import EXAMPLES
from depth.models import at_hand, devices
from depth.report import seconds, table

DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{
        f"{short}{bits}": f"{long}{bits}"
        for short, long in (("i", "int"), ("u", "uint"))
        for bits in (8, 16, 32, 64)
    },
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
    "bool": "bool",
    "pred": "bool",
}


def argument(text: str) -> jax.ShapeDtypeStruct:
    """``f32[8,16]`` as an argument without values."""
    found = re.fullmatch(r"(\w+)\[((\s*\d+\s*(,\s*\d+\s*)*)?)\]", text.strip())
    if not found or found[1] not in DTYPES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no type such as f32[8,16]; dtypes: {', '.join(DTYPES)}"
        )
    return jax.ShapeDtypeStruct(
        tuple(int(size) for size in found[2].split(",") if size.strip()), DTYPES[found[1]]
    )


def trips(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number >= 0")
    return int(text)


def function(text: str) -> Callable[..., Any]:
    """The function that ``path/to/file.py:name`` or ``package.module:name`` names."""
    place, separator, name = text.rpartition(":")
    if not separator:
        raise argparse.ArgumentTypeError(
            f"{text!r} names no function: file.py:function or package.module:function"
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {place!r}")
    try:
        found = _load(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # whatever running the user's file raises
        raise argparse.ArgumentTypeError(
            f"{text!r}: {place!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise argparse.ArgumentTypeError(f"{place} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise argparse.ArgumentTypeError(f"{text} is no function but {type(found).__name__}")
    return found


def _load(path: Path) -> Any:
    """The module in a file, which may import its neighbours."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(
        spec
    )  # dataclasses look themselves up there
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def model(name: str) -> Device:
    """A device by its name; "here" for the one at hand."""
    return at_hand() if name == "here" else devices[name]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    path, x64 = list(sys.path), jax.config.read("jax_enable_x64")
    sys.path.insert(0, str(Path.cwd()))
    try:
        _main(argv)
    finally:
        sys.path[:] = path
        jax.config.update("jax_enable_x64", x64)


def _main(argv: Sequence[str] | None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m depth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "function", nargs="?", type=function, help="file.py:function or package.module:function"
    )
    parser.add_argument(
        "arguments", nargs="*", type=argument, help="types of its arguments, as f32[8,16]"
    )
    parser.add_argument("--example", choices=EXAMPLES, help="a program that comes with the package")
    parser.add_argument(
        "--trip-counts",
        type=trips,
        metavar="N",
        help="the number of trips of while loops that do not say it",
    )
    parser.add_argument(
        "--device", choices=["here", *devices], metavar="NAME", help=f"here, {', '.join(devices)}"
    )
    options = parser.parse_intermixed_args(argv)
    if not (options.function or options.example):
        parser.error("give a function or --example")
    if options.function and options.example:
        parser.error("give a function or --example, not both")
    if options.example:
        program, args = EXAMPLES[options.example]()
        print(EXAMPLES[options.example].__doc__, end="\n\n")
    else:
        if any(
            given.dtype.name in ("float64", "int64", "uint64", "complex128")
            for given in options.arguments
        ):
            jax.config.update("jax_enable_x64", True)
        program, args = options.function, tuple(options.arguments)
    cost = analyze(program, *args, trip_counts=options.trip_counts)
    print(cost)
    if options.device:
        device = model(options.device)
        said = f"{seconds(predict(cost, device))} on {device.name}"
        print(table((), [(), ("predicted", said)]))


if __name__ == "__main__":
    main()
