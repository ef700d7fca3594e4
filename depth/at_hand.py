"""The model of the device at hand, without measuring.

The most specific model is used: the stored calibration of this device under this jax, which has
measured latencies, the decisive figures for short chains; else figures published for a device of
its name, whose rates are good to some per cent and whose latencies are good to a factor of two;
else a generic model of its platform.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from depth.calibration import cores, kept
from depth.device import Device
from depth.models import devices, generic_accelerator, generic_cpu
from depth.platforms import chosen_device, compiled_for

_IN_PLACE: ContextVar[Device | None] = ContextVar("in_place", default=None)
_SAME = {"cuda": "gpu", "rocm": "gpu"}  # names of jax for one platform
_SMALL_LOOP = re.compile(r"xla_cpu_small_while_loop_byte_threshold=(\d+)")
# The last model with a limit of its own, by the id of the model that it was made of, with that one.
# It is the same object each time, so that choices for it can be cached by identity.
_FLAGGED: dict[tuple[int, float], tuple[Device, Device]] = {}


def at_hand(platform: str | None = None) -> Device:
    """The model of the device that jax computes on. Nothing is measured.

    It is the first available of

    - the stored result of `calibrate` for this device, version of jax, number of cores and
      ``jax_enable_x64``
    - the published figures in `devices` of an accelerator of its name
    - a generic model: a CPU with as many cores as this process may use, a GPU (figures of A100), or
      a TPU (figures of TPU v5e).

    It is cheap enough to call while jax traces: the file is read only if it has changed. A file
    that is unreadable, truncated or not a calibration is ignored. On a CPU, ``small_loop`` is what
    the environment variable ``XLA_FLAGS`` says of ``xla_cpu_small_while_loop_byte_threshold``.

    Args:
        platform: "cpu", "gpu" (or "cuda", "rocm") or "tpu": the first device of that platform in
            this process, or the generic model of the platform if there is none. None: jax's default
            device.

    Returns:
        A `Device`, whose ``source`` names the origin of its figures.

    Raises:
        ValueError: If ``platform`` is neither a string nor None.

    Example:
        >>> depth.at_hand("cpu").rate("float32") > 1e9
        True
    """
    if platform is not None and not isinstance(platform, str):
        raise ValueError(
            'platform must be a name such as "cpu", "gpu" or "tpu", or None, '
            f"but it is {platform!r}"
        )
    if (device := _IN_PLACE.get()) is not None and platform in (None, device.platform):
        return device
    if found := first_device(platform):
        return model_of(found)
    return _generic(str(platform or chosen_device() or "cpu"))


@contextmanager
def in_place(device: Device) -> Iterator[None]:
    """A context in which ``device`` is the one at hand, and programs are traced for its platform.

    Programs choose by the platform, and by the model of the device, while jax traces them. So jax
    must not take a trace for another device, and later calls must not take this one: metadata are
    a part of the key of every trace.
    """
    if device == at_hand():
        yield
        return
    key = hashlib.sha256(repr(device).encode()).hexdigest()[:16]
    token = _IN_PLACE.set(device)
    try:
        with compiled_for(str(device.platform)), set_xla_metadata(traced_for=key):
            yield
    finally:
        _IN_PLACE.reset(token)


def model_of(device: jax.Device) -> Device:
    """The most specific model of one of jax's devices."""
    return _as_flagged(kept(device) or _published(device) or _generic(device.platform))


def _as_flagged(device: Device) -> Device:
    """The model with the limit of small loops that this process compiles with."""
    found = _SMALL_LOOP.findall(os.environ.get("XLA_FLAGS", ""))
    if not (device.small_loop and found):
        return device
    key = id(device), float(found[-1])
    if key not in _FLAGGED:
        _FLAGGED.clear()
        _FLAGGED[key] = device, device.replace(small_loop=key[1])
    return _FLAGGED[key][1]


def first_device(platform: str | None) -> jax.Device | None:
    """The first device of a platform in this process, or jax's default device.

    None if there is none.
    """
    chosen = chosen_device() if platform is None else platform
    if chosen is not None and not isinstance(chosen, str):
        return chosen
    try:
        return next(
            iter(jax.local_devices(backend=_SAME.get(chosen, chosen) if chosen else None)), None
        )
    except RuntimeError:  # there is no such backend, or it does not start
        return None


def _published(device: jax.Device) -> Device | None:
    """The model in `devices` of an accelerator, by its ``device_kind``.

    For example "NVIDIA A100-SXM4-80GB" or "TPU v5 lite".
    """
    if device.platform == "cpu":
        return None
    if tpu := re.search(r"tpu ?v?(\d+) ?(lite|[a-z]*)", device.device_kind.lower()):
        number, variant = tpu.groups()
        plain = "p" if number == "5" else ""  # jax calls v5p "TPU v5", and v5e and v6e "lite"
        return devices.get(f"TPU v{number}{'e' if variant == 'lite' else variant or plain}")
    words = re.split(r"[^A-Z0-9]+", device.device_kind.upper())
    return next((model for name, model in devices.items() if name in words), None)


def _generic(platform: str) -> Device:
    return _made(platform.lower(), cores())


@lru_cache(maxsize=16)
def _made(platform: str, cores: int) -> Device:
    """The same object each time, so that choices for it can be cached by identity."""
    return generic_cpu(cores) if platform == "cpu" else generic_accelerator(platform)
