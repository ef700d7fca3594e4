"""Formatting of numbers, times and tables, for everything that this project prints."""

import re
from collections.abc import Sequence

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
