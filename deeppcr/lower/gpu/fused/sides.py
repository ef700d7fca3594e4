"""Entries of a step that lanes compute side by side, and what of them they share.

A lane is one of the threads that compute an example. Entries that are the same function of others
are one side, which has one statement. What many need, and many instructions result in, is the side
of the lanes that compute some of it each.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from deeppcr.lower.gpu.fused import limits
from deeppcr.lower.gpu.fused.operations import Value

WORTH = 2 * limits.EXCHANGE_INSTRUCTIONS  # instructions of all lanes from which on they share

Entry = Value | str | None  # of one example: a variable, or a number in C; None: anything
Side = tuple[Entry, ...]  # the entries of the lanes; a single one if all have the same


def sides_of(
    results: Iterable[Side], values: Iterable[Value], count: int
) -> tuple[list[Side], dict[Side, Side], dict[Entry, Side]]:
    """What ``count`` lanes compute, of a step with these statements.

    Returns:
        all sides that results are made of, each after what it is made of; for a side the one in
        which it is computed, as both leave room for each other; and for a value that lanes share
        the side in which one of them computes it.
    """
    levels, kinds, costs = _described(values)
    needed: dict[Side, None] = {}
    merged: dict[Side, Side] = {}
    source: dict[Entry, Side] = {}
    waiting = defaultdict[int, dict[Side, None]](dict)

    def wait(sides: Iterable[Side]) -> None:
        for side in sides:
            waiting[max(levels.get(x, 0) for x in side)][side] = None

    wait(results)
    while waiting:
        level = max(waiting)  # those first that are made of others
        of_all = defaultdict[int, dict[Any, None]](dict)
        of_each = defaultdict[Any, list[Side]](list)
        while waiting[level]:
            side, _ = waiting[level].popitem()
            if len(kinds_of(side)) > 1:
                needed[side] = None
                wait(parts_of(side))
            elif len(side) == 1 < count and level:
                of_all[kinds[side[0]]][side[0]] = None
            else:
                of_each[next(kinds.get(x, x) for x in side if x)].append(side)
        del waiting[level]
        sides = []
        for own in of_each.values():
            for whole, members in _merged(own).items():
                sides.append(whole)
                merged |= dict.fromkeys(members, whole)
        for same in of_all.values():
            if len(same) > 1 and sum(costs[x] for x in same) >= WORTH:
                ordered = sorted(same, key=lambda x: x.number)
                shared = list(map(side_of, slots(ordered, count)))
                source |= {x: side for side in shared for x in side}
                sides += shared
            else:
                sides += [(x,) for x in same]
        needed |= dict.fromkeys(sides)
        wait(part for side in sides for part in parts_of(side))
    return sorted(needed, key=_number), merged, source


def slots(entries: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """Entries side by side, of ``count`` lanes; the last lanes may repeat the last entry."""
    groups = (tuple(entries[k : k + count]) for k in range(0, len(entries), count))
    return [each + each[-1:] * (count - len(each)) for each in groups]


def _merged(sides: list[Side]) -> dict[Side, list[Side]]:
    """Sides that are one kind of function, those in one that leave room for each other."""
    merged: dict[Side, list[Side]] = {}
    for side in sorted(sides, key=lambda side: side.count(None)):
        found = side
        own = [side]
        for other in merged if None in side else ():
            pairs = list(zip(side, other, strict=False))
            if len(side) == len(other) and all(x == y or not (x and y) for x, y in pairs):
                found = tuple(x or y for x, y in pairs)
                own += merged.pop(other)
                break
        merged.setdefault(found, []).extend(own)
    return merged


def kind_of(entry: Value | str) -> tuple[Any, ...]:
    """What entries have in common that one statement computes."""
    if isinstance(entry, str):
        return ("number",)
    if not entry.operands:
        return "operand", entry.place[0]
    return entry.register, entry.text, len(entry.operands)


def side_of(entries: Sequence[Entry]) -> Side:
    """These entries, or the one that lanes have together."""
    known = [x for x in entries if x is not None]
    is_same = len({*known}) == 1 and (len(known) > 1 or isinstance(known[0], str))
    return tuple(known[:1] if is_same or len(entries) == 1 else entries)


def kinds_of(side: Side) -> list[tuple[Any, ...]]:
    """The kinds of the entries of a side: `kind_of`."""
    return list(dict.fromkeys(kind_of(x) for x in side if x is not None))


def parts_of(side: Side) -> list[Side]:
    """What a side is made of: its operands, or sides of one kind each."""
    if len(kinds := kinds_of(side)) > 1:
        return [_of_kind(side, kind) for kind in kinds]
    known = next(x for x in side if x is not None)
    count = 0 if isinstance(known, str) else len(known.operands)
    operands = [x.operands if isinstance(x, Value) else (None,) * count for x in side]
    return [side_of(each) for each in zip(*operands, strict=True)]


def _of_kind(side: Side, kind: tuple[Any, ...]) -> Side:
    """The entries of one kind; any other is None."""
    return side_of([x if x and kind_of(x) == kind else None for x in side])


def filled(entries: Sequence[Any]) -> list[Any]:
    """The entries, with that of the lane before in place of None."""
    last = next(x for x in entries if x is not None)
    return [last := last if x is None else x for x in entries]


def _number(side: Side) -> int:
    """A side is written after those of smaller numbers."""
    return max((x.number for x in side if isinstance(x, Value)), default=-1)


def _described(values: Iterable[Value]) -> tuple[dict[Any, int], dict[Any, int], dict[Any, int]]:
    """Of each value how many operations it is away from operands, its structure, and its cost."""
    levels: dict[Any, int] = {}
    kinds: dict[Any, int] = {}
    costs: dict[Any, int] = {}
    numbers: dict[Any, int] = {}
    for x in values:
        inner = [y for y in x.operands if isinstance(y, Value)]
        levels[x] = max((1 + levels[y] for y in inner), default=0)
        structure = kind_of(x), *(kinds.get(y, -1) for y in x.operands)
        kinds[x] = numbers.setdefault(structure, len(numbers))
        costs[x] = x.instructions + sum(costs[y] for y in inner)
    return levels, kinds, costs
