"""The command line: the score of a function.

python -m depth model.py:step "f32[64]" "f32[64,64]"      your function and its argument types
python -m depth package.model:step "f32[64]" --device H100
"""

import argparse
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from depth.analysis import analyze_loops
from depth.cost import predict
from depth.models import at_hand, devices
from depth.report import seconds, table

DTYPES = {"bf16": "bfloat16", "c64": "complex64", "c128": "complex128"}
DTYPES |= {"bool": "bool", "pred": "bool"} | {f"f{bits}": f"float{bits}" for bits in (16, 32, 64)}
for _kind in ("int", "uint"):
    DTYPES |= {f"{_kind[0]}{bits}": f"{_kind}{bits}" for bits in (8, 16, 32, 64)}
WIDE = ("float64", "int64", "uint64", "complex128")


def argument(text: str) -> jax.ShapeDtypeStruct:
    """``f32[8,16]`` as an argument without values."""
    found = re.fullmatch(r"(\w+)\[((\s*\d+\s*(,\s*\d+\s*)*)?)\]", text.strip())
    if not found or found[1] not in DTYPES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no type such as f32[8,16]; dtypes: {', '.join(DTYPES)}"
        )
    sizes = tuple(int(size) for size in found[2].split(",") if size.strip())
    return jax.ShapeDtypeStruct(sizes, DTYPES[found[1]])


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
            f"{text!r}: {place!r} cannot be imported: {_first_line(error)}"
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
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look themselves up there
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _place(error: Exception) -> str:
    """The last line of the user's that an error comes from, as ``file.py:12``, if there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = Path(__file__).parent, Path(jax.__file__).parent
    users = [each for each in frames if not {*ours} & {*Path(each.filename).parents}]
    return f"{Path(users[-1].filename).name}:{users[-1].lineno}" if users else ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


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
    add = parser.add_argument
    add("function", type=function, help="file.py:function or package.module:function")
    add("arguments", nargs="*", type=argument, help="types of its arguments, as f32[8,16]")
    much = "the number of trips of while loops that do not say it"
    add("--trip-counts", type=trips, metavar="N", help=much)
    names = ["here", *devices]
    add("--device", choices=names, metavar="NAME", help=", ".join(names))
    options = parser.parse_intermixed_args(argv)
    if any(given.dtype.name in WIDE for given in options.arguments):
        jax.config.update("jax_enable_x64", True)
    name = getattr(options.function, "__name__", type(options.function).__name__)
    try:
        inspect.signature(options.function).bind(*options.arguments)
    except TypeError as error:
        parser.error(f"{name}: {error}; give a type of each, as f32[8,16]")
    except ValueError:  # of a builtin that tells none
        pass
    try:
        jaxpr, shapes = jax.make_jaxpr(options.function, return_shape=True)(*options.arguments)
    except Exception as error:  # whatever the user's function raises
        parser.error(f"{_place(error) or name}: {_first_line(error)}")
    cost, _ = analyze_loops(jaxpr, options.trip_counts, jax.tree.structure(shapes))
    print(cost)
    if options.device:
        device = at_hand() if options.device == "here" else devices[options.device]
        said = f"{seconds(predict(cost, device))} on {device.name}"
        print(table((), [(), ("predicted", said)]))


if __name__ == "__main__":
    main()
