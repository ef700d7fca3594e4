"""The candidates for a chain, and the predicted cost of each on a device."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from deeppcr._plan.candidate import (
    AUTODIFF,
    Candidate,
    busy_seconds,
    is_whole,
    iteration_seconds,
    least_seconds,
    loops_of,
)
from deeppcr._plan.costs import BACKPROPAGATION, ChainCosts
from deeppcr._plan.names import Fixed
from deeppcr.adjoint import Adjoint
from deeppcr.fused import CannotFuse
from deeppcr.linear import (
    LinearSolver,
    Sharded,
    choose_parallel_solver,
    choose_solver,
    find_solver,
)
from deeppcr.linearize import Choice, Diagonal, choose_linearization, find_linearization
from deeppcr.loops import ahead
from deeppcr.newton import Newton
from deeppcr.newton.expected import expected_iterations
from deeppcr.sequential import Sequential
from deeppcr.structure import find_structure
from depth import Cost, Device
from depth.jaxprs import equations
from depth.kernels import Loop
from depth.prediction import Seconds

BACKPROP = "backprop"
JACOBI = "zero"
# The times of jax's own derivative of a loop whose small products are written out, measured over
# predicted: the median of 45 chains (jax 0.10.2, 2 cores).
REWRITTEN = 1.5
# The same if its loops are not each one function, with others predicted right, unless a step has
# products of matrices. It multiplies step by step for the gradients of
# weights, where others do so once: that is slow for vectors (1.3 times in the median of 25 chains),
# and not for matrices (1.0 of 30; jax 0.10.2).
DIFFERENTIATED = 1.25
# The share of the bytes up to which XLA compiles a loop to one function, within which it surely
# does: they are known to a fifth.
SURE = 0.8
# By how much it has to be predicted faster than the loop as it is, if that surely is one function:
# of loops of up to 4 units it takes 0.75 to 1.3 times as long (jax 0.10.2).
CERTAIN = 1.15
# Seconds of an adjoint on a CPU besides those predicted: its kernels over many steps are handed to
# threads. Of 0 to 6e-5, this has the least regret on 180 chains (jax 0.10.2, 2 cores).
TO_THREADS = 1e-5
# Steps in a trip that are tried besides one: on a GPU a trip of 16 steps is one CUDA graph, which
# the host launches at once.
UNROLL, UNROLL_ON_GPU = 4, 16
# The same of jax's own derivative, if a CPU then still runs each loop as one function: loops of one
# number take 0.7 to 0.85 of the time (jax 0.10.2).
UNROLL_DIFFERENTIATED = (4, 2)
MOST_UNROLLED = 64  # equations of a step that is unrolled: XLA compiles each several times


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The candidates for one chain on one device.

    Attributes:
        costs: the costs of the chain's parts.
        device: the device model.
        iterations: Newton iterations with exact Jacobians, if the caller knows; None for the
            default: 2 for an affine step, else 4 + log2(L) / 2, typical of contracting chains.
        sampled: iterations by the name of the linearisation, where a sample has shown them.
        memory: bytes that Jacobian blocks may take; None for the default of this machine.
        only: the one method to compare with the sequential program; None for all that may pay off.
        trials: measured seconds of candidates, by name.
    """

    costs: ChainCosts
    device: Device
    iterations: int | None = None
    memory: int | None = None
    only: Fixed | None = None
    trials: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sampled: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", self.costs.on(cpu=self.device.small_loop > 0))

    # -- forward ----------------------------------------------------------------------------------

    def given(self, method: Fixed) -> Candidate:
        """The method given by the caller."""
        if isinstance(method, Sequential):
            return self.sequential()
        choice = self._choice(method.linearize, method.window)
        solver = find_solver(method.linear)
        if isinstance(solver, Sharded):
            solver = find_solver(solver.inside)
        if solver == find_solver("auto"):
            _, shapes = self.costs.blocks(choice.linearization)
            solver = choose_solver(shapes, "cpu" if self.costs.on_cpu else "cuda")
        found = self.newton(choice, solver, method)
        return dataclasses.replace(found, method=method)

    def sequential(self) -> Candidate:
        """The sequential program."""
        cost = self.costs.sequential
        return Candidate(Sequential(), None, cost, 0, self._seconds(cost))

    def unrolled(self) -> Iterator[Candidate]:
        """The sequential program with several steps in a trip, where that may pay off."""
        costs = self.costs
        has_graphs = self.device.node_latency is not None
        if not (costs.on_cpu or has_graphs):
            return
        unroll = UNROLL if costs.on_cpu else UNROLL_ON_GPU
        if self._can_be_unrolled(unroll):
            method, cost = Sequential(unroll=unroll), costs.unrolled(unroll)
            if has_graphs or all(map(self._stays_apart, loops_of(cost.program))):
                yield Candidate(method, None, cost, 0, self._seconds(cost))

    def _can_be_unrolled(self, unroll: int) -> bool:
        chain = self.costs.chain
        size = sum(1 for _ in equations(chain.step.jaxpr))
        return size <= MOST_UNROLLED and chain.length > unroll

    def fused(self) -> Iterator[Candidate]:
        """The sequential program as one kernel, on a GPU, if it has one: not yet to be chosen."""
        if self.device.operation_latency is not None and self.only is None:
            with suppress(CannotFuse):
                cost = self.costs.fused
                yield Candidate(
                    Sequential(fused=True), None, cost, 0, self._seconds(cost), on_request=True
                )

    def _stays_apart(self, loop: Loop) -> bool:
        """Whether several steps in a trip are compiled as several single ones.

        Otherwise XLA fuses consecutive steps, and computes much of them twice. It does not if the
        loop is compiled to one function, nor if each step ends in a product that is not written
        out.
        """
        kernels = [kernel for kernel, _ in loop.body.kernels]
        ends = any(kernel.kind == "vector product" and kernel.pieces == 1 for kernel in kernels)
        is_sum = any(kernel.is_sum for kernel in kernels)
        # A larger loop that is marked as one function gains some per cent, and is compiled longer.
        by_itself = Seconds(self.device).is_one_function(dataclasses.replace(loop, whole=False))
        return by_itself or (ends and not is_sum and not loop.whole)

    def methods(self, time_limit: float = math.inf) -> Iterator[Candidate]:
        """Newton's method, with exact blocks and with their diagonal, by solvers that may pay off.

        Also Jacobi iteration, where a sample says that it converges in a few iterations: by shapes
        alone it never is a candidate, since its iterations are those of the chain's contraction.
        It takes at least two evaluations in every iteration, which have to fit into the limit.
        """
        if self.only is not None:
            if isinstance(self.only, Newton):
                yield self.given(self.only)
            return
        if self._least_busy >= time_limit or self.least_seconds >= time_limit:
            return
        if self.costs.chain.step.not_differentiable:
            return
        exact = self._choice("auto")
        for choice in [exact, *([self._choice(Diagonal())] if self._is_wide(exact) else [])]:
            for solver in self._solvers(choice, time_limit):
                if self._waits(choice, solver) < time_limit:
                    yield self.newton(choice, solver)
        if JACOBI in self.sampled:
            choice = self._choice(JACOBI)
            yield self.newton(choice, self._solvers(choice, time_limit)[-1])  # none has work to do

    @property
    def _least_busy(self) -> float:
        return 2 * self.expected * busy_seconds(self.costs.sequential, self.device)

    @property
    def least_seconds(self) -> float:
        """A lower bound on the seconds of Newton's method: two evaluations in every iteration."""
        evaluations = 2 * self.expected * self.costs.evaluate.seconds(self.device)
        return max(self._least_busy, evaluations)

    def _waits(self, choice: Choice, solver: LinearSolver) -> float:
        """The least seconds of all solves: of those that are quick to cost, step by step."""
        if solver != find_solver("sequential") or choice.window < self.costs.chain.length:
            return 0.0
        _, shapes = self.costs.blocks(choice.linearization)
        return self.expected * self.costs.solve(solver, shapes).seconds(self.device)

    def newton(
        self, choice: Choice, solver: LinearSolver, options: Newton | None = None
    ) -> Candidate:
        """Newton's method, or a quasi-Newton method, with the expected number of iterations."""
        method = Newton(linearize=choice.linearization, linear=solver, damping=None)
        options = options or Newton(memory=self.memory, damping=None)
        given: dict[str, Any] = {
            "linearize": choice.linearization,
            "linear": solver,
            "window": choice.window,
        }
        cost, iterations = self.costs.newton(
            dataclasses.replace(options, **given), self._iterations(choice)
        )
        memory = self._bytes(choice, solver, choice.window) + 5 * self.costs.trajectory_bytes
        each = iteration_seconds(cost, self.device)
        return Candidate(method, None, cost, memory, self._seconds(cost), iterations, each)

    # -- gradients --------------------------------------------------------------------------------

    def autodiff(self) -> Candidate:
        """Jax's own derivative of the sequential program, as it is or with products written out.

        If there are none to write out, as it is: XLA computes what is sliced late once, where the
        derivative of what is sliced first computes it again (1.1 times as long for an LSTM of 16
        units and a batch of 32; jax 0.10.2).
        """
        found = self._autodiff_once()
        if is_whole(found, self.device) and self._can_be_unrolled(max(UNROLL_DIFFERENTIATED)):
            for unroll in UNROLL_DIFFERENTIATED:
                other = self._autodiff(found.rewritten, unroll)
                if self.is_surely_whole(other) and other.seconds < found.seconds:
                    return other
        return found

    def _autodiff_once(self) -> Candidate:
        """`autodiff` with one step in a trip."""
        plain = self._autodiff(rewritten=False)
        if not self.costs.has_small_products:
            return plain
        found = self._autodiff(rewritten=True)
        # Products that are written out may also be what makes a loop too large for one function.
        is_risky = is_whole(plain, self.device) and not self.is_surely_whole(found)
        margin = CERTAIN if self.is_surely_whole(plain) else 1.0
        return plain if is_risky or plain.seconds < margin * found.seconds else found

    def is_surely_whole(self, candidate: Candidate) -> bool:
        """Whether each loop is one function on a CPU, though its bytes are an estimate."""
        return is_whole(candidate, self._cautious)

    @property
    def _cautious(self) -> Device:
        """The device, on which a loop is one function only where it surely is."""
        return self.device.replace(small_loop=SURE * self.device.small_loop)

    def _autodiff(self, rewritten: bool, unroll: int = 1) -> Candidate:
        cost, kept = self.costs.autodiff(rewritten, unroll)
        found = Candidate(
            Sequential(), AUTODIFF, cost, kept, 0.0, rewritten=rewritten, unroll=unroll
        )
        more = REWRITTEN if rewritten else 1.0
        if not self.costs.on_cpu or is_whole(found, self.device):
            return dataclasses.replace(found, seconds=more * self._seconds(cost))
        more *= 1.0 if self.costs.has_products_of_matrices else DIFFERENTIATED
        # Where it is not sure that one of its loops is one function: the mean of both predictions.
        both = self._seconds(cost) * self._seconds(cost, self._cautious)
        return dataclasses.replace(found, seconds=more * math.sqrt(both))

    def adjoints(
        self, forward: Candidate, time_limit: float = math.inf, linearize: Any = "auto"
    ) -> Iterator[Candidate]:
        """Adjoints after a forward pass that stores its trajectory.

        Backpropagation through the states, step by step or by blocks; then all other gradients at
        once.
        """
        costs, chain = self.costs, self.costs.chain
        if self._seconds(forward.cost + costs.other_gradients) >= time_limit:
            return

        def backward(part: ChainCosts) -> Cost:
            return part.backpropagation + part.other_gradients

        with costs.there():
            size = BACKPROPAGATION.chunk(chain)
        cost = forward.cost + costs.in_chunks(size, backward)
        yield self._with(forward, BACKPROP, cost, 3 * costs.trajectory_bytes)
        columns = find_structure(chain.step, chain.layout).groups.shape[1]
        least = columns * least_seconds(costs.sequential, self.device)
        if forward.seconds + least >= time_limit:
            return
        choice = self._choice(linearize)
        for solver in self._solvers(choice, time_limit):

            def by_blocks(part: ChainCosts, solver: LinearSolver = solver) -> Cost:
                blocks, shapes = part.blocks(choice.linearization)
                solve = part.solve(solver, shapes, transposed=True)
                if not choice.is_exact:
                    correction = solve + part.evaluate + part.evaluate
                    solve = self._iterated(correction, self._expected(is_exact=False))
                return blocks + solve + part.other_gradients

            adjoint = Adjoint(linear=solver)
            own = find_linearization(getattr(forward.method, "linearize", "auto"))
            if linearize == "auto" and own and type(own) is not type(choice.linearization):
                # Its "auto" would be the blocks of the method, which are approximate.
                adjoint = Adjoint(linearize=choice.linearization, linear=solver)
            bound = Adjoint(choice.linearization, solver, memory=self.memory)
            with costs.there():
                size = bound.bind(chain.step, chain.layout, chain.length).chunk(chain)
            cost = forward.cost + costs.in_chunks(size, by_blocks)
            memory = 3 * costs.trajectory_bytes + self._bytes(choice, solver, size)
            yield self._with(forward, adjoint, cost, memory)

    def _iterated(self, iteration: Cost, iterations: int) -> Cost:
        """A loop whose end depends on data, except for its first iterations."""
        with self.costs.there():
            first = ahead(iterations)
        rest = iteration.repeat(iterations - first, counted=False)
        return iteration.repeat(first) + rest if first else rest

    def _with(
        self, forward: Candidate, adjoint: Adjoint | str, cost: Cost, memory: int
    ) -> Candidate:
        memory, seconds = max(memory, forward.memory), self._seconds(cost)
        seconds += TO_THREADS if self.costs.on_cpu else 0.0
        return dataclasses.replace(
            forward, adjoint=adjoint, cost=cost, memory=memory, seconds=seconds
        )

    def _seconds(self, cost: Cost, device: Device | None = None) -> float:
        device = device or self.device
        return device.call_latency + cost.seconds(device)

    # -- choices ----------------------------------------------------------------------------------

    @property
    def expected(self) -> int:
        """The expected number of Newton iterations with exact Jacobians."""
        return self.iterations or self._expected()

    def _expected(self, is_exact: bool = True) -> int:
        chain = self.costs.chain
        return expected_iterations(
            chain.length, is_exact, newton=self.iterations, is_affine=chain.step.is_affine
        )

    def _iterations(self, choice: Choice) -> int | None:
        """The number that the caller knows, or that a sample has shown; None for the default."""
        sampled = self.sampled.get(str(choice.linearization))
        if sampled is not None:
            return min(sampled, self.costs.chain.length + 1)
        if self.iterations is None:
            return None
        return self._expected(choice.is_exact)

    def _choice(self, linearize: Any, window: int | None = None) -> Choice:
        chain = self.costs.chain
        return choose_linearization(
            linearize, chain.step, chain.layout, chain.length, window, self.memory
        )

    def _is_wide(self, exact: Choice) -> bool:
        """Whether the diagonal is much smaller than exact blocks."""
        chain = self.costs.chain
        diagonal = Diagonal().bytes_per_step(chain.step, chain.layout)
        return exact.linearization.bytes_per_step(chain.step, chain.layout) >= 8 * diagonal

    def _solvers(self, choice: Choice, time_limit: float) -> list[LinearSolver]:
        sequential = find_solver("sequential")
        if time_limit < math.inf and self.costs.on_cpu:
            return [sequential]  # no parallel one has been faster: see `deeppcr.linear.choose`
        _, shapes = self.costs.blocks(choice.linearization)
        return [sequential, choose_parallel_solver(shapes)]

    def _bytes(self, choice: Choice, solver: LinearSolver, window: int) -> int:
        """Of the blocks that a solver holds."""
        chain = self.costs.chain
        each = choice.linearization.bytes_per_step(chain.step, chain.layout)
        return (1 if solver == find_solver("sequential") else 4) * window * each
