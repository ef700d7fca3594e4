"""Numbers, times and devices in words."""

from depth.device import Device


def count(value: float) -> str:
    """A number with its thousands set apart while it is short; 1.23e+18 when it is long."""
    return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"


def seconds(value: float) -> str:
    """A time with its unit: 1.23 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def nbytes(value: float) -> str:
    """Bytes with their unit: 1.23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def device_table(device: Device) -> str:
    """The figures of a device."""
    rows = [("call", seconds(device.call_latency)), ("kernel", seconds(device.kernel_latency))]
    rows += [
        ("step of a loop", seconds(device.loop_latency)),
        ("turn of a loop that depends on data", seconds(device.turn_latency)),
    ]
    rows += [
        (f"{kind} in a loop", seconds(latency)) for kind, latency in device.step_latencies.items()
    ]
    rows += [
        (f"product, {dtype}", f"{rate / 1e9:.3g} GFLOP/s") for dtype, rate in device.rates.items()
    ]
    rows += [(kind, f"{rate / 1e9:.3g} G/s") for kind, rate in device.vector_rates.items()]
    rows += [("memory bandwidth", f"{device.bandwidth / 1e9:.3g} GB/s")]
    if device.cache_bandwidth:
        rows.append(("cache bandwidth", f"{device.cache_bandwidth / 1e9:.3g} GB/s"))
    rows.append(("memory", f"{device.memory / 2**30:.3g} GiB"))
    width = max(len(name) for name, _ in rows)
    return "\n".join([device.name, *(f"  {name:<{width}}  {value:>14}" for name, value in rows)])
