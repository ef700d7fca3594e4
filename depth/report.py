"""Formatting of numbers, times and tables, for everything that this project prints."""

import re
from collections.abc import Sequence

from depth.device import Device

# With its sign and its unit.
NUMBER = re.compile(r"((>=|~) )?[-+]?(\d[\d,.]*(e[-+]?\d+)?|nan|inf)( ?[a-zA-Z%/]+)?")


def count(value: float) -> str:
    """A number with thousands separators if it is short, else as 1.23e+18."""
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
        ("trip of a loop that depends on data", seconds(device.trip_latency)),
    ]
    of_graphs = {"kernel": device.node_latency, "trip of a loop": device.condition_latency}
    rows += [
        (f"{what} in a CUDA graph", seconds(latency))
        for what, latency in of_graphs.items()
        if latency is not None
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
    return f"{device.name}\n{table((), rows, '<>', indent=2)}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], align: str = "", indent: int = 0
) -> str:
    """A table as plain text: two spaces between columns, none at the end of a line.

    Args:
        header: Names of the columns; empty for none.
        rows: Cells. A row may be shorter than others: one cell is the heading of a section, none a
            blank line.
        align: A "<" or ">" for each column, left or right. Other columns are right-aligned if all
            their cells are numbers, with or without a unit; else left-aligned.
        indent: Spaces before the first column.

    Example:
        >>> print(table(("run", "ms"), [("scan", "1.23"), ("newton", "20")]))
        run       ms
        scan    1.23
        newton    20
    """
    lines = [list(row) for row in ([header, *rows] if header else rows)]
    count = max(map(len, lines), default=0)
    for line in lines:
        line += [""] * (count - len(line))
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for column in columns[len(align) :]:
        cells = [cell for cell in column[bool(header) :] if cell]
        align += ">" if cells and all(map(NUMBER.fullmatch, cells)) else "<"
    return "\n".join(
        " " * indent * any(line) + "  ".join(map("{:{}{}}".format, line, align, widths)).rstrip()
        for line in lines
    )
