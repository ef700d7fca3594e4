"""What is in the running for a chain, and what each candidate is expected to cost on a device."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.linear import LinearSolver, Sharded, choose_parallel_solver, find_solver, name_of
from deeppcr.linearize import Choice, Diagonal, choose_linearization
from deeppcr.loops import ahead
from deeppcr.lyapunov import forecast_iterations
from deeppcr.newton import Newton
from deeppcr.plan.names import Fixed
from deeppcr.plan.pieces import Amount, Pieces, passes
from deeppcr.sequential import Sequential
from deeppcr.structure import find_structure
from depth import Device

QUASI = 3  # times as many iterations without exact Jacobians: a trained GRU takes 2.6 times as many, other chains 2 to 10
JUDGING = 10  # elementwise passes over the states in every iteration: the right-hand side, residuals, norms, the prefix


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to run a chain, or to differentiate it.

    Attributes:
        method: how its states are found.
        adjoint: how it is differentiated; None if it is not.
        amount: depth, work and traffic of all of it.
        memory: bytes beside the chain's own arrays, about.
        seconds: predicted, on the device that was asked about.
        iterations: of Newton's method; 0 without.
        iteration_seconds: what one of them takes.
        measured: seconds that a trial took, if there was one.
    """

    method: Fixed
    adjoint: Adjoint | Backpropagation | Autodiff | None
    amount: Amount
    memory: int
    seconds: float
    iterations: int = 0
    iteration_seconds: float = 0.0
    measured: float | None = None

    @property
    def time(self) -> float:
        """Seconds: measured, if they were, else predicted."""
        return self.seconds if self.measured is None else self.measured

    @property
    def name(self) -> str:
        """In a few words."""
        adjoint = {Autodiff: "autodiff", Backpropagation: "step by step"}.get(
            type(self.adjoint), ""
        )
        if isinstance(self.adjoint, Adjoint):
            adjoint = f"blocks, {name_of(self.adjoint.linear)}"
        method = "sequential"
        if isinstance(self.method, Newton):
            method = f"Newton, {self.method.linearize}, {name_of(self.method.linear)}"
        return f"{method} / {adjoint}" if adjoint else method

    @property
    def is_sequential(self) -> bool:
        """Whether it is the sequential program, and jax's own derivative of it."""
        return isinstance(self.method, Sequential) and (
            self.adjoint is None or isinstance(self.adjoint, Autodiff)
        )


def speedup(candidate: Candidate, sequential: Candidate) -> float:
    """How many times faster: by what was measured, if both were."""
    if candidate.measured is not None and sequential.measured is not None:
        return sequential.measured / candidate.measured
    return sequential.seconds / candidate.seconds


