"""The programs that are compared on a chain: forms of `jax.lax.scan`, candidates of the planner.

Private parts of the planner are imported here and nowhere else.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
from jax import lax

import deeppcr
import depth
from deeppcr import Newton, Sequential
from deeppcr._plan import Candidate, Candidates, ChainCosts, best_gradient, best_method
from deeppcr.adjoint import Autodiff
from deeppcr.chain import trace_chain
from experiments.bench.costs import analyze
from experiments.bench.engine import Case, Outcome, measure
from experiments.bench.programs import BACKPROP, SCAN, baselines
from experiments.bench.table import Row
from experiments.bench.timing import Effort
from experiments.models import zoo

__all__ = ["DIRECTIONS", "Candidate", "Chain", "Choice", "Measured"]

LONGEST_LOOP = 16  # steps of a Python loop among the loops
DIRECTIONS = ("forward", "gradient")
AUTODIFF = "autodiff"
LOOP = Autodiff(with_states=True)  # derivatives by jax of the sequential program that "auto" runs


@dataclasses.dataclass(frozen=True)
class Choice:
    """A fixed choice of method and adjoint."""

    label: str
    method: Any
    adjoint: Any = None

    @classmethod
    def of(cls, candidate: Candidate) -> "Choice":
        """A candidate as "auto" runs it; of Newton's method, without its budget.

        A solve that stops at its budget is not what was predicted. By name, "autodiff" is
        `jax.lax.scan` itself, where "auto" rewrites the loop first.
        """
        method: Any = candidate.method
        adjoint: Any = candidate.adjoint
        if isinstance(method, Newton):
            method = dataclasses.replace(method, max_iterations=None)
        if adjoint == AUTODIFF:
            adjoint = dataclasses.replace(
                LOOP, rewritten=candidate.rewritten, unroll=candidate.unroll
            )
        return cls(candidate.name, method, adjoint)

    def run(self, f: Any, init: Any, xs: Any) -> Any:
        """The scan."""
        adjoint = self.adjoint or BACKPROP
        return deeppcr.scan(f, init, xs, method=self.method, adjoint=adjoint, batch_ndim=1)


@dataclasses.dataclass(frozen=True)
class Measured:
    """The outcomes of programs.

    Attributes:
        outcomes: by name.
        loops: names of those without deeppcr; plain `jax.lax.scan` is the first.
    """

    outcomes: Mapping[str, Outcome]
    loops: Sequence[str]

    @property
    def seconds(self) -> dict[str, float]:
        """The minimum time of each program that has the result of `jax.lax.scan`."""
        right = {name: one for name, one in self.outcomes.items() if one.is_right}
        return {name: one.timing.minimum for name, one in right.items() if one.timing}

    def best(self, names: Iterable[str]) -> str:
        """The fastest of these."""
        seconds = self.seconds
        return min((name for name in names if name in seconds), key=seconds.__getitem__)

    def cells(self, name: str, predicted: float) -> Row:
        """The cells of a program: its times, measured and predicted, memory and error."""
        one = self.outcomes[name]
        assert one.timing is not None
        return {
            "us": 1e6 * one.timing.minimum,
            "median us": 1e6 * one.timing.median,
            "max us": 1e6 * one.timing.maximum,
            "repeats": one.timing.count,
            "predicted us": 1e6 * predicted,
            "log2": math.log2(predicted / one.timing.minimum),
            **one.row,
        }

    def note(self, first: str = "") -> Row:
        """A note of all that went wrong, beginning with ``first``."""
        notes = [f"{name}: {one.note}" for name, one in self.outcomes.items() if one.note]
        notes = [*filter(None, [first]), *notes]
        return {"note": "; ".join(notes)} if notes else {}


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain in one direction, forward or gradient."""

    specimen: zoo.Specimen
    task: zoo.Task
    direction: str

    @classmethod
    def both(cls, specimen: zoo.Specimen) -> Iterator["Chain"]:
        """A chain in both directions."""
        task = zoo.task(specimen)
        return (cls(specimen, task, direction) for direction in DIRECTIONS)

    @property
    def is_gradient(self) -> bool:
        """Whether it is differentiated."""
        return self.direction == "gradient"

    def program(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The program that runs its steps by a scan."""
        return self.task.gradient(run) if self.is_gradient else self.task.forward(run)

    def candidates(
        self, model: depth.Device, everything: bool = True, memory: int | None = None
    ) -> list[Candidate]:
        """The planner's candidates, its choice first; ``everything``: also those it rules out."""
        field = self._field(model)
        if memory is not None:
            field = dataclasses.replace(field, memory=memory)
        if self.is_gradient:
            return list(best_gradient(field, None, everything=everything))
        return list(best_method(field, everything=everything))

    def running(self, model: depth.Device) -> list[Candidate]:
        """All candidates; for a gradient only those with the two best forward passes."""
        every = self.candidates(model)
        if not self.is_gradient:
            return every
        best = best_method(self._field(model), everything=True)[:2]
        forward = {candidate.method for candidate in best}
        return [candidate for candidate in every if candidate.method in forward]

    def _field(self, model: depth.Device) -> Candidates:
        return Candidates(self._costs, model)

    @cached_property
    def _costs(self) -> ChainCosts:
        """What the first plan takes most of its time for; all others share it."""
        task = self.task

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = task.step(task.weights, state, x)
            return state, jax.tree.leaves(state)[0]

        chain = trace_chain(step, task.init, task.inputs, self.specimen.length, 1, "init")
        return ChainCosts.of(chain)

    def choices(self, candidates: Iterable[Candidate]) -> Iterator[Choice]:
        """The unrolled loop of deeppcr, and candidates."""
        adjoint = LOOP if self.is_gradient else None
        label = "sequential, unrolled" + (" / autodiff" if adjoint else "")
        yield Choice(label, Sequential(unroll=4), adjoint)
        yield from map(Choice.of, candidates)

    def measure(self, programs: Mapping[str, Callable[..., Any]], effort: Effort) -> Measured:
        """Compile, check and time programs beside the loops."""
        loops = baselines(self.program, self.specimen.length, LONGEST_LOOP)
        case = Case({}, [self.task.arguments], loops, programs)
        return Measured(measure(case, effort), list(loops))

    def depths(self, candidate: Candidate) -> Row:
        """Depth of `jax.lax.scan`, and of a candidate with its expected iterations."""
        arguments, program = self.task.arguments, self.program(Choice.of(candidate).run)
        sequential = analyze(self.program(lax.scan), *arguments)
        chosen = analyze(program, *arguments, trips=candidate.iterations, rest=0)
        if not (sequential.exact and chosen.exact):
            return {}
        return {
            "sequential depth": sequential.depth,
            "depth": chosen.depth,
            "depth speedup": sequential.depth / max(chosen.depth, 1),
        }

    def realised(self, measured: Measured, name: str) -> Row:
        """The speed of a program over the fastest loop."""
        seconds, loop = measured.seconds, measured.best(measured.loops)
        assert SCAN in seconds
        return {"best loop": loop, "over best loop": seconds[loop] / seconds[name]}
