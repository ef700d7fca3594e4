"""The default device of jax, and the platforms of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
from jax.extend.backend import backends

GPUS = ("cuda", "rocm")  # what a device calls "gpu"


_COMPILED_FOR: ContextVar[str | None] = ContextVar("compiled_for", default=None)


def chosen_device() -> jax.Device | str | None:
    """The configured default of jax: a device, a platform, or None."""
    chosen: jax.Device | str | None = jax.config.jax_default_device  # type: ignore[attr-defined]
    return chosen


def default_device() -> jax.Device:
    """The device that jax computes on by default: the chosen one, or the first of this process."""
    chosen: jax.Device | str | None = jax.config.jax_default_device  # type: ignore[attr-defined]
    return (
        jax.local_devices(backend=chosen)[0]
        if chosen is None or isinstance(chosen, str)
        else chosen
    )


@contextmanager
def compiled_for(platform: str) -> Iterator[None]:
    """A context in which programs are traced for another platform, which may be absent.

    Functions that jax has traced before, for example under `jax.jit`, are not retraced.
    """
    token = _COMPILED_FOR.set(platform)
    try:
        yield
    finally:
        _COMPILED_FOR.reset(token)


def platforms() -> tuple[str, ...]:
    """The platforms of this process, that of jax's default device first.

    "cpu", "cuda", "rocm", "tpu" ..
    """
    if (asked := _COMPILED_FOR.get()) is not None:
        return (asked,)
    first = default_device().platform
    known = dict.fromkeys(backends())
    first = next((name for name in known if name in GPUS), "cuda") if first == "gpu" else first
    return tuple(dict.fromkeys([first, *known]))


def platform() -> str:
    """The platform for programs that do not depend on it.

    The first of `platforms`.
    """
    return platforms()[0]
