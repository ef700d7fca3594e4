"""Libraries that are known: calling them changes nothing but what they are given, which is watched."""

import sys
import types
from typing import Any

import jax
import numpy as np


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


LIBRARIES = words(
    """
    jax jaxlib numpy ml_dtypes flax equinox haiku optax chex jaxtyping einops lineax optimistix diffrax distrax deeppcr depth
    builtins math cmath operator _operator functools _functools itertools collections _collections _collections_abc enum
    dataclasses typing abc _abc types copy copyreg contextlib numbers string re inspect weakref _weakref _weakrefset
    pytest _pytest
    """
)
# What these libraries have that answers differently from call to call, or leaves something behind.
_MODULES = ("numpy.random", "jax.profiler", "jax.experimental.multihost_utils")
_FUNCTIONS = {
    "builtins": "breakpoint compile eval exec exit globals help id input open print quit __import__",
    "contextlib": "suppress redirect_stdout redirect_stderr",
    "functools": "lru_cache cache",
    "numpy": "fromfile fromregex genfromtxt load loadtxt memmap save savetxt savez savez_compressed set_printoptions setbufsize",
    "inspect": "currentframe stack trace",
}
_FOREIGN = {module: words(names) for module, names in _FUNCTIONS.items()}
# Attributes, of whatever object, that leave something behind or ask what a trace answers in another way.
FOREIGN_ATTRIBUTES = frozenset(
    ["tofile", "dump", "seterr", "seterrcall", "Tracer", "trace_state_clean", "_getframe"]
)


def is_library(module: Any) -> bool:
    """Whether a module of this name belongs to a known library."""
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def is_foreign(value: Any) -> bool:
    """Whether a known library has under this name what cannot be called on trial."""
    if value is jax.config:
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.startswith(_MODULES)
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(module, str):
        return False
    return module.startswith("numpy.random") or name in _FOREIGN.get(module.partition(".")[0], ())


_GENERATORS = words(
    "default_rng Generator RandomState SeedSequence PCG64 PCG64DXSM Philox SFC64 MT19937"
)


def is_seeded(module: types.ModuleType, attributes: tuple[str, ...]) -> bool:
    """Whether a layer makes itself a generator of numpy from a seed, which draws the same in each call."""
    return module is np.random and attributes[0] in _GENERATORS and len(attributes) == 1


def module_named(name: str) -> types.ModuleType | None:
    """An imported module."""
    return sys.modules.get(name)
