"""Device models: what an operation, a kernel and a trip of a loop take on a device.

Rates, bandwidths and sizes in `devices` are published ones, of dense arithmetic.  Latencies are
hardly ever published for a device by name: those of GPUs here are put together from what is
published for kernels in a stream and in a CUDA graph, for a scan in JAX, and for the host's wait;
those of TPUs from XLA's own cycle estimates.  They are good to a factor of two.  For the device at
hand, `calibrate` measures them.  Generic models stand in for devices of which only the kind is
known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Device:
    """What things take on one device.

    Attributes:
        name: What it is called.
        call_latency: Seconds from the call of a compiled program to its result, if it does next to
            nothing.
        kernel_latency: Seconds of a small kernel that waits for the one before it.
        loop_latency: Seconds of a step of a loop of a known number of trips, beside its kernels.
        turn_latency: Seconds of a trip of a loop whose end depends on data; on a GPU the host waits
            for the condition.
        step_latencies: Seconds of a small kernel inside a loop, by its kind: "elementwise",
            "reduction", "vector product", "short vector product" (with 4 x 4 weights, and more or
            fewer in proportion to the terms of a sum), "product", "transposed product", and "beside
            product" for all but products in a loop that has one; other kinds as "elementwise", and
            ``kernel_latency`` if it is empty. "transcendental": what such functions add.
        piece_latency: Seconds that each further product of a batch of small products adds.
        rates: Operations a second in products, by dtype.
        vector_rates: Operations a second of all else in float32, by class: "arithmetic",
            "transcendental" (``exp``, ``tanh``, ``sin`` ...), "reduction", "cumulative", "move"
            (elements that change places); ``rates`` where not given.
        bandwidth: Bytes a second from memory.
        cache_bandwidth: Bytes a second from the last cache; ``bandwidth`` if not given.
        cache: Bytes of the last cache: kernels that move less find their operands there.
        memory: Bytes of memory.
        small_loop: Bytes: XLA compiles a loop on a CPU as one piece if a trip moves no more and
            calls no library, and otherwise makes each array by a kernel of its own. The latencies
            in ``step_latencies`` are those of small loops; in others that of every array is "beside
            product", and "crowded" if there are more than a few. 0: all loops are alike.
        source: Where the figures come from.
    """

    name: str
    kernel_latency: float
    loop_latency: float
    turn_latency: float
    rates: Mapping[str, float]
    bandwidth: float
    memory: float
    source: str = field(default="", compare=False)
    call_latency: float = 0.0
    step_latencies: Mapping[str, float] = field(default_factory=dict)
    piece_latency: float = 0.0
    vector_rates: Mapping[str, float] = field(default_factory=dict)
    cache_bandwidth: float | None = None
    cache: float = 0.0
    small_loop: float = 0.0

    def __post_init__(self) -> None:
        tables = ("rates", "vector_rates", "step_latencies")
        for name in tables:
            figures = getattr(self, name)
            if not isinstance(figures, Mapping):
                raise ValueError(
                    f"{name} of {self.name} must map names to numbers, but it is {figures!r}"
                )
            object.__setattr__(self, name, dict(figures))
        if not self.rates:
            raise ValueError(f"rates of {self.name} must name a dtype at least, but they are empty")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in ("name", "source") or (
                entry.name == "cache_bandwidth" and value is None
            ):
                continue
            never_zero = entry.name in ("rates", "vector_rates", "bandwidth", "cache_bandwidth")
            for amount in value.values() if entry.name in tables else [value]:
                real = isinstance(amount, Real) and not isinstance(amount, bool)
                if not real or not amount >= 0 or (never_zero and not amount > 0):
                    raise ValueError(
                        f"{entry.name} of {self.name} must be positive, but it is {value!r}"
                    )

    def rate(self, dtype: str) -> float:
        """Operations a second in products of ``dtype``.

        Where it has none of its own, that of float32 or the nearest.
        """
        return _rate(self.rates, dtype)

    def vector_rate(self, kind: str, dtype: str) -> float:
        """Operations a second of a class other than products.

        On 64 bits half as many, on 16 as many as on 32.
        """
        if kind == "expanded":  # only where convolutions in groups are computed without
            return self.vector_rates.get(kind, inf)
        if kind == "contraction" and kind not in self.vector_rates:
            kind = "reduction"
        arithmetic = self.vector_rates.get("arithmetic", self.rate("float32"))
        rate = self.vector_rates.get(
            kind, arithmetic / 10 if kind == "transcendental" else arithmetic
        )
        return rate / 2 if dtype.endswith(("64", "128")) else rate

    def latency(self, kind: str, place: str) -> float:
        """Seconds of a small kernel at a ``place``.

        "program", "loop", "loop with product", "crowded loop" or "unrolled loop".
        """
        if place == "program" or not self.step_latencies:
            return self.kernel_latency
        if place == "crowded loop":
            crowded = self.step_latencies.get("crowded", 0.0)
            return crowded + (self.step_latencies.get(kind, 0.0) if "product" in kind else 0.0)
        if place == "loop with product" and kind not in ("product", "transposed product"):
            kind = "beside product"
        return self.step_latencies.get(
            kind, self.step_latencies.get("elementwise", self.kernel_latency)
        )

    def memory_rate(self, amount: float) -> float:
        """Bytes a second for a kernel that moves ``amount`` of them."""
        return (
            self.cache_bandwidth
            if self.cache_bandwidth and amount <= self.cache
            else self.bandwidth
        )

    def replace(self, **changes: Any) -> "Device":
        """The same device with other figures."""
        return replace(self, **changes)


def _rate(rates: Mapping[str, float], dtype: str) -> float:
    if dtype in rates:
        return rates[dtype]
    if dtype in ("float64", "complex128", "int64", "uint64") and "float64" in rates:
        return rates["float64"]
    return rates.get("float32", max(rates.values()))


_T, _G, _US = 1e12, 2**30, 1e-6
_GPU = (
    "latencies: kernels in a CUDA stream take 3 to 5 us, a lax.scan of a scalar 8 us a step "
    "(QuantEcon, JAX 0.8.1); see module"
)
_TPU = (
    "latencies: XLA's estimates of some 600 cycles for a small fusion; "
    "float32 products of full precision take 6 passes"
)


def _gpu(
    name: str,
    rates: dict[str, float],
    vector: float,
    bandwidth: float,
    memory: float,
    source: str,
    us: float,
) -> Device:
    """A GPU.

    Kernels are launched one by one; the host reads the condition of a loop that depends on data.
    """
    return Device(
        name,
        kernel_latency=us * _US,
        loop_latency=1 * _US,
        turn_latency=15 * _US,
        rates=rates,
        bandwidth=bandwidth,
        memory=memory,
        source=f"{source}; {_GPU}",
        call_latency=20 * _US,
        vector_rates={"arithmetic": vector},
    )


def _tpu(
    name: str,
    bf16: float,
    vector: float,
    bandwidth: float,
    memory: float,
    clock: float,
    source: str,
) -> Device:
    """A TPU: programs run on the chip with their loops, and products on units for bfloat16."""
    kernel = 600 / clock
    return Device(
        name,
        kernel_latency=kernel,
        loop_latency=0.1 * _US,
        turn_latency=0.2 * _US,
        rates={"bfloat16": bf16, "float32": bf16 / 6},
        bandwidth=bandwidth,
        memory=memory,
        source=f"{source}; {_TPU}",
        call_latency=30 * _US,
        vector_rates={"arithmetic": vector},
    )


class Devices(Mapping[str, Device]):
    """Device models by name, in upper or lower case: ``depth.devices["h200"]``."""

    def __init__(self, *models: Device):
        self._models = {model.name: model for model in models}
        self._names = {name.lower(): name for name in self._models}

    def __getitem__(self, name: str) -> Device:
        return self._models[self._names[name.lower()]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


# GPU rates of float32 are those of ordinary cores; float16 and bfloat16 run on tensor cores.
devices = Devices(
    _gpu(
        "V100",
        {"float64": 7.8 * _T, "float32": 15.7 * _T, "float16": 125 * _T},
        15.7 * _T,
        0.9 * _T,
        32 * _G,
        "NVIDIA V100 SXM2 32 GB: cvw.cac.cornell.edu/gpu-architecture/gpu-example-tesla-v100; "
        "openxla/xla specs/v100",
        4.0,
    ),
    _gpu(
        "A100",
        {"float64": 19.5 * _T, "float32": 19.5 * _T, "float16": 312 * _T, "bfloat16": 312 * _T},
        19.5 * _T,
        2.039 * _T,
        80 * _G,
        "NVIDIA A100 SXM4 80 GB: developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth; "
        "openxla/xla specs/a100_sxm_80",
        3.0,
    ),
    _gpu(
        "H100",
        {"float64": 66.9 * _T, "float32": 66.9 * _T, "float16": 989.4 * _T, "bfloat16": 989.4 * _T},
        66.9 * _T,
        3.352 * _T,
        80 * _G,
        "NVIDIA H100 SXM5 80 GB: www.nvidia.com/en-us/data-center/h100 (whitepaper); "
        "openxla/xla specs/h100_sxm",
        2.5,
    ),
    _gpu(
        "H200",
        {"float64": 66.9 * _T, "float32": 66.9 * _T, "float16": 989.4 * _T, "bfloat16": 989.4 * _T},
        66.9 * _T,
        4.8 * _T,
        141e9,
        "NVIDIA H200 SXM 141 GB: www.nvidia.com/en-us/data-center/h200; openxla/xla specs/h200",
        2.5,
    ),
    _tpu("TPU v4", 275 * _T, 4.3 * _T, 1.2 * _T, 32 * _G, 1.05e9, "cloud.google.com/tpu/docs/v4"),
    _tpu("TPU v5e", 197 * _T, 6.2 * _T, 0.819 * _T, 16e9, 1.5e9, "cloud.google.com/tpu/docs/v5e"),
    _tpu(
        "TPU v5p",
        459 * _T,
        14.3 * _T,
        2.765 * _T,
        95 * _G,
        1.75e9,
        "cloud.google.com/tpu/docs/v5p; jax-ml.github.io/scaling-book",
    ),
    _tpu("TPU v6e", 918 * _T, 7.2 * _T, 1.638 * _T, 32e9, 1.75e9, "cloud.google.com/tpu/docs/v6e"),
)


SMALL_LOOP = 1024.0  # bytes; XLA's flag is called xla_cpu_small_while_loop_byte_threshold


def generic_cpu(cores: int) -> Device:
    """A CPU of so many cores.

    Rounded figures of what `calibrate` measures on two cores of an AMD EPYC, scaled.

    Latencies are those of one thread whatever the number of cores, and so are one core's rates:
    pinned to one of the two, the measurement came out the same, but for products on an idle
    machine.  Above two, rates grow with the cores up to eight, since
    XLA seldom splits a kernel of a small program further, and the bandwidth of memory up to four,
        which saturate it: that is
    assumed, not measured.

    Args:
        cores: The processor cores that a process may use, at least 1.

    Returns:
        A `Device` named "generic CPU, ``cores`` cores", of 4 GiB of memory for each core.

    Example:
        >>> few, many = depth.device.generic_cpu(2), depth.device.generic_cpu(8)
        >>> many.rates["float32"] / few.rates["float32"]
        4.0
    """
    if isinstance(cores, bool) or not isinstance(cores, int) or cores < 1:
        raise ValueError(f"cores must be a whole number >= 1, but it is {cores!r}")
    scale = min(max(cores, 2), 8) / 2
    rates = {"float32": 120e9, "float64": 50e9, "bfloat16": 100e9, "float16": 100e9}
    vector_rates = {"arithmetic": 80e9, "transcendental": 1.8e9, "reduction": 2e9}
    vector_rates |= {"contraction": 12e9, "cumulative": 2e9, "move": 9e9, "expanded": 10e9}
    return Device(
        f"generic CPU, {cores} cores",
        kernel_latency=0.3 * _US,
        loop_latency=0.003 * _US,
        turn_latency=0.0035 * _US,
        rates={dtype: rate * scale for dtype, rate in rates.items()},
        bandwidth=25e9 * min(scale, 2),
        memory=4 * _G * cores,
        source="rounded figures of depth.calibrate on two cores of an AMD EPYC, jax 0.10.2; "
        "above two cores by assumption",
        call_latency=6 * _US,
        step_latencies={
            "elementwise": 0.003 * _US,
            "reduction": 0.01 * _US,
            "vector product": 0.045 * _US,
            "short vector product": 0.018 * _US,
            "product": 0.45 * _US,
            "transposed product": 0.9 * _US,
            "transcendental": 0.01 * _US,
            "beside product": 0.02 * _US,
            "crowded": 0.05 * _US,
        },
        piece_latency=0.15 * _US,
        vector_rates={kind: rate * scale for kind, rate in vector_rates.items()},
        cache_bandwidth=160e9 * scale,
        cache=16 * 2**20,
        small_loop=SMALL_LOOP,
    )


def generic_accelerator(platform: str) -> Device:
    """An accelerator of which only the platform is known.

    "tpu" has the figures of TPU v5e, all else those of A100.
    """
    name, like = (
        ("generic TPU", devices["TPU v5e"])
        if platform == "tpu"
        else ("generic GPU", devices["A100"])
    )
    return like.replace(
        name=name,
        source=f"the figures of {like.name}, for want of this device's own; {like.source}",
    )


def find_device(device: "Device | str") -> Device:
    """A `Device`, or the one of `devices` that is named."""
    if isinstance(device, Device):
        return device
    if isinstance(device, str) and device in devices:
        return devices[device]
    raise ValueError(
        f"device must be a depth.Device or one of {', '.join(map(repr, devices))}, "
        f"but it is {device!r}"
    )
