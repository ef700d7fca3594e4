"""Where jax computes if nothing else is said, and the platforms of this process."""

import jax
from jax.extend.backend import backends

GPUS = ("cuda", "rocm")  # what a device calls "gpu"


def chosen_device() -> jax.Device | str | None:
    """What jax is told to compute on by default: a device or a platform, if anything."""
    chosen: jax.Device | str | None = jax.config.jax_default_device  # type: ignore[attr-defined]
    return chosen


def default_device() -> jax.Device:
    """The device that jax computes on by default: the chosen one, or the first of this process."""
    chosen = chosen_device()
    return jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen


def platforms() -> tuple[str, ...]:
    """The platforms of this process, that of jax's default device first: "cpu", "cuda", "rocm", "tpu" .."""
    first = default_device().platform
    known = dict.fromkeys(backends())
    first = next((name for name in known if name in GPUS), "cuda") if first == "gpu" else first
    return tuple(dict.fromkeys([first, *known]))
