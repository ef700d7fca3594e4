"""The kernels, library calls and copies of a compiled program, one after another on a GPU.

XLA runs a program for a GPU as a sequence of thunks, which `xla_dump_to` shows: these nodes; loops
and branches over sequences; and command buffers, which are CUDA graphs: what is in one is launched
at once. (XLA's ``while_thunk.cc``, ``command_buffer_conversion_pass.cc``.)

XLA's own model writes the time of each fusion into the program, if it is asked to: what its threads
compute and read, without the launch.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

NOTHING = frozenset(["kAsyncDone"])  # thunks that launch nothing
# And those that launch only their content.
AROUND = frozenset(["kAsyncStart", "kCommandBuffer", "kDynamicSliceFusion", "kSequential"])

# What XLA takes a launch to be where it decides what to fuse: ``gpu_performance_model_base.h``.
LAUNCH = 1e-6  # seconds
ESTIMATES = {"xla_gpu_collect_cost_model_stats": True}  # the option that asks for its estimates

_THUNK = re.compile(r"^( *)(\d+): (k\w+)")
_LABEL = re.compile(r"^( *)(\w+):$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .* while\((.*)$", re.MULTILINE)
_SCOPES = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_ESTIMATE = re.compile(
    r"^\s+(?:ROOT )?%?([\w.\-]+) = .*\"reification_cost\":\[?\{[^}]*\"exec_time_us\":([^,}]+)",
    re.MULTILINE,
)
_CALL = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .* custom-call\(", re.MULTILINE)
_ANNOTATION = re.compile(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)')


class Thunk(NamedTuple):
    """A thunk, and those that it runs.

    Attributes:
        kind: what XLA calls it: "kCustomKernel", "kWhile", ...
        parts: sequences by name: "condition" and "body" of a loop, a branch, or "" for all others.
        loop: of a loop, the scopes in which jax has traced it: "jit(f)/newton/while".
        trips: of a loop; None if they depend on data.
        seconds: that it runs, as XLA estimates; 0 of what it takes for small, such as copies;
            inf of a call, of which it knows nothing.
    """

    kind: str
    parts: dict[str, list["Thunk"]]
    loop: str = ""
    trips: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Program:
    """The thunks of a program, in order."""

    thunks: list[Thunk]

    def total(self, trips: Callable[[str], int]) -> int:
        """The nodes of a call.

        ``trips`` maps the name of a loop of unknown length to its number of trips.
        """
        return int(_sum(self.thunks, trips, lambda thunk: 1))

    def seconds(self, trips: Callable[[str], int]) -> float:
        """Of a call, as XLA estimates: its kernels, and a launch of each; inf where unknown."""
        return _sum(self.thunks, trips, lambda thunk: LAUNCH + thunk.seconds)

    def trip(self, counts: Callable[[str], bool]) -> int:
        """Nodes in the body of the loop with the most, of those whose name ``counts``."""
        bodies = (body for loop, body in _bodies(self.thunks) if counts(loop))
        nodes = (_sum(body, lambda _: 0, lambda thunk: 1) for body in bodies)
        return int(max(nodes, default=0))


def read(text: str, thunks: str, metadata: str) -> Program:
    """The thunks of a compiled program.

    Args:
        text: its instructions: ``jax.jit(f).lower(...).compile().as_text()``.
        thunks: the sequence of thunks that runs.
        metadata: the instruction that each thunk is made of.

    Raises:
        ValueError: what is dumped is no sequence of thunks, or a loop in it has no instruction.
    """
    loops = dict(_INSTRUCTION.findall(text))
    seconds = dict.fromkeys(_CALL.findall(text), math.inf)
    seconds |= {name: 1e-6 * float(us) for name, us in _ESTIMATE.findall(text)}
    made_of = {int(index): name for name, index in _ANNOTATION.findall(metadata)}
    first: list[Thunk] = []
    inside: list[tuple[int, Thunk, str]] = []  # indentation, thunk, the part of it that is open
    for line in thunks.splitlines():
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
            name = made_of.get(index, "")
            loop = _loop(loops, name) if kind == "kWhile" else ("", None)
            thunk = Thunk(kind, {}, *loop, seconds.get(name, 0.0))
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


def _sum(thunks: list[Thunk], trips: Callable[[str], int], of: Callable[[Thunk], float]) -> float:
    """The sum over all nodes, each as often as it runs, ``of`` what each counts."""
    total = 0.0
    for thunk in thunks:
        parts = {name: _sum(part, trips, of) for name, part in thunk.parts.items()}
        if thunk.kind == "kWhile":
            times = trips(thunk.loop) if thunk.trips is None else thunk.trips
            if times:  # 0 * inf is no number
                total += times * parts["body"]
            if thunk.trips is None:  # else the host knows, and evaluates no condition
                total += (times + 1) * parts["condition"]
        elif thunk.kind == "kConditional":  # its longest branch
            total += max(parts.values())
        elif thunk.kind in AROUND:
            total += parts.get("", 0)
        elif thunk.parts:
            raise ValueError(f"expected a thunk without others in it, got a {thunk.kind}.")
        elif thunk.kind not in NOTHING:
            total += of(thunk)
    return total


def _bodies(thunks: list[Thunk]) -> Iterator[tuple[str, list[Thunk]]]:
    """The loops in a sequence, and their bodies."""
    for thunk in thunks:
        if thunk.kind == "kWhile":
            yield thunk.loop, thunk.parts["body"]
        for part in thunk.parts.values():
            yield from _bodies(part)
