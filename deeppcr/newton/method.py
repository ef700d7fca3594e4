"""Newton's method on a whole chain: linearise, solve, check, repeat.

All L equations ``z_l = f(z_{l-1}, x_l)`` are one root problem. At a trajectory ``Z`` Newton's
method replaces each by its linearisation, so that the next trajectory ``Y`` solves the linear
recurrence

    Y_l = A_l Y_{l-1} + b_l,    A_l = df/dz(Z_{l-1}, x_l),    b_l = f(Z_{l-1}, x_l) - A_l Z_{l-1},

with ``Y_0 = z_0``, which a parallel solver does in O(log L) depth (DeepPCR, Danieli et al.,
NeurIPS 2023, section 3). Solving for ``Y`` and not for the update ``Y - Z`` keeps the rounding
errors of the solver out of the sum. Any other ``A_l`` makes a quasi-Newton method with the same
solution: see `deeppcr.linearize`.

After k iterations the first k states are exact, so what has been found is never thrown away: a
chain that does not converge within its budget is finished sequentially. The fallback starts from
the last state that is the sequential program's to the last bit, not from the last one that is so to
rounding: a chain that amplifies differences, as most are that come to this, would end elsewhere.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, get_args

import jax.numpy as jnp

from deeppcr.axis import LOCAL
from deeppcr.chain import TracedChain
from deeppcr.checks import check_count, check_tolerance, describe, did_you_mean
from deeppcr.linear import LinearSolver, find_solver, solver_on
from deeppcr.linearize import (
    Choice,
    Linearization,
    choose_linearization,
    constant,
    find_linearization,
)
from deeppcr.newton.acceleration import Anderson
from deeppcr.newton.convergence import ROUNDING, Criterion
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.guess import Guess, check_guess, users_guess
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.newton.precision import in_float32
from deeppcr.state import Leaves

OnFailure = Literal["sequential", "raise", "return"]

BUDGET = 64  # iterations: chains that suit Newton take 3 to 20
QUASI_BUDGET = 256  # without exact Jacobians they take more, and cost less


@dataclasses.dataclass(frozen=True)
class Newton:
    """Solve a chain by Newton's method, or one of its relatives, all steps at once.

    Attributes:
        linearize: what takes the place of the Jacobians: "auto", the exact Jacobian in the
            narrowest form that the step's structure proves; "dense", "diagonal", "identity",
            "zero"; or `BlockDiagonal`, `Diagonal`, `Scalar`. The answer is the same with each;
            `deeppcr.plan` prints what "auto" finds.
        linear: the solver of the linear recurrence in each iteration: an object or a name, see
            `deeppcr.solve_bidiagonal`.
        rtol: the largest residual, relative to the size of each entry; None for 16 units in the
            last place of its dtype.
        atol: the largest residual in any case, in units of the state.
        max_iterations: None for 64, or 256 without exact Jacobians, for each window. L + 1 always
            suffice.
        initial_guess: the trajectory to start from. "apply": every step applied to the initial
            state. "constant": the initial state, at every step. `Coarse`: a chain of larger steps.
            Or a trajectory, for example that of the last call, or a function
            ``(initial state, inputs) -> trajectory``: a state whose leaves carry the chain on axis
            0. No derivatives pass through it.
        damping: `TrustRegion` (or None) keeps updates within the size of the states: for chains
            that amplify differences, whose iterates overflow or wander before they converge. An
            iteration then takes two solves and one more evaluation.
        acceleration: `Anderson` (or None) combines the last few iterates; for "identity", "zero"
            and other iterations that converge slowly and cost little.
        jacobian_every: the number of iterations that share their blocks; more than 1 pays where
            Jacobians cost more than the recurrence. Source: the chord method, e.g. Kelley,
            *Iterative Methods for Linear and Nonlinear Equations*, section 5.4.1.
        window: the number of steps that are solved at once: the window slides along the chain as
            its first states converge. None for all of them, or as many as ``memory`` holds. On a
            chain that is sharded over devices, the number on each device. If that is less than a
            shard, the shards are solved one after another, and a window never spans two: each
            device holds no more blocks than that, but only one works at a time, so devices save
            memory and no time.
        memory: bytes that Jacobian blocks may take on each device, with the solver's copies; None
            for half of the accelerator's memory, or a quarter of the machine's.
        record: whether `Stats` has the residuals by iteration and the growth rate of the linearised
            chain.
        progress: None, or a function that is called while the solve runs, before the first
            iteration and after each: with its number, the number of states from the start of the
            chain that have converged, and the largest relative residual. Under `jax.vmap`, and on
            several devices that work together, it is called once for each.
        on_failure: what to do with a chain that has not converged by then. "sequential": finish it
            step by step, from where it has. "raise": raise `NotConverged`; not possible under jit.
            "return": return what there is; ``result`` says so.
    """

    linearize: str | Linearization = "auto"
    linear: str | LinearSolver = "auto"
    rtol: float | None = None
    atol: float = 0.0
    max_iterations: int | None = None
    initial_guess: Guess = "apply"
    damping: TrustRegion | None = None
    acceleration: Anderson | None = None
    jacobian_every: int = 1
    window: int | None = None
    memory: int | None = None
    record: bool = False
    progress: Callable[[int, int, float], None] | None = None
    on_failure: OnFailure = "sequential"

    def __post_init__(self) -> None:
        find_linearization(self.linearize)
        find_solver(self.linear, "linear")
        check_guess(self.initial_guess)
        check_tolerance("rtol", self.rtol, optional=True)
        check_tolerance("atol", self.atol)
        check_count("max_iterations", self.max_iterations, "how many iterations", optional=True)
        check_count("jacobian_every", self.jacobian_every, "how many iterations share their blocks")
        check_count("window", self.window, "how many steps", optional=True)
        check_count("memory", self.memory, "how many bytes", optional=True)
        if self.damping is not None and not isinstance(self.damping, TrustRegion):
            raise TypeError(
                f"damping is {describe(self.damping)}, expected TrustRegion(...) or None."
            )
        if self.acceleration is not None and not isinstance(self.acceleration, Anderson):
            raise TypeError(
                f"acceleration is {describe(self.acceleration)}, expected Anderson(...) or None."
            )
        if self.progress is not None and not callable(self.progress):
            raise TypeError(
                f"progress is {describe(self.progress)}, "
                "expected a function of iteration, prefix and residual, or None."
            )
        if self.on_failure not in get_args(OnFailure):
            raise ValueError(
                f"on_failure is {describe(self.on_failure)}, expected one of "
                f"{get_args(OnFailure)}{did_you_mean(self.on_failure, get_args(OnFailure))}"
            )

    def bind(self, chain: TracedChain, asked: TracedChain) -> NewtonSolver:
        """The solver of ``chain``, with every option resolved.

        ``asked``: the chain as the user has it, without steps that were added for even shards.
        """
        wide = in_float32(chain)
        choice = self._choose(wide, asked.length)
        is_newton = choice.is_exact and self.jacobian_every == 1
        # A slow iteration has to be followed to the rounding of its own dtype, Newton's has not.
        eps = (chain.layout if is_newton else wide.layout).eps
        working = float(jnp.finfo(wide.layout.dtype).eps)
        quadratic = is_newton and not self.acceleration and not wide.step.has_users_rule
        # On several devices all shards together are one window, or each has windows of its own.
        shards, each = chain.axis.size, chain.length // chain.axis.size
        is_windowed = choice.window < each
        windows = shards * -(-each // choice.window) if is_windowed else 1
        # What leaves a window is never looked at again: changes to come add up over the windows.
        share = choice.window / chain.length if is_windowed else 1.0
        rounding = ROUNDING if quadratic else max(1.0, ROUNDING * share)
        usual = (BUDGET if is_newton else QUASI_BUDGET) * windows
        most = 2 * chain.length if windows > 1 else chain.length + 1
        guess = self.initial_guess if isinstance(self.initial_guess, str) else "constant"
        return NewtonSolver(
            linearization=constant(choice.linearization),
            guess=self._guess(chain, asked),
            captured=wide.captured,
            options=dataclasses.replace(self, linearize="auto", linear="auto", initial_guess=guess),
            solver=solver_on(LOCAL if is_windowed else chain.axis, find_solver(self.linear)),
            criterion=Criterion(self.rtol, self.atol, eps, working, quadratic, rounding),
            budget=min(self.max_iterations or usual, most),
            window=choice.window,
            step=wide.step,
            layout=wide.layout,
            dtypes=tuple(x.dtype for x in wide.inputs),
        )

    def _choose(self, chain: TracedChain, asked: int) -> Choice:
        """How the steps on each device are linearised."""
        return choose_linearization(
            self.linearize,
            chain.step,
            chain.layout,
            chain.length // chain.axis.size,
            self.window,
            self.memory,
            asked,
        )

    def _guess(self, chain: TracedChain, asked: TracedChain) -> Leaves | None:
        """The user's first trajectory; added steps stay at its last state."""
        if isinstance(self.initial_guess, str):
            return None
        in_order = chain.axis.in_order
        asked = dataclasses.replace(asked, inputs=in_order(asked.inputs))
        guess = in_order(users_guess(self.initial_guess, asked))
        if chain.length == asked.length:
            return guess
        added = chain.length - asked.length
        return [
            jnp.concatenate([z, jnp.broadcast_to(z[-1:], (added, *z.shape[1:]))]) for z in guess
        ]
