"""Models of devices: published ones by name, generic ones, and that of the device at hand.

Rates, bandwidths and sizes in `devices` are published figures for dense arithmetic.  Latencies are
rarely published for a specific device: those of GPUs are compiled from published latencies of
kernels in a stream, of a scan in JAX, and of a host synchronisation; those of TPUs are XLA's own
cycle estimates.  They are good to a factor of two.  Those of nodes of CUDA graphs are models, but
of H100 measured.  Devices of which only the platform is known have generic models.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from depth.device import Device
from depth.platforms import chosen_device, compiled_for, cores, first_device, is_hoisted

_T = 1e12
_G = 2**30
_US = 1e-6
WARP = 32  # threads of a GPU whose reads run one after another where these are out of order
_GPU = (
    "latencies: kernels in a CUDA stream take 3 to 5 us, a lax.scan of a scalar 8 us a step "
    "(QuantEcon, JAX 0.8.1); a wait of the host 15 us, a node of a CUDA graph 0.4 of a launch: "
    "models; see module"
)
_HOPPER = (
    "measured on an H100 with jax 0.11.2: a call, a node of a CUDA graph, waits of the host of 9 "
    "to 25 us, 13 loops in one kernel each, cyclic reduction of 16 x 16 blocks"
)
_TPU = (
    "latencies: XLA's estimates of the cycles of a small fusion, libtpu 0.0.52; "
    "float32 products of full precision take 6 passes"
)
_SOURCES = {
    "V100": "NVIDIA V100 SXM2 32 GB: cvw.cac.cornell.edu/gpu-architecture/gpu-example-tesla-v100; "
    "openxla/xla specs/v100",
    "A100": "NVIDIA A100 SXM4 80 GB: developer.nvidia.com/blog/"
    "nvidia-ampere-architecture-in-depth; openxla/xla specs/a100_sxm_80",
    "H100": "NVIDIA H100 SXM5 80 GB: www.nvidia.com/en-us/data-center/h100 (whitepaper); "
    f"openxla/xla specs/h100_sxm; {_HOPPER}",
    "H200": "NVIDIA H200 SXM 141 GB: www.nvidia.com/en-us/data-center/h200; "
    f"openxla/xla specs/h200; {_HOPPER}",
    "B200": "NVIDIA HGX B200 180 GB: resources.nvidia.com/en-us-blackwell-architecture; "
    "latencies of H100",
    "L40S": "NVIDIA L40S 48 GB: www.nvidia.com/en-us/data-center/l40s",
    "RTX 4090": "NVIDIA GeForce RTX 4090 24 GB: images.nvidia.com, Ada GPU architecture",
    "MI300X": "AMD Instinct MI300X 192 GB: www.amd.com/en/products/accelerators/instinct/mi300",
}
# TFLOP/s in float64, float32 and half precision, TB/s, bytes, us of a launch, of a node of a graph
# and of a call, GHz, and clock cycles until the result of an addition or multiplication can be
# used (0: no graphs, no loops in one kernel). These are measured from Volta on by Z. Jia et al.,
# *Dissecting the NVIDIA Volta GPU architecture via microbenchmarking*, 2018, and by W. Luo et al.,
# *Benchmarking and dissecting the Nvidia Hopper GPU architecture*, 2024. Rates of float32 are those
# of ordinary cores; half precision runs on tensor cores.
_GPUS = {
    "V100": (7.8, 15.7, 125, 0.9, 32 * _G, 4.0, 1.6, 20, 1.53, 4),
    "A100": (19.5, 19.5, 312, 2.039, 80 * _G, 3.0, 1.2, 20, 1.41, 4),
    "H100": (66.9, 66.9, 989.4, 3.352, 80 * _G, 2.5, 1.2, 72, 1.98, 5),
    "H200": (66.9, 66.9, 989.4, 4.8, 141e9, 2.5, 1.2, 72, 1.98, 5),
    "B200": (37, 75, 2250, 8, 180e9, 2.5, 1.2, 72, 1.97, 5),
    "L40S": (1.43, 91.6, 362, 0.864, 48e9, 3.0, 1.2, 20, 2.52, 4),
    "RTX 4090": (1.29, 82.6, 165, 1.008, 24e9, 3.0, 1.2, 20, 2.52, 4),
    "MI300X": (81.7, 163.4, 1307, 5.3, 192e9, 4.0, 0, 20, 2.1, 0),
}
# TFLOP/s in bfloat16 and of the vector unit, TB/s, bytes, GHz, and cycles of a small fusion: the
# least estimate in programs compiled by jax 0.12.0 (`python -m experiments kernels` reads them).
_TPUS = {
    "TPU v4": (275, 4.3, 1.2, 32 * _G, 1.05, 612),
    "TPU v5e": (197, 6.2, 0.819, 16e9, 1.5, 1825),
    "TPU v5p": (459, 14.3, 2.765, 95 * _G, 1.75, 2122),
    "TPU v6e": (918, 7.2, 1.638, 32e9, 1.75, 2120),
}


def _gpu(name: str) -> Device:
    """The host launches kernels and graphs of them.

    It reads the condition of a loop that depends on data.
    """
    double, single, half, bandwidth, memory, launch, node, call, ghz, cycles = _GPUS[name]
    rates = {"float64": double, "float32": single, "float16": half}
    rates |= {} if name == "V100" else {"bfloat16": half}
    return Device(
        name,
        kernel_latency=launch * _US,
        loop_latency=1 * _US,
        trip_latency=15 * _US,
        rates={dtype: rate * _T for dtype, rate in rates.items()},
        bandwidth=bandwidth * _T,
        memory=memory,
        source=f"{_SOURCES[name]}; {_GPU}",
        call_latency=call * _US,
        vector_rates={"arithmetic": single * _T, "move": single * _T / WARP},
        platform="rocm" if name.startswith("MI") else "cuda",
        node_latency=node * _US if node else None,
        operation_latency=cycles / (ghz * 1e9) if cycles else None,
    )


def _tpu(name: str) -> Device:
    """Programs run on the chip with their loops, and products on units for bfloat16."""
    half, vector, bandwidth, memory, ghz, cycles = _TPUS[name]
    site = f"cloud.google.com/tpu/docs/{name.split()[1]}; jax-ml.github.io/scaling-book"
    return Device(
        name,
        kernel_latency=cycles / (ghz * 1e9),
        loop_latency=0.1 * _US,
        trip_latency=0.2 * _US,
        rates={"bfloat16": half * _T, "float32": half * _T / 6},
        bandwidth=bandwidth * _T,
        memory=memory,
        source=f"{site}; {_TPU}",
        call_latency=30 * _US,
        vector_rates={"arithmetic": vector * _T},
        platform="tpu",
    )


class Devices(Mapping[str, Device]):
    """Device models by name, in upper or lower case.

    Example:
        >>> depth.devices["h200"].name, "TPU v4" in depth.devices
        ('H200', True)
    """

    def __init__(self, *models: Device):
        self._models = {model.name.lower(): model for model in models}

    def __getitem__(self, name: str) -> Device:
        return self._models[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return (model.name for model in self._models.values())

    def __len__(self) -> int:
        return len(self._models)


devices = Devices(*map(_gpu, _GPUS), *map(_tpu, _TPUS))
"""Published models of accelerators by name, in upper or lower case.

