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
    "is_eager",
    "platform",
    "platforms",
]

T = TypeVar("T")
DEFAULT = "default"


def differing(variants: Mapping[str, T]) -> dict[str, T]:
    """The variant of the first platform as "default", and by platform those that differ."""
    found: dict[str, T] = {}
    for name, own in variants.items():
        default = found.setdefault(DEFAULT, own)
        if own is not default and own != default:
            found[name] = own
    return found


def by_platform(variants: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """The variant for the platform that the program is lowered for, or "default"."""
    others = {name: variant for name, variant in variants.items() if name != DEFAULT}
    if not others:
        return variants[DEFAULT]
    others = {name: _compiled_for(name, variant) for name, variant in others.items()}
    return partial(lax.platform_dependent, default=variants[DEFAULT], **others)


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
