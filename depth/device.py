"""`Device`: the time of an operation, a kernel and a trip of a loop on a device.

`depth.models` has those that are known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from numbers import Real
from typing import Any

# Kinds of kernels that are not fused with the operations around them.
CALLED = ("product", "transposed product", "convolution")
OPTIONAL = ("cache_bandwidth", "node_latency", "operation_latency")
TABLES = ("rates", "vector_rates")


@dataclass(frozen=True)
class Device:
    """A model of a device: latencies, rates and sizes.

    Attributes:
        name: The name of the device.
        kernel_latency: Seconds of a small kernel that depends on the one before it; on a GPU it
            includes its launch.
        loop_latency: Seconds per trip of a loop with a known number of trips, without its kernels.
        trip_latency: Seconds per trip of a loop whose end depends on data, without its kernels; on
            a GPU the host waits for the condition.
        rates: Operations per second in matrix products, by dtype.
        bandwidth: Bytes per second from memory; of a CPU, by a loop over slices of an array.
        memory: Bytes of memory.
        source: The origin of the figures.
        call_latency: Seconds of a call of a compiled program that does almost nothing.
        array_latency: Seconds of a call for each of its arguments and results.
        product_latency: Seconds of a call of a library on a CPU, in addition to those of a kernel.
        piece_latency: Seconds of each further product in a batch of small products; and of a small
            factorization on a CPU.
        threads: Threads that share a large product, whose rate is that of one.
        vector_rates: Operations per second in float32 other than products, by class: "arithmetic",
            "transcendental" (``exp``, ``tanh``, ``sin``, ...), "reduction", "cumulative", "move"
            (copied elements), "convolution". Default: ``rates``.
        cache_bandwidth: Bytes per second from the last-level cache. Default: ``bandwidth``.
        cache: Bytes of the last-level cache; kernels that move fewer bytes run from it.
        small_loop: Bytes. On a CPU, XLA compiles a loop to one function if a trip moves fewer
            bytes and calls no library; otherwise every array has a kernel of its own. Since jax
            0.12 it does so with 64 kB, before with 1 kB. 0: never.
        platform: jax's name of its platform, such as "cpu", "cuda" or "tpu", for programs that
            differ between them. None: "cpu" if there is a ``small_loop``, else "cuda".
        node_latency: Seconds of a small kernel in a CUDA graph that depends on the one before it.
            XLA makes a graph of 5 kernels or more in a row, also in a trip of a loop, and launches
            it in ``kernel_latency``. None: no graphs.
        operation_latency: Seconds of an arithmetic operation in a thread that waits for the one
            before it: in a loop that is one function of a CPU, and in recurrences that are one
            kernel of a GPU (``deeppcr.Sequential(fused=True)``). None: no such kernels.

    Raises:
        ValueError: If a figure is negative, or not a number.

    Example:
        >>> fast = depth.devices["H100"].replace(name="fast", kernel_latency=1e-6)
        >>> cost = depth.analyze(jnp.sin, jax.ShapeDtypeStruct((8,), "float32"))
        >>> depth.predict(cost, fast) < depth.predict(cost, "H100")
        True

    References:
        S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model
        for Multicore Architectures*, Communications of the ACM 52, 2009.
    """

    name: str
    kernel_latency: float
    loop_latency: float
    trip_latency: float
    rates: Mapping[str, float]
    bandwidth: float
    memory: float
    source: str = field(default="", compare=False)
    call_latency: float = 0.0
    array_latency: float = 0.0
    product_latency: float = 0.0
    piece_latency: float = 0.0
    threads: int = 1
    vector_rates: Mapping[str, float] = field(default_factory=dict)
    cache_bandwidth: float | None = None
    cache: float = 0.0
    small_loop: float = 0.0
    platform: str | None = None
    node_latency: float | None = None
    operation_latency: float | None = None

    def __post_init__(self) -> None:
        if self.platform is None:
            object.__setattr__(self, "platform", "cpu" if self.small_loop else "cuda")
        for entry in fields(self):
            name = entry.name
            value = getattr(self, entry.name)
            if name in ("name", "source", "platform") or (name in OPTIONAL and value is None):
                continue
            figures = [value]
            if name in TABLES:
                if not isinstance(value, Mapping):
                    raise ValueError(
                        f"{name} of {self.name} must map names to numbers, but it is {value!r}"
                    )
                object.__setattr__(self, name, dict(value))
                figures = list(value.values())
            never_zero = name in ("rates", "vector_rates", "bandwidth", "cache_bandwidth")
            for figure in figures:
                real = isinstance(figure, Real) and not isinstance(figure, bool)
                if not real or not figure >= 0 or (never_zero and not figure > 0):
                    raise ValueError(f"{name} of {self.name} must be positive, but it is {value!r}")
        if not self.rates:
            raise ValueError(f"rates of {self.name} must name a dtype at least, but they are empty")

    def rate(self, dtype: str) -> float:
        """Operations per second in products of ``dtype``; by default that of the nearest dtype."""
        nearest = "float64" if dtype in ("complex128", "int64", "uint64") else dtype
        for name in (dtype, nearest, "float32"):
            if name in self.rates:
                return self.rates[name]
        return max(self.rates.values())

    def vector_rate(self, kind: str, dtype: str) -> float:
        """Operations per second of a class other than products.

        Half the rate of float32 for 64 bits, the same for 16.
        """
        if kind == "expanded":  # only where grouped convolutions are expanded
            return self.vector_rates.get(kind, inf)
        arithmetic = self.vector_rates.get("arithmetic", self.rate("float32"))
        others = {"transcendental": arithmetic / 10}
        others["contraction"] = self.vector_rates.get("reduction", arithmetic)
        rate = self.vector_rates.get(kind, others.get(kind, arithmetic))
        return rate / 2 if dtype.endswith(("64", "128")) else rate

    def memory_rate(self, amount: float) -> float:
        """Bytes per second for a kernel that moves ``amount`` bytes."""
        cached = self.cache_bandwidth if amount <= self.cache else None
        return cached or self.bandwidth

    def replace(self, **changes: Any) -> "Device":
        """A copy with some attributes replaced.

        Args:
            **changes: New values, by the names of the attributes.
        """
        return replace(self, **changes)
