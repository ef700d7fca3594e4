"""The model of the device at hand, without measuring.

What is kept of it, else what is published, else what its kind is like.

The nearer model wins: a measurement of this very device under this jax (`calibrate`) tells
latencies, which decide on short chains; figures published for the device by name tell its rates to
some per cent and its latencies to a factor of two; a generic model is one of the same kind of
machine.
"""

import re
from functools import lru_cache

import jax

from depth.calibration import cores, kept
from depth.device import Device, devices, generic_accelerator, generic_cpu
from depth.platforms import chosen_device

_SAME = {"cuda": "gpu", "rocm": "gpu"}  # names of jax for one platform


def at_hand(platform: str | None = None) -> Device:
    """The model of the device that jax computes on, from what is known without computing.

    The first there is of

    1. the measurement that `calibrate` has kept of it, if it was made with this jax, number of
    cores and ``jax_enable_x64``; 2. the published figures in `devices` for an accelerator of its
    name; 3. a generic model: a CPU with as many cores as this process may use, a GPU (A100's
    figures), or a TPU (TPU v5e's).

    It may be called while jax traces: it looks at the file's date, and reads it only if that is
        new. A file that cannot be read,
    is cut off or holds something else counts as none.

    Args:
        platform: "cpu", "gpu" (or "cuda", "rocm") or "tpu": the first device of that platform in
            this process, or the generic model of the platform if there is none. None: jax's default
            device.

    Returns:
        A `Device`. Its ``source`` says where the figures are from.

    Example:
        >>> depth.at_hand("cpu").rate("float32") > 1e9
        True
    """
    if platform is not None and not isinstance(platform, str):
        raise ValueError(
            'platform must be a name such as "cpu", "gpu" or "tpu", or None, '
            f"but it is {platform!r}"
        )
    if found := first_device(platform):
        return model_of(found)
    return _generic(str(platform or chosen_device() or "cpu"))


def model_of(device: jax.Device) -> Device:
    """The nearest model of one of jax's devices."""
    return kept(device) or _published(device) or _generic(device.platform)


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
    """The model in `devices` of an accelerator by what jax calls its kind.

    "NVIDIA A100-SXM4-80GB", "TPU v5 lite".
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
    """The same object each time, so that what was chosen for it can be kept."""
    return generic_cpu(cores) if platform == "cpu" else generic_accelerator(platform)
