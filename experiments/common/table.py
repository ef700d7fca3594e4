"""Plain-text tables."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text: numbers to the right, text to the left; what a row lacks stays blank.

    The columns are the keys, in the order in which they first appear.

    >>> print(table([{"run": "scan", "ms": 1.23456, "steps": 12}, {"run": "newton", "ms": 20.0}]))
    run       ms  steps
    ------  ----  -----
    scan    1.23     12
    newton    20
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return ""
    cells = [[_text(row.get(column, "")) for column in columns] for row in rows]
    right = [all(_is_blank_or_number(row.get(column, "")) for row in rows) for column in columns]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [columns, ["-" * width for width in widths], *cells]
    return "\n".join(_line(line, widths, right) for line in lines)


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table in Markdown, numbers to the right; what a row lacks stays empty.

    >>> print(markdown([{"run": "scan", "ms": 1.23456}, {"run": "newton"}]))
    | run | ms |
    |---|--:|
    | scan | 1.23 |
    | newton |  |
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not columns:
        return ""
    marks = [
        "--:" if all(_is_blank_or_number(row.get(column, "")) for row in rows) else "---"
        for column in columns
    ]
    cells = [[_text(row.get(column, "")).replace("|", "\\|") for column in columns] for row in rows]
    return "\n".join(
        [
            f"| {' | '.join(columns)} |",
            f"|{'|'.join(marks)}|",
            *(f"| {' | '.join(line)} |" for line in cells),
        ]
    )


def _text(value: Any) -> str:
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.3g}"
    return str(value)


def _is_blank_or_number(value: Any) -> bool:
    return value == "" or (isinstance(value, Real) and not isinstance(value, bool))


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(aligned).rstrip()