Example:
    >>> sorted(name for name in depth.devices if "TPU" not in name)
    ['A100', 'B200', 'H100', 'H200', 'L40S', 'MI300X', 'RTX 4090', 'V100']
"""


# Bytes; XLA's flag is called xla_cpu_small_while_loop_byte_threshold. Since jax 0.12 a pass does so
# with loops of more bytes.
SMALL_LOOP, HOISTED = 1024.0, 65536.0


def generic_cpu(cores: int) -> Device:
    """A generic CPU: rounded figures of two cores of an AMD EPYC.

    Twelve figures were fitted to the times of all rows of the plans of 112 programs, with jax
    0.12.0 and 0.10.2: cells, filters, equations, layers, many leaves.
    `python -m experiments foresight` compares predictions with times of other programs.

    No figure but the memory and the threads that share a large product depends on the number of
    cores: XLA seldom splits a kernel of a small program. Above two cores that is assumed, not
    measured.

    Args:
        cores: The number of processor cores that the process may use, an integer >= 1.

    Returns:
        A `Device` named "generic CPU, ``cores`` cores", with 4 GiB of memory per core.

    Raises:
        ValueError: If ``cores`` is not an integer >= 1.

    Example:
        >>> few, many = depth.models.generic_cpu(2), depth.models.generic_cpu(8)
        >>> many.threads / few.threads
        4.0
    """
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ValueError(f"cores must be a whole number >= 1, but it is {cores!r}")
    # Beside each figure what shows it best, measured with jax 0.12.0 and with 0.10.2.
    wait = 1.1e-9  # x * 0.9, again and again: 1.3 and 1.2 ns more for each
    product = 210e9  # 16 x 128 by 128 x 128 in a loop: 209e9 and 220e9
    arithmetic = 31e9  # x * 0.9 of 4096 entries: 43e9 and 36e9
    return Device(
        f"generic CPU, {cores} cores",
        kernel_latency=0.03 * _US,  # 32 arrays in a trip: 0.028 and 0.041 each
        loop_latency=wait,
        trip_latency=wait,
        rates={"float32": product, "float64": product / 2},
        bandwidth=15e9,  # 300 states of 8 x 32, read and written: 16e9 and 14e9
        memory=4 * _G * cores,
        source="fitted to rows of plans on two cores of an AMD EPYC, jax 0.12.0 and 0.10.2",
        call_latency=3.7 * _US,  # x + 1: 4.2 and 4.2
        array_latency=1.85 * _US,  # 64 arguments and results: 0.65, called again and again
        product_latency=0.385 * _US,  # 8 x 8 by 8 x 8 in a loop: 0.25 and 0.28
        piece_latency=0.10 * _US,  # the Cholesky factor of 3 x 3, in a batch of 8: 0.07 and 0.07
        threads=min(cores, 8),
        vector_rates={
            "arithmetic": arithmetic,
            "transcendental": 4.85e9,  # tanh of 4096 entries: 4.0e9 and 3.9e9
            "reduction": 1.7e9,  # a sum of 64: 2.6e9 and 2.6e9
            "cumulative": 1.7e9,
            "move": 8e9,  # 128 x 128 transposed for a product: 13e9 and 14e9
            "convolution": 4e9,  # from an older fit, jax 0.10.2
            "expanded": 4e9,
        },
        cache_bandwidth=4 * arithmetic,  # of float32
        cache=16 * 2**20,
        small_loop=SMALL_LOOP,
        operation_latency=wait,
    )


def find_device(device: "Device | str") -> Device:
    """The `Device` itself, or the one in `devices` of that name."""
    if isinstance(device, Device):
        return device
    if isinstance(device, str) and device in devices:
        return devices[device]
    raise ValueError(
        f"device must be a depth.Device or one of {', '.join(map(repr, devices))}, "
        f"but it is {device!r}. For one of your own: "
        'depth.devices["A100"].replace(name=..., bandwidth=..., ...)'
    )


# -- the device at hand ----------------------------------------------------------------------------

_IN_PLACE: ContextVar[Device | None] = ContextVar("in_place", default=None)
_SMALL_LOOP = re.compile(r"xla_cpu_small_while_loop_byte_threshold=(\d+)")


def at_hand(platform: str | None = None) -> Device:
    """The model of the device that jax computes on. Nothing is measured.

    An accelerator that `devices` has is found by its kind. Every other device has a generic model:
    a CPU with as many cores as this process may use, a GPU (figures of A100), or a TPU (figures of
    TPU v5e). On a CPU, ``small_loop`` is what the environment variable ``XLA_FLAGS`` says of
    ``xla_cpu_small_while_loop_byte_threshold``, else what XLA does: it is asked once.

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
    return _generic(str(platform or chosen_device() or "cpu").lower(), cores(), "")


