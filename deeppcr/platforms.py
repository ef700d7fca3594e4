"""Programs that differ from platform to platform.

On which platform a program runs is known only when jax lowers it: a process with a GPU may be asked to compute on its CPU. Where
what is best differs between the platforms of this process, the program holds all ways, and jax lowers one of them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jax import lax
from jax.extend.backend import backends

from depth.calibration import default_device

T = TypeVar("T")
GPUS = ("cuda", "rocm")  # what a device calls "gpu"
DEFAULT = "default"


def platforms() -> tuple[str, ...]:
    """The platforms of this process, that of jax's default device first: "cpu", "cuda", "rocm", "tpu" .."""
    first = default_device().platform
    known = dict.fromkeys(backends())
    first = next((name for name in known if name in GPUS), "cuda") if first == "gpu" else first
    return tuple(dict.fromkeys([first, *known]))


def differing(ways: Mapping[str, T]) -> dict[str, T]:
    """Of ways by platform the first as "default", and by name those that are not the same."""
    default = next(iter(ways.values()))
    return {DEFAULT: default} | {platform: way for platform, way in ways.items() if way is not default and way != default}


def by_platform(ways: Mapping[str, Callable[..., T]], *arguments: Any) -> T:
    """Call the way of the platform that the program is lowered for; "default" is for those without a name."""
    named = {platform: way for platform, way in ways.items() if platform != DEFAULT}
    if not named:
        return ways[DEFAULT](*arguments)
    result: T = lax.platform_dependent(*arguments, default=ways[DEFAULT], **named)
    return result
