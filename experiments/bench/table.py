"""Rows as tables: for a terminal, and in Markdown."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from depth.report import table

Row = dict[str, Any]


def show(rows: Sequence[Mapping[str, Any]], hidden: Sequence[str] = ()) -> str:
    """Rows as aligned text; what a row lacks stays blank.

    The columns are the keys but the hidden ones, in the order in which they first appear.

    >>> print(show([{"run": "scan", "ms": 1.23456, "steps": 12}, {"run": "newton", "ms": 20.0}]))
    run       ms  steps
    scan    1.23     12
    newton    20
    """
    columns = [column for column in _columns(rows) if column not in hidden]
    return table(columns, _cells(rows, columns)) if columns else ""


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table in Markdown, numbers to the right; what a row lacks stays empty.

    >>> print(markdown([{"run": "scan", "ms": 1.23456}, {"run": "newton"}]))
    | run | ms |
    |---|--:|
    | scan | 1.23 |
    | newton |  |
    """
    columns = _columns(rows)
    if not columns:
        return ""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in _cells(rows, columns)]
    numbers = [all(_is_blank_or_number(row.get(column, "")) for row in rows) for column in columns]
    marks = ["--:" if number else "---" for number in numbers]
    lines = [f"| {' | '.join(line)} |" for line in (columns, *cells)]
    return "\n".join([lines[0], f"|{'|'.join(marks)}|", *lines[1:]])


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _cells(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    return [[_text(row.get(column, "")) for column in columns] for row in rows]


def _text(value: Any) -> str:
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.3g}"
    return str(value)


def _is_blank_or_number(value: Any) -> bool:
    return value == "" or (isinstance(value, Real) and not isinstance(value, bool))
