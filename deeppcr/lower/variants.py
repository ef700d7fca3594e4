"""Programs with variants for different platforms, and the facts of a device that decide.

Jax knows the platform of a program only when it lowers it: a process with a GPU may also compute on
its CPU. If the best program differs between the platforms of this process, it contains all
variants, and jax lowers one of them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
from jax import lax

from deeppcr.programs.calls import is_jit_disabled
from depth.platforms import GPUS, compiled_for, platform, platforms


class Target(NamedTuple):
    """What programs need to know of the devices that they are traced for.

    Attributes:
        launches: whether a kernel takes longer to start than a small one to run. Then the fewest
            kernels are the fastest program; else the least work is.
        waits: whether the host waits for the condition of each trip of a loop, or of a branch.
        cache: the bytes of arrays that stay in the cache, if work in chunks gains by it.
        widest: the width of matrices up to which products of them are written out as sums.
    """

    launches: bool = True
    waits: bool = False
    cache: int | None = None
    widest: int = 16


# Up to a width of 7 such sums beat a batched matrix product on a CPU: they take 0.5 to 0.8 of the
# time in a loop, 0.7 to 1.2 for 2x2 (jax 0.10.2, 2 cores).
CPU = Target(launches=False, cache=1 << 22, widest=7)


def target() -> Target:
    """Those that programs are traced for now."""
    first = platforms()[0]
    return CPU if first == "cpu" else Target(waits=first in GPUS)


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
    result = memory[key] = memory.get(key) or trace()
    return result


def by_platform(variants: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """The variant for the platform that the program is lowered for, or "default"."""
    by_name = {name: compiled_for(name)(f) for name, f in variants.items() if name != DEFAULT}
    if not by_name:
        return variants[DEFAULT]
    return partial(lax.platform_dependent, default=variants[DEFAULT], **by_name)


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
