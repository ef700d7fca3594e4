"""The programs that are compared on one chain: `jax.lax.scan` in several ways, and what the planner has in the running."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
from jax import lax

import deeppcr
import depth
from deeppcr import Newton, Sequential
from deeppcr._plan import Candidate, Candidates, ChainCosts
from deeppcr.adjoint import Autodiff
from deeppcr.chain import pose
from experiments.common import zoo
from experiments.common.baselines import baselines
from experiments.common.costs import cost

Row = dict[str, Any]

LONGEST_LOOP = 16  # steps of a Python loop among the loops
DIRECTIONS = ("forward", "gradient")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A fixed choice of method and adjoint."""

    label: str
    method: Any
    adjoint: Any = None

    @classmethod
    def of(cls, candidate: Candidate) -> "Choice":
        """What the planner has in the running, without a budget: one that gives up is another program than was predicted."""
        method = candidate.method
        if isinstance(method, Newton):
            method = dataclasses.replace(method, max_iterations=None)
        return cls(candidate.name, method, candidate.adjoint)

    def run(self, f: Any, init: Any, xs: Any) -> Any:
        """The scan."""
        return deeppcr.scan(
            f, init, xs, method=self.method, adjoint=self.adjoint or "sequential", batch_ndim=1
        )


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

    def field(self, model: depth.Device) -> Candidates:
        """The chain as the planner sees it."""
        task = self.task

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = task.step(task.weights, state, x)
            return state, jax.tree.leaves(state)[0]

        return Candidates(
            ChainCosts.of(pose(step, task.init, task.inputs, self.specimen.length, 1, "init")),
            model,
        )

    @property
    def loops(self) -> dict[str, Callable[..., Any]]:
        """The sequential programs that do without deeppcr, by name; plain `jax.lax.scan` is the first."""
        return baselines(self.program, self.specimen.length, LONGEST_LOOP)

    def choices(self, candidates: Iterable[Candidate]) -> Iterator[Choice]:
        """Deeppcr's own unrolled loop, and candidates."""
        adjoint = Autodiff(with_states=True) if self.is_gradient else None
        yield Choice(
            "sequential, unrolled" + (" / autodiff" if adjoint else ""),
            Sequential(unroll=4),
            adjoint,
        )
        yield from map(Choice.of, candidates)

    def depths(self, candidate: Candidate) -> Row:
        """Depth of `jax.lax.scan` and of a candidate, by as many iterations as are expected of it."""
        arguments = self.task.arguments
        sequential = cost(self.program(lax.scan), arguments, lambda: 0)
        chosen = cost(
            self.program(Choice.of(candidate).run), arguments, lambda: candidate.iterations
        )
        if sequential is None or chosen is None:
            return {}
        return {
            "sequential depth": sequential.depth,
            "depth": chosen.depth,
            "depth speedup": sequential.depth / max(chosen.depth, 1),
        }
