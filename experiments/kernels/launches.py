"""The launches of a compiled program: nodes on the device, launches by the host, and its waits.

XLA runs a program for a GPU as a sequence of thunks, which `xla_dump_to` shows: kernels, library
calls and copies; loops over sequences; and command buffers, which are CUDA graphs: the host
launches all that is in one at once. A loop is run by the host, unless a graph contains it. The host
knows how often a counted loop runs, and never evaluates its condition. Before each trip of any
other loop it waits for the condition. In a graph the device evaluates the condition of every loop,
and a further kernel sets what the graph does next. (XLA's ``while_thunk.cc``,
``command_buffer_conversion_pass.cc``.)
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

NOTHING = frozenset(["kAsyncDone"])  # thunks that launch nothing
AROUND = frozenset(["kAsyncStart", "kDynamicSliceFusion", "kSequential"])  # and only their content

_THUNK = re.compile(r"^( *)(\d+): (k\w+)")
_LABEL = re.compile(r"^( *)(\w+):$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .* while\((.*)$", re.MULTILINE)
_SCOPES = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_ANNOTATION = re.compile(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)')


class Dump(NamedTuple):
    """A compiled program.

    Attributes:
        text: its instructions: ``jax.jit(f).lower(...).compile().as_text()``.
        thunks: the sequence of thunks that runs.
        metadata: the instruction that each thunk is made of.
    """

    text: str
    thunks: str
    metadata: str


class Total(NamedTuple):
    """What a part of a program launches.

    Attributes:
        nodes: kernels, library calls and copies, one after another on the device.
        launches: of these and of graphs, by the host.
        waits: how often the host waits for the device.
        captured: nodes in graphs.
    """

    nodes: int = 0
    launches: int = 0
    waits: int = 0
    captured: int = 0

    def plus(self, other: "Total", times: int = 1) -> "Total":
        """This, and ``times`` the other."""
        return Total(*(mine + times * its for mine, its in zip(self, other, strict=True)))


class Thunk(NamedTuple):
    """A thunk, and those that it runs.

    Attributes:
        kind: what XLA calls it: "kCustomKernel", "kWhile", ...
        parts: sequences by name: "condition" and "body" of a loop, a branch, or "" for all others.
        loop: of a loop, the scopes in which jax has traced it: "jit(f)/newton/while".
        trips: of a loop; None if they depend on data.
    """

    kind: str
    parts: dict[str, list["Thunk"]]
    loop: str = ""
    trips: int | None = None


@dataclass(frozen=True)
class Program:
    """The thunks of a program, in order."""

    thunks: list[Thunk]

    def total(self, trips: Callable[[str], int]) -> Total:
        """All that a call launches.

        ``trips`` maps the name of a loop of unknown length to its number of trips.
        """
        return _total(self.thunks, trips, captured=False)

    def trip(self, counts: Callable[[str], bool]) -> int:
        """Nodes in the body of the loop with the most, of those whose name ``counts``."""
        bodies = (body for loop, body in _bodies(self.thunks) if counts(loop))
        return max((_total(body, lambda _: 0, captured=False).nodes for body in bodies), default=0)


def read(dump: Dump) -> Program:
    """The thunks of a compiled program.

    Raises:
        ValueError: what is dumped is no sequence of thunks, or a loop in it has no instruction.
    """
    loops = dict(_INSTRUCTION.findall(dump.text))
    made_of = {int(index): name for name, index in _ANNOTATION.findall(dump.metadata)}
    first: list[Thunk] = []
    inside: list[tuple[int, Thunk, str]] = []  # indentation, thunk, the part of it that is open
    for line in dump.thunks.splitlines():
        if label := _LABEL.match(line):
            if label[2] != "condition":  # which follows its loop, and is not indented
                while len(label[1]) <= inside[-1][0]:
                    inside.pop()
            indentation, thunk, _ = inside.pop()
            thunk.parts[label[2]] = []
            inside.append((indentation, thunk, label[2]))
        elif found := _THUNK.match(line):
            indentation, index, kind = len(found[1]), int(found[2]), found[3]
            while inside and indentation <= inside[-1][0]:
                inside.pop()
            loop = _loop(loops, made_of.get(index, "")) if kind == "kWhile" else ("", None)
            thunk = Thunk(kind, {}, *loop)
            holder = inside[-1][1].parts.setdefault(inside[-1][2], []) if inside else first
            holder.append(thunk)
            inside.append((indentation, thunk, ""))
    if not first:
        raise ValueError("expected a sequence of thunks, as XLA dumps it, but there is none.")
    return Program(first)


def _loop(loops: dict[str, str], name: str) -> tuple[str, int | None]:
    if name not in loops:
        raise ValueError(f"expected a loop among the instructions, but {name!r} is none.")
    trips = _TRIPS.search(loops[name])
    return scopes(loops[name]), int(trips[1]) if trips else None


def scopes(instruction: str) -> str:
    """The scopes in which jax has traced an instruction: "jit(f)/newton/while"; "" if unknown."""
    found = _SCOPES.search(instruction)
    return found[1] if found else ""


def _total(thunks: list[Thunk], trips: Callable[[str], int], captured: bool) -> Total:
    """What a sequence launches; ``captured``: in a graph."""
    total = Total()
    sets = Total(nodes=1, captured=1)  # the kernel that sets what the graph does next
    for thunk in thunks:
        parts = {
            name: _total(part, trips, captured or thunk.kind == "kCommandBuffer")
            for name, part in thunk.parts.items()
        }
        if thunk.kind == "kWhile":
            counted = thunk.trips
            times = trips(thunk.loop) if counted is None else counted
            total = total.plus(parts["body"], times)
            if captured or counted is None:
                after = sets if captured else Total(waits=1)
                total = total.plus(parts["condition"].plus(after), times + 1)
        elif thunk.kind == "kConditional":  # its longest branch
            total = total.plus(max(parts.values())).plus(sets if captured else Total(waits=1))
        elif thunk.kind == "kCommandBuffer":
            total = total.plus(parts[""]).plus(Total(launches=1))
        elif thunk.kind in AROUND:
            total = total.plus(parts.get("", Total()))
        elif thunk.parts:
            raise ValueError(f"expected a thunk without others in it, got a {thunk.kind}.")
        elif thunk.kind not in NOTHING:
            total = total.plus(Total(1, captured=1) if captured else Total(1, launches=1))
    return total


def _bodies(thunks: list[Thunk]) -> Iterator[tuple[str, list[Thunk]]]:
    """The loops in a sequence, and their bodies."""
    for thunk in thunks:
        if thunk.kind == "kWhile":
            yield thunk.loop, thunk.parts["body"]
        for part in thunk.parts.values():
            yield from _bodies(part)