@dataclasses.dataclass(frozen=True)
class Field:
    """The field of candidates for one chain on one device.

    Attributes:
        pieces: of the chain.
        device: a model of it.
        iterations: of Newton's method with exact Jacobians, if the caller knows; None for the default, 4 + log2(L) / 2, which is
            what chains take that do not amplify differences.
        memory: bytes that Jacobian blocks may take; None for what this machine has.
        trials: seconds that candidates took when they were tried, by name.
    """

    pieces: Pieces
    device: Device
    iterations: int | None = None
    memory: int | None = None
    trials: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", self.pieces.on(cpu=self.device.small_loop > 0))

    # -- forward ----------------------------------------------------------------------------------------------------------------

    def given(self, method: Fixed) -> Candidate:
        """The method that the caller has chosen."""
        if isinstance(method, Sequential):
            return self.sequential()
        choice = self._choice(method.linearize)
        solver = find_solver(method.linear)
        if isinstance(solver, Sharded):
            solver = find_solver(solver.inside)
        if solver == find_solver("auto"):
            solver = self._solvers(choice, math.inf)[0]
        return dataclasses.replace(self.newton(choice, solver, self._turns(choice)), method=method)

    def sequential(self) -> Candidate:
        """The chain step by step."""
        amount = self.pieces.step_by_step
        return Candidate(Sequential(), None, amount, 0, self._seconds(amount))

    def methods(self, bar: float = math.inf) -> Iterator[Candidate]:
        """Newton's method, with exact blocks and with their diagonal alone, by every solver that may pay off in ``bar`` seconds.

        It takes at least two evaluations in every turn.
        """
        least = 2 * self.expected
        if least * self.pieces.step_by_step.busy_seconds(self.device) >= bar:
            return
        if least * self.pieces.evaluate.seconds(self.device) >= bar:
            return
        exact = self._choice("auto")
        for choice in [exact, *([self._choice(Diagonal())] if self._is_wide(exact) else [])]:
            for solver in self._solvers(choice, bar):
                yield self.newton(choice, solver, self._turns(choice))

    def newton(self, choice: Choice, solver: LinearSolver, turns: int) -> Candidate:
        """Newton's method, or a relative, in so many turns."""
        pieces = self.pieces
        blocks, shapes = pieces.blocks(choice.linearization)
        entries = math.prod(pieces.states.shape)
        judging = passes(JUDGING, entries, pieces.layout.dtype.itemsize)
        turn = blocks + pieces.solve(solver, shapes) + pieces.evaluate + judging
        amount = pieces.evaluate + self._turning(turn, turns) + pieces.evaluate
        method = Newton(linearize=choice.linearization, linear=solver)
        memory = self._bytes(choice, solver) + 5 * pieces.trajectory_bytes
        each = turn.times(1, counted=False).seconds(self.device)
        return Candidate(method, None, amount, memory, self._seconds(amount), turns, each)

    # -- gradients --------------------------------------------------------------------------------------------------------------

    def autodiff(self) -> Candidate:
        """Jax's own derivative of the sequential program."""
        amount, kept = self.pieces.autodiff
        return Candidate(
            Sequential(), Autodiff(with_states=True), amount, kept, self._seconds(amount)
        )

    def adjoints(
        self, forward: Candidate, bar: float = math.inf, linearize: Any = "auto"
    ) -> Iterator[Candidate]:
        """What follows on a forward pass that keeps its trajectory, and may pay off in ``bar`` seconds.

        That is backpropagation through the states, step by step or by blocks; then all other gradients at once.
        """
        pieces = self.pieces
        rest = pieces.pull_rest
        if self._seconds(forward.amount + rest) >= bar:
            return
        amount = forward.amount + pieces.pull_states_step_by_step + rest
        yield self._with(forward, Backpropagation(), amount, 3 * pieces.trajectory_bytes)
        columns = find_structure(pieces.step, pieces.layout).groups.shape[1]
        if forward.seconds + columns * pieces.step_by_step.least_seconds(self.device) >= bar:
            return
        choice = self._choice(linearize)
        blocks, shapes = pieces.blocks(choice.linearization)
        for solver in self._solvers(choice, bar):
            solve = pieces.solve(solver, shapes, transposed=True)
            if not choice.is_exact:
                turns = QUASI * self.expected
                solve = self._turning(solve + pieces.evaluate + pieces.evaluate, turns)
            adjoint = Adjoint(linear=solver)  # its "auto" is what `linearize` says
            memory = 3 * pieces.trajectory_bytes + self._bytes(choice, solver)
            yield self._with(forward, adjoint, forward.amount + blocks + solve + rest, memory)

    def _turning(self, turn: Amount, turns: int) -> Amount:
        """A loop whose end depends on data, but for its first turns."""
        with self.pieces.there():
            first = ahead(turns)
        rest = turn.times(turns - first, counted=False)
        return turn.times(first) + rest if first else rest

    def _with(
        self, forward: Candidate, adjoint: Adjoint | Backpropagation, amount: Amount, memory: int
    ) -> Candidate:
        seconds = self._seconds(amount)
        memory = max(memory, forward.memory)
        return dataclasses.replace(
            forward, adjoint=adjoint, amount=amount, memory=memory, seconds=seconds
        )

    def _seconds(self, amount: Amount) -> float:
        return self.device.call_latency + amount.seconds(self.device)

    # -- what there is to choose from -------------------------------------------------------------------------------------------

    @property
    def expected(self) -> int:
        """How many iterations Newton's method is expected to take with exact Jacobians."""
        return self.iterations or forecast_iterations(0.0, self.pieces.length)

    def _turns(self, choice: Choice) -> int:
        """How many iterations to expect."""
        return min(
            self.expected if choice.is_exact else QUASI * self.expected, self.pieces.length + 1
        )

    def _choice(self, linearize: Any) -> Choice:
        pieces = self.pieces
        return choose_linearization(
            linearize, pieces.step, pieces.layout, pieces.length, None, self.memory
        )

    def _is_wide(self, exact: Choice) -> bool:
        """Whether the diagonal saves much of what exact blocks take."""
        step, layout = self.pieces.step, self.pieces.layout
        return exact.linearization.bytes_per_step(step, layout) >= 8 * Diagonal().bytes_per_step(
            step, layout
        )

    def _solvers(self, choice: Choice, bar: float) -> list[LinearSolver]:
        sequential = find_solver("sequential")
        if bar < math.inf and self.pieces.on_cpu:
            return [
                sequential
            ]  # there no parallel one has ever been faster: see `deeppcr.linear.choose`
        _, shapes = self.pieces.blocks(choice.linearization)
        return [sequential, choose_parallel_solver(shapes)]

    def _bytes(self, choice: Choice, solver: LinearSolver) -> int:
        each = choice.linearization.bytes_per_step(self.pieces.step, self.pieces.layout)
        return choice.window * each * (1 if solver == find_solver("sequential") else 4)
