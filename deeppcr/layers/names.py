"""The names in a Python function, read from its bytecode, and the known libraries.

A call of a known library changes nothing but its arguments, which are watched. `is_foreign` lists
the exceptions.
"""

import dataclasses
import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax

Path = tuple[str, ...]  # ("np", "random", "normal") for np.random.normal

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CELL = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "LOAD_SUPER_ATTR")
_SKIPPED = ("CACHE", "EXTENDED_ARG", "NOP")


@dataclasses.dataclass(frozen=True)
class Names:
    """The names in the code of a function, and of the functions inside it.

    Attributes:
        globals: globals and built-in functions, each with the attributes accessed on it.
        cells: the same for variables that the function closes over.
        attributes: all other attributes.
        imports: whether it imports modules.
        catches: whether it catches exceptions, or runs code after one.
    """

    globals: frozenset[Path]
    cells: frozenset[Path]
    attributes: frozenset[str]
    imports: bool
    catches: bool


@functools.lru_cache(4096)
def names_of(code: types.CodeType) -> Names:
    """The names in ``code``."""
    paths: dict[str, list[Path]] = {"global": [], "cell": [], "attribute": []}
    imports = catches = False
    for part in _with_inner(code):
        extended = ""  # the kind of the path that an attribute would extend
        for instruction, after in _instructions(part):
            opname, name = instruction.opname, str(instruction.argval)
            if opname in _ATTRIBUTE and extended:
                paths[extended][-1] = (*paths[extended][-1], name)
                extended = extended if opname in _ATTRIBUTE[:2] else ""
                continue
            extended = "global" if opname in _GLOBAL else "cell" if opname in _CELL else ""
            if extended:
                paths[extended].append((name,))
            elif opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                paths["global"].append((name,))
            elif opname in _ATTRIBUTE or opname == "IMPORT_FROM":
                paths["attribute"].append((name,))
            elif opname == "IMPORT_NAME":
                imports = True
            elif opname == "PUSH_EXC_INFO":  # an `except`, a `finally`, or the end of a `with`
                catches = catches or after != "WITH_EXCEPT_START"
    return Names(
        frozenset(paths["global"]),
        frozenset(paths["cell"]),
        frozenset(name for (name,) in paths["attribute"]),
        imports,
        catches,
    )


def _instructions(code: types.CodeType) -> Iterator[tuple[dis.Instruction, str]]:
    """The instructions, each with the name of the next."""
    found = [i for i in dis.get_instructions(code) if i.opname not in _SKIPPED]
    yield from zip(found, [*(i.opname for i in found[1:]), ""], strict=True)


def _with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _with_inner(constant)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LIBRARIES = _words(
    """
    jax jaxlib numpy ml_dtypes flax equinox haiku optax chex jaxtyping einops lineax optimistix
    diffrax distrax deeppcr depth builtins math cmath operator _operator functools _functools
    itertools collections _collections _collections_abc enum dataclasses typing abc _abc types copy
    copyreg contextlib numbers string re inspect weakref _weakref _weakrefset
    """
)
# Functions of these libraries that are not deterministic, or have side effects.
_FOREIGN_MODULES = ("numpy.random", "jax.profiler", "jax.experimental.multihost_utils")
_FOREIGN = {
    "builtins": _words(
        "breakpoint compile eval exec exit globals help id input open print quit __import__"
    ),
    "contextlib": _words("suppress redirect_stdout redirect_stderr"),
    "functools": _words("lru_cache cache"),
    "numpy": _words(
        "fromfile fromregex genfromtxt load loadtxt memmap save savetxt savez savez_compressed "
        "set_printoptions setbufsize"
    ),
    "inspect": _words("currentframe stack trace"),
}
# Attributes of any object that have side effects, that change a function itself, or whose result
# differs under tracing.
FOREIGN_ATTRIBUTES = _words(
    """
    tofile dump seterr seterrcall Tracer trace_state_clean _getframe
    __code__ __defaults__ __kwdefaults__ __globals__ __closure__
    """
)


def is_library(module: Any) -> bool:
    """Whether a module of this name belongs to a known library."""
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES


def is_foreign(value: Any) -> bool:
    """Whether this object of a known library cannot be called on trial."""
    if value is jax.config:
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith(_FOREIGN_MODULES)
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str):
        return False
    return module.startswith("numpy.random") or name in _FOREIGN.get(module.partition(".")[0], ())
