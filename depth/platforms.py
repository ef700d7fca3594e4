"""The default device of jax, the platforms of this process, and its processor cores."""

import os
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


def first_device(platform: str | None) -> jax.Device | None:
    """The first device of a platform in this process, or jax's default device, if there is one."""
    chosen = chosen_device() if platform is None else platform
    if chosen is not None and not isinstance(chosen, str):
        return chosen
    try:
        return next(iter(jax.local_devices(backend="gpu" if chosen in GPUS else chosen)), None)
    except RuntimeError:  # there is no such backend, or it does not start
        return None


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    """The platforms of this process, as "cpu" or "cuda", that of jax's default device first."""
    if (asked := _COMPILED_FOR.get()) is not None:
        return (asked,)
    chosen = jax.config.jax_default_device  # type: ignore[attr-defined]
    if chosen is None or isinstance(chosen, str):
        chosen = jax.local_devices(backend=chosen)[0]
    first = chosen.platform
    known = dict.fromkeys(backends())
    first = next((name for name in known if name in GPUS), "cuda") if first == "gpu" else first
    return tuple(dict.fromkeys([first, *known]))


def platform() -> str:
    """The first of `platforms`, for programs that do not depend on it."""
    return platforms()[0]
