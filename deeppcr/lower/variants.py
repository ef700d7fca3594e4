"""Programs with variants for different platforms.

Jax knows the platform of a program only when it lowers it: a process with a GPU may also compute on
its CPU. If the best program differs between the platforms of this process, it contains all
variants, and jax lowers one of them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import jax
from jax import lax

from deeppcr.programs.calls import is_jit_disabled
from depth.platforms import GPUS, compiled_for, platform, platforms

__all__ = [
    "GPUS",
    "by_platform",
    "compiled_for",
    "differing",
    "for_each_platform",
    "is_eager",
    "kept",
    "platform",
    "platforms",
]

T = TypeVar("T")
DEFAULT = "default"


def for_each_platform(choose: Callable[[str], T]) -> dict[str, T]:
    """What is chosen for each platform of this process, that of jax's default device first."""
    return {name: choose(name) for name in platforms()}


def differing(variants: Mapping[str, T]) -> dict[str, T]:
    """The variant of the first platform as "default", and by platform those that differ."""
    different: dict[str, T] = {}
    for name, variant in variants.items():
        default = different.setdefault(DEFAULT, variant)
        if variant is not default and variant != default:
            different[name] = variant
    return different


def kept(memory: dict[Any, T], key: Any, trace: Callable[[], T]) -> T:
    """``trace()``, or what the ``memory`` has of it for the same platforms."""
    key = key, platforms()
    found = memory[key] = memory.get(key) or trace()
    return found


def by_platform(variants: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """The variant for the platform that the program is lowered for, or "default"."""
    by_name = {name: _compiled_for(name, f) for name, f in variants.items() if name != DEFAULT}
    if not by_name:
        return variants[DEFAULT]
    return partial(lax.platform_dependent, default=variants[DEFAULT], **by_name)


def _compiled_for(platform: str, variant: Callable[..., T]) -> Callable[..., T]:
    def traced(*arguments: Any) -> T:
        with compiled_for(platform):
            return variant(*arguments)

    return traced


def is_eager(leaves: Iterable[Any]) -> bool:
    """Whether operations on these arrays run now, not as a part of a larger program."""
    return not is_jit_disabled() and not any(map(_is_staged, leaves))


def _is_staged(x: Any) -> bool:
    """Whether jax stages operations on ``x`` into a program, as `jax.jit` does."""
    while isinstance(x, jax.core.Tracer):
        if hasattr(x, "primal"):  # of a derivative that is taken eagerly
            x = x.primal
        elif hasattr(x, "batch_dim"):  # of `jax.vmap`
            x = x.val
        else:
            return True
    return False
