"""What this process runs on: platforms, cores, and what its compiler does with small loops."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.backend import backends

from depth.jaxprs import bind, run

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


EMITTED = b"computation_kernel"  # stands in the code of a loop that is one function (jax 0.10-0.12)


@cache
def is_hoisted() -> bool:
    """Whether XLA compiles a loop over a few kilobytes to one function by itself.

    Since jax 0.12 its pass `SmallRegionHoistingPass` does. False without a CPU.
    """
    return bool(is_one_function(lambda loop, x: run(loop, [x], bind)))


def is_one_function(by: Callable[[Any, Array], Any]) -> bool | None:
    """Whether a loop over a kilobyte is one function, as ``by`` runs its jaxpr; None without a CPU.

    Args:
        by: A function of the jaxpr and a vector, which evaluates the jaxpr.
    """
    vector = jax.ShapeDtypeStruct((1024,), jnp.float32)
    loop = jax.make_jaxpr(lambda x: lax.fori_loop(0, 2, lambda _, x: jnp.sin(x) + x[::-1], x))
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # the program is exported from a machine that jax uses without its CPU
        return None
    try:
        with jax.default_device(device):
            compiled = jax.jit(partial(by, loop(vector))).lower(vector).compile()
        code: Any = compiled.runtime_executable()
        return EMITTED in code.serialize()
    except Exception:  # an interface of jax has changed
        return False
