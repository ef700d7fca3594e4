"""The cycles of a program compiled for a TPU, as the compiler estimates them.

The compiled text has ``estimated_cycles`` for most instructions that compute. The body of a loop is
counted as often as it runs. The compiler has no estimate for messages between devices and for some
slices and copies; they count nothing here.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from experiments.bench.costs import is_fallback
from experiments.kernels.launches import scopes

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
_LOOP = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_BRANCHES = re.compile(r" conditional\(.*?branch_computations=\{([^}]*)\}")
_CALL = re.compile(r" call\(.*to_apply=%?([\w.\-]+)")
_CONSTANT = re.compile(r"%?([\w.\-]+) = s32\[\]\S* constant\((\d+)\)")
_LESS = re.compile(r"ROOT .* compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT")


@dataclass(frozen=True)
class Program:
    """The instructions of each computation of a compiled program.

    Attributes:
        computations: their lines, by name.
        entry: the name of the one that runs.
    """

    computations: dict[str, list[str]]
    entry: str

    def total(self, trips: Callable[[str], int]) -> int:
        """The cycles of a call.

        ``trips`` maps the name of a loop of unknown length to its number of trips; a loop that
        completes what another one has not achieved does not run.
        """
        return self._cycles(self.entry, trips)

    def trip(self, counts: Callable[[str], bool]) -> int:
        """Cycles in the body of the loop with the most, of those whose name ``counts``."""
        lines = (line for lines in self.computations.values() for line in lines)
        loops = filter(None, map(_LOOP.search, lines))
        bodies = (loop[2] for loop in loops if counts(scopes(loop.string)))
        return max((self._cycles(name, lambda _: 0) for name in bodies), default=0)

    def _cycles(self, name: str, trips: Callable[[str], int]) -> int:
        total = 0
        for line in self.computations[name]:
            if loop := _LOOP.search(line):
                if is_fallback(scopes(line)):
                    continue
                counted = self._counted(loop[1])
                times = trips(scopes(line)) if counted is None else counted
                total += times * self._cycles(loop[2], trips)
                total += (times + 1) * self._cycles(loop[1], trips)
            elif branches := _BRANCHES.search(line):
                names = [branch.strip().lstrip("%") for branch in branches[1].split(",")]
                total += max(self._cycles(branch, trips) for branch in names)
            elif call := _CALL.search(line):
                total += self._cycles(call[1], trips)
            else:
                total += sum(map(int, _ESTIMATE.findall(line)))
        return total

    def _counted(self, condition: str) -> int | None:
        """The trips of a loop that counts from 0 to a constant; None if its end depends on data."""
        lines = self.computations[condition]
        constants = {found[1]: found[2] for line in lines if (found := _CONSTANT.search(line))}
        end = next((found[1] for line in lines if (found := _LESS.search(line))), None)
        return int(constants[end]) if end in constants else None


def read(text: str) -> Program:
    """The computations of ``jax.jit(f).lower(...).compile().as_text()``.

    Raises:
        ValueError: there is no computation that runs, or no estimate.
    """
    computations: dict[str, list[str]] = {}
    entry, current = "", []
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            current = computations.setdefault(found[2], [])
            entry = found[2] if found[1] else entry
        else:
            current.append(line)
    if not entry or not _ESTIMATE.search(text):
        raise ValueError("expected a program compiled for a TPU, with estimated cycles.")
    return Program(computations, entry)
