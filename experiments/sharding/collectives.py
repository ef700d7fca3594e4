"""The collective operations of a compiled program, read from its text."""

import re
from collections.abc import Iterator
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

# "ROOT %name = f32[8,4]{0,1} all-gather(...)"; in two parts: "%name = (f32[1]{0}, f32[8]{0})
# all-gather-start(...)".
_CALL = re.compile(
    rf"^\s*(?:ROOT )?\S+ = (?P<shape>.+?) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\(",
    re.MULTILINE,
)
_ARRAY = re.compile(r"(?P<dtype>[a-z][a-z0-9]*)\[(?P<sizes>[0-9,]*)\]")


class Sent(NamedTuple):
    """Collectives of one kind: how many, and the bytes of their results on one device."""

    number: int
    bytes: int


def collectives(text: str) -> dict[str, Sent]:
    """The collective operations of a program.

    The body of a while loop counts once, whatever its trips, and so does each branch of a
    conditional. Bytes are those of the results on one device: what it receives, and what it had.

    Args:
        text: as of ``compiled.as_text()``.

    Returns:
        Number and bytes of each kind that occurs, in the order of `KINDS`.
    """
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for call in _CALL.finditer(text):
        shape, kind = call["shape"], call["kind"]
        # The start of an all-reduce returns its result; of all others: operands, results, ...
        if call["start"] and kind != "all-reduce":
            shape = list(_elements(shape))[1]
        found[kind].append(bytes_of(shape))
    return {kind: Sent(len(sizes), sum(sizes)) for kind, sizes in found.items() if sizes}


def bytes_of(shape: str) -> int:
    """The bytes of an array or a tuple, as shapes are written in a program.

    ``(f32[4,1]{1,0}, s32[])``.
    """
    total = 0
    for array in _ARRAY.finditer(shape):
        number = re.search(r"\d+", array["dtype"])
        bits = int(number[0]) if number else 8 * (array["dtype"] == "pred")  # a token has none
        for size in filter(None, array["sizes"].split(",")):
            bits *= int(size)
        total += -(-bits // 8)
    return total


def _elements(shape: str) -> Iterator[str]:
    """The elements of a tuple; those of tuples inside it are left together."""
    depth, start = 0, 1
    for index, letter in enumerate(shape):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            yield shape[start:index]
            start = index + 1
