"""Newton's method on a whole chain: linearise, solve, check, repeat.

All L equations ``z_l = f(z_{l-1}, x_l)`` are one root problem. At a trajectory ``Z`` Newton replaces each by its linearisation,
so that the next trajectory ``Y`` solves the linear recurrence

    Y_l = A_l Y_{l-1} + b_l,    A_l = df/dz(Z_{l-1}, x_l),    b_l = f(Z_{l-1}, x_l) - A_l Z_{l-1},    Y_0 = z_0,

which a parallel solver does in O(log L) depth (DeepPCR, Danieli et al., NeurIPS 2023, section 3). Solving for ``Y`` and not for
the update ``Y - Z`` keeps the rounding errors of the solver out of the sum. Any other ``A_l`` makes a quasi-Newton method with
the same solution: see `deeppcr.linearize`.

After k iterations the first k states are exact, so what has been found is never thrown away: a chain that does not converge
within its budget is finished sequentially. It goes on from the last state that is the sequential program's to the last bit, and
not from the last one that is so to rounding: a chain that amplifies differences, as most are that come to this, would end
elsewhere.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args

import jax.numpy as jnp

from deeppcr.acceleration import Anderson
from deeppcr.chain import Problem, Steps
from deeppcr.checks import check_count
from deeppcr.convergence import ROUNDING, Criterion
from deeppcr.damping import TrustRegion
from deeppcr.linear import LinearSolver, find_solver, on_part
from deeppcr.linearize import (
    Choice,
    Linearization,
    choose_linearization,
    constant,
    find_linearization,
)
from deeppcr.lyapunov import growth_rate
from deeppcr.newton.guess import Guess, check_guess, first_trajectory, users_guess
from deeppcr.newton.iteration import Iteration
from deeppcr.newton.precision import cast, in_float32
from deeppcr.newton.rescue import finish
from deeppcr.solution import Operands, Result, Run, Solve, Stats
from deeppcr.state import Leaves, StateLayout
from deeppcr.step import Step

OnFailure = Literal["sequential", "raise", "return"]

BUDGET = 64  # iterations: chains that suit Newton take 3 to 20
QUASI_BUDGET = 256  # without exact Jacobians they take more, and cost less


@dataclasses.dataclass(frozen=True)
class Newton:
    """Solve a chain by Newton's method, or one of its relatives, all steps at once.

    Attributes:
        linearize: what takes the place of the Jacobians: "auto", the exact Jacobian in the narrowest form that the step's
            structure proves; "dense", "diagonal", "identity", "zero"; or `BlockDiagonal`, `Diagonal`, `Scalar`, `Frozen`.
            Whichever it is, the answer is the same; see `deeppcr.plan` for what "auto" finds.
        linear: the solver of the linear recurrence in each iteration: an object or a name, see `deeppcr.solve_bidiagonal`.
        rtol: how large a residual may be, relative to the size of each entry; None for 16 units in the last place of its dtype.
        atol: how large it may be in any case, in units of the state.
        max_iterations: None for 64, or 256 without exact Jacobians, for each window. L + 1 always suffice.
        initial_guess: the trajectory to start from. "apply": every step applied to the initial state. "constant": the initial
            state, at every step. `Coarse`: a chain of larger steps. Or a trajectory, for example that of the last call, or a
            function ``(initial state, inputs) -> trajectory``: a state whose leaves carry the chain on axis 0. No derivatives
            pass through it.
        damping: `TrustRegion` (or None) keeps updates within the size of the states: for chains that amplify differences, whose
            iterates overflow or wander before they converge. An iteration then takes two solves and one more evaluation.
        acceleration: `Anderson` (or None) makes better iterates of the last few; for "identity", "zero" and other iterations that
            converge slowly and cost little.
        window: how many steps are solved at once: the window slides along the chain as its first states converge. None for all
            of them, or as many as ``memory`` holds.
        memory: bytes that Jacobian blocks may take, with the solver's copies; None for half of the accelerator's memory, or
            a quarter of the machine's.
        record: whether `Stats` has the residuals by iteration and the growth rate of the linearised chain.
        progress: None, or a function that is called while the solve runs, before the first iteration and after each: with its
            number, how many states from the start of the chain have converged, and the largest relative residual. Under
            `jax.vmap`, and on several devices, it is called once for each.
        on_failure: what to do with a chain that has not converged by then. "sequential": finish it step by step, from where it
            has. "raise": raise `NotConverged`; not possible under jit. "return": return what there is, ``result`` tells.
    """

    linearize: str | Linearization = "auto"
    linear: str | LinearSolver = "auto"
    rtol: float | None = None
    atol: float = 0.0
    max_iterations: int | None = None
    initial_guess: Guess = "apply"
    damping: TrustRegion | None = None
    acceleration: Anderson | None = None
    window: int | None = None
    memory: int | None = None
    record: bool = False
    progress: Callable[[int, int, float], None] | None = None
    on_failure: OnFailure = "sequential"

    def __post_init__(self) -> None:
        find_linearization(self.linearize)
        find_solver(self.linear)
        check_guess(self.initial_guess)
        if self.rtol is not None and not self.rtol >= 0:
            raise ValueError(f"rtol is {self.rtol}, expected a number >= 0, or None.")
        if not self.atol >= 0:
            raise ValueError(f"atol is {self.atol}, expected a number >= 0.")
        check_count("max_iterations", self.max_iterations, "how many iterations", optional=True)
        check_count("window", self.window, "how many steps", optional=True)
        check_count("memory", self.memory, "how many bytes", optional=True)
        if self.damping is not None and not isinstance(self.damping, TrustRegion):
            raise TypeError(f"damping is {self.damping!r}, expected TrustRegion(...) or None.")
        if self.acceleration is not None and not isinstance(self.acceleration, Anderson):
            raise TypeError(
                f"acceleration is {self.acceleration!r}, expected Anderson(...) or None."
            )
        if self.progress is not None and not callable(self.progress):
            raise TypeError(
                f"progress is {self.progress!r}, expected a function of iteration, prefix and residual, or None."
            )
        if self.on_failure not in get_args(OnFailure):
            raise ValueError(
                f"on_failure is {self.on_failure!r}, expected one of {get_args(OnFailure)}."
            )

    def bind(self, problem: Problem) -> tuple[Solve, Operands]:
        """What solves the chain, and the arrays that it needs beside the chain's own."""
        wide = in_float32(problem)
        step, layout = (
            wide.step,
            wide.layout,
        )  # not `wide`: the user's function must not outlive the call
        choice = self._choose(problem, step, layout)
        # A slow iteration has to be followed to the rounding of what it is computed in; Newton's is there at once.
        eps, working = (
            (problem.layout if choice.is_exact else layout).eps,
            float(jnp.finfo(layout.dtype).eps),
        )
        quadratic = choice.is_exact and not self.acceleration and not step.has_users_rule
        # What leaves a window is never looked at again, so what is still to come there adds up from window to window.
        share = min(1.0, choice.window * problem.across.size / problem.length)
        rounding = ROUNDING if quadratic else max(1.0, ROUNDING * share)
        criterion = Criterion(self.rtol, self.atol, eps, working, quadratic, rounding)

        def run(steps: Steps, initial: Leaves, operands: Operands) -> Run:
            captured, linearization = operands.shared
            inputs = cast(steps.inputs, wide_inputs)
            inside = dataclasses.replace(
                steps, step=step, layout=layout, inputs=inputs, captured=captured
            )
            bound = dataclasses.replace(choice, linearization=linearization)
            return self._run(steps, inside, initial, operands.along, bound, criterion)

        wide_inputs = [x.dtype for x in wide.inputs]
        guess = users_guess(self.initial_guess, problem.original or problem)
        if guess is not None and problem.original is not None:
            more = problem.length - problem.original.length
            guess = [
                jnp.concatenate([z, jnp.broadcast_to(z[-1:], (more, *z.shape[1:]))]) for z in guess
            ]
        return run, Operands(guess, (wide.captured, constant(choice.linearization)))

    def _choose(self, problem: Problem, step: Step, layout: StateLayout) -> Choice:
        """How the part of the chain on each device is linearised."""
        length = problem.length // problem.across.size
        if problem.across.size == 1:
            return choose_linearization(
                self.linearize, step, layout, length, self.window, self.memory
            )
        if self.window is not None:
            raise ValueError(
                f"window is {self.window}, expected None for a chain that is spread over devices."
            )
        asked = (problem.original or problem).length
        choice = choose_linearization(
            self.linearize, step, layout, length, None, self.memory, asked
        )
        return dataclasses.replace(choice, window=length)

    def _run(
        self,
        steps: Steps,
        inside: Steps,
        initial: Leaves,
        guess: Leaves | None,
        choice: Choice,
        criterion: Criterion,
    ) -> Run:
        length, layout = steps.total, inside.layout
        start = layout.flatten(cast(initial, layout.dtypes))
        iteration = self._iteration(choice, steps, criterion, continues=guess is None)
        first = first_trajectory(
            self.initial_guess, guess, inside.part(0, choice.window), start, choice.window
        )
        end = iteration.run(inside, start, first)
        ok = end.prefix >= length
        trajectory = cast(layout.unflatten(end.whole), steps.layout.dtypes)
        failure = Result.NOT_CONVERGED
        if self.on_failure == "sequential":
            failure = Result.FINISHED_SEQUENTIALLY
            trajectory = finish(steps, initial, trajectory, jnp.where(ok, length, end.exact))
        states = steps.before(initial, trajectory)
        stats = Stats(end.iterations, end.judgement.worst, end.prefix)
        if self.record:
            rate = growth_rate(inside, layout.flatten(cast(states, layout.dtypes)))
            stats = dataclasses.replace(stats, residuals=end.history, growth_rate=rate)
        outputs = steps.outputs(states, trajectory)
        return Run(
            trajectory,
            outputs,
            stats,
            jnp.where(ok, jnp.int32(Result.CONVERGED), jnp.int32(failure)),
        )

    def _iteration(
        self, choice: Choice, steps: Steps, criterion: Criterion, continues: bool
    ) -> Iteration:
        length, parts, solver = steps.total, steps.across.size, find_solver(self.linear)
        if parts > 1:
            solver = on_part(solver, steps.across)
        windows = -(-length // (choice.window * parts))
        usual = (BUDGET if choice.is_exact else QUASI_BUDGET) * windows
        return Iteration(
            linearization=choice.linearization,
            solver=solver,
            damping=self.damping,
            acceleration=self.acceleration,
            criterion=criterion,
            budget=min(self.max_iterations or usual, 2 * length if windows > 1 else length + 1),
            window=choice.window,
            continues=continues,
            history=self.record,
            progress=self.progress,
        )
