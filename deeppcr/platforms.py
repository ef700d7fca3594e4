"""Programs that differ from platform to platform.

On which platform a program runs is known only when jax lowers it: a process with a GPU may be asked to compute on its CPU. Where
what is best differs between the platforms of this process, the program holds all ways, and jax lowers one of them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jax import lax

from depth.platforms import compiled_for, platform, platforms

__all__ = ["by_platform", "compiled_for", "differing", "platform", "platforms"]

T = TypeVar("T")
DEFAULT = "default"


def differing(ways: Mapping[str, T]) -> dict[str, T]:
    """Of ways by platform the first as "default", and by name those that are not the same."""
    default = next(iter(ways.values()))
    return {DEFAULT: default} | {
        platform: way for platform, way in ways.items() if way is not default and way != default
    }


def by_platform(ways: Mapping[str, Callable[..., T]], *arguments: Any) -> T:
    """Call the way of the platform that the program is lowered for; "default" is for those without a name."""
    named = {platform: way for platform, way in ways.items() if platform != DEFAULT}
    if not named:
        return ways[DEFAULT](*arguments)
    named = {platform: _compiled_for(platform, way) for platform, way in named.items()}
    result: T = lax.platform_dependent(*arguments, default=ways[DEFAULT], **named)
    return result


def _compiled_for(platform: str, way: Callable[..., T]) -> Callable[..., T]:
    def traced(*arguments: Any) -> T:
        with compiled_for(platform):
            return way(*arguments)

    return traced
