"""Rows as tables: for a terminal, with a legend of their columns, and in Markdown.

An experiment describes the columns that it prints: a dictionary of their names, in the order in
which they are printed, with one line on what each one holds. Its file may have more columns.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from depth.report import NUMBER, table

Row = dict[str, Any]
Columns = Mapping[str, str]

WIDTH = 120  # of everything that is printed
NOTE = "note"  # the column that is printed in lines below its table
# Columns that say which case a row belongs to; where all rows agree, they stand above the table.
LABELS = (
    "target",
    "entry",
    "kind",
    "data",
    "activation",
    "chain",
    "scaling",
    "on paper",
    "L",
    "w",
    "batch",
    "modules",
    "steps",
    "direction",
    "growth rate",
    "forecast",
    "jax",
)


def show(rows: Sequence[Mapping[str, Any]], columns: Columns | None = None) -> str:
    """Rows as aligned text of at most `WIDTH` columns; what a row lacks stays blank.

    What all rows have in common stands above the table, notes stand below it. The last columns are
    left out where they do not fit; a line below the table names them.

    Args:
        rows: what to print.
        columns: which of their cells, in this order; None for all.

    Example:
        >>> print(show([{"run": "scan", "ms": 1.23456, "L": 12}, {"run": "newton", "L": 12}]))
        L = 12
        run       ms
        scan    1.23
        newton
    """
    return layout(rows, columns)[0]


def layout(
    rows: Sequence[Mapping[str, Any]], columns: Columns | None = None, title: str = ""
) -> tuple[str, list[str]]:
    """The text of `show` below a title, and the names of the columns that are in it."""
    there = dict.fromkeys(key for row in rows for key in row)
    names = [name for name in columns or there if name in there and name != NOTE]
    common = [name for name in names if name in LABELS and _agree(rows, name)]
    caption = ", ".join(f"{name} = {_text(rows[0][name])}" for name in common)
    caption = ": ".join(filter(None, [title, caption]))
    body, fitting = _fitted(rows, [name for name in names if name not in common])
    notes = [f"{_name_of(row, names)}: {row[NOTE]}" for row in rows if row.get(NOTE)]
    if left := [name for name in names if name not in common and name not in fitting]:
        notes.insert(0, f"not shown: {', '.join(left)}")
    below = [textwrap.fill(note, WIDTH, subsequent_indent="  ") for note in notes]
    text = "\n".join(filter(None, [textwrap.fill(caption, WIDTH), body, *below]))
    return text, [*common, *fitting]


def wrapped(text: str) -> str:
    """A text whose lines have at most `WIDTH` columns."""
    return "\n".join(textwrap.fill(line, WIDTH) for line in text.splitlines())


def legend(columns: Columns) -> str:
    """A line for each column on what it holds."""
    width = max(map(len, columns), default=0)
    lines = [
        textwrap.fill(f"{name:<{width}}  {text}", WIDTH - 2, subsequent_indent=" " * (width + 2))
        for name, text in columns.items()
    ]
    return textwrap.indent("\n".join(lines), "  ")


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
    cells = [[cell.replace("|", "\\|") for cell in line] for line in _cells(rows, columns)]
    numbers = [all(_is_blank_or_number(row.get(column, "")) for row in rows) for column in columns]
    marks = ["--:" if number else "---" for number in numbers]
    lines = [f"| {' | '.join(line)} |" for line in (columns, *cells)]
    return "\n".join([lines[0], f"|{'|'.join(marks)}|", *lines[1:]])


def _agree(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({_text(row.get(name, "")) for row in rows}) == 1


def _fitted(rows: Sequence[Mapping[str, Any]], names: list[str]) -> tuple[str, list[str]]:
    """The table without the last columns, where they do not fit, and the names of those that do."""
    cells = _cells(rows, names)
    columns = list(zip(*cells, strict=True))
    headings = []
    for name, column in zip(names, columns, strict=True):
        # A heading breaks at its blanks where it is wider than the cells below it.
        width = max(map(len, [*column, *name.split()]))
        headings.append(textwrap.wrap(name, width, break_on_hyphens=False))
    height = max(map(len, headings), default=0)
    above = zip(*([""] * (height - len(lines)) + lines for lines in headings), strict=True)
    lines = [list(line) for line in (*above, *cells)]
    align = "".join(">" if _are_numbers(column) else "<" for column in columns)
    for count in range(len(names), 0, -1):
        text = table((), [line[:count] for line in lines], align[:count]).lstrip("\n")
        if max(map(len, text.splitlines())) <= WIDTH:
            return text, names[:count]
    return "", []


def _name_of(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """A row in a word: its program, or else its first cell."""
    return _text(next((row[name] for name in ("program", "row", *names) if name in row), ""))


def _cells(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    return [[_text(row.get(column, "")) for column in columns] for row in rows]


def _text(value: Any) -> str:
    if isinstance(value, Real) and not isinstance(value, Integral):
        return f"{float(value):.3g}"
    return str(value)


def _are_numbers(cells: Iterable[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(map(NUMBER.fullmatch, filled))


def _is_blank_or_number(value: Any) -> bool:
    return value == "" or (isinstance(value, Real) and not isinstance(value, bool))