def model_of(device: jax.Device) -> Device:
    """The model of one of jax's devices, by its ``device_kind``.

    For example "NVIDIA A100-SXM4-80GB" or "TPU v5 lite".
    """
    kind = device.device_kind
    if device.platform == "cpu":
        found = None
    elif tpu := re.search(r"tpu ?v?(\d+) ?(lite|[a-z]*)", kind.lower()):
        number, variant = tpu.groups()
        plain = "p" if number == "5" else ""  # jax calls v5p "TPU v5", and v5e and v6e "lite"
        found = devices.get(f"TPU v{number}{'e' if variant == 'lite' else variant or plain}")
    else:
        words = f" {' '.join(re.split(r'[^A-Z0-9]+', kind.upper()))} "
        found = next((model for name, model in devices.items() if f" {name} " in words), None)
    return found or _generic(device.platform, cores(), os.environ.get("XLA_FLAGS", ""))


@lru_cache(maxsize=16)
def _generic(platform: str, cores: int, flags: str) -> Device:
    """The same object each time, so that choices for it can be cached by identity."""
    if platform == "cpu":
        limit = HOISTED if is_hoisted() else SMALL_LOOP
        if limits := _SMALL_LOOP.findall(flags):
            limit = float(limits[-1])
        return generic_cpu(cores).replace(small_loop=limit)
    name, like = ("TPU", "TPU v5e") if platform == "tpu" else ("GPU", "A100")
    source = f"the figures of {like}, since this device has none; {devices[like].source}"
    return devices[like].replace(name=f"generic {name}", source=source)


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
