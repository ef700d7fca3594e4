"""Newton's method on a whole chain: linearise, solve, check, repeat.

All L equations ``z_l = f(z_{l-1}, x_l)`` are one root problem. At a trajectory ``Z`` Newton replaces each by its linearisation,
so that the next trajectory ``Y`` solves the linear recurrence

    Y_l = A_l Y_{l-1} + b_l,    A_l = df/dz(Z_{l-1}, x_l),    b_l = f(Z_{l-1}, x_l) - A_l Z_{l-1},    Y_0 = z_0,

which a parallel solver does in O(log L) depth (DeepPCR, Danieli et al., NeurIPS 2023, section 3). Solving for ``Y`` and not for
the update ``Y - Z`` keeps the rounding errors of the solver out of the sum.

When is ``Y`` the answer? Two things have to hold at every step, and both are judged by the user's own f:

- the residual ``|f(Y_{l-1}) - Y_l|`` is at rounding level;
- the last update ``|Y - Z|`` was below the root of it. An update is the residual carried along the chain by the linearised
  dynamics, and Newton squares it: the next one would be at rounding level. A chain that amplifies differences has states with
  tiny residuals that are far from the sequential program's; their updates never get small.

After k iterations the first k states are exact, so what has been found is never thrown away: a chain that does not converge
within its budget is finished sequentially. It goes on from the last state that is the sequential program's to the last bit, and
not from the last one that is so to rounding: a chain that amplifies differences, as most are that come to this, would end
elsewhere.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.chain import Problem, Steps
from deeppcr.linear import LinearSolver, find_solver
from deeppcr.linearize import linearize
from deeppcr.solution import Result, Run, Solve, Stats
from deeppcr.state import Leaves, StateLayout, before
from deeppcr.step import trace

OnFailure = Literal["sequential", "raise", "return"]
Guess = Literal["apply", "constant"] | Callable[[Any, Any], Any]

BUDGET = 64  # iterations: chains that suit Newton take 3 to 20
ROUNDING = 16  # a residual of so many units in the last place of the state is rounding
STAGNATION = 1000  # a residual that no longer falls is rounding, too, if it is below so many units


@dataclasses.dataclass(frozen=True)
class Newton:
    """Solve a chain by Newton's method, all steps at once.

    Attributes:
        linear: the solver of the linear recurrence in each iteration: an object or a name, see `deeppcr.solve_bidiagonal`.
        rtol: how large a residual may be, relative to the size of the state; None for 16 units in the last place of the dtype.
        atol: how large it may be in any case, in units of the state.
        max_iterations: None for 64. L + 1 always suffice.
        initial_guess: the trajectory to start from. "apply": every step applied to the initial state. "constant": the initial
            state, at every step. Or a function ``(initial state, inputs) -> trajectory``, whose leaves carry the chain on axis 0;
            no derivatives pass through it.
        on_failure: what to do with a chain that has not converged by then. "sequential": finish it step by step, from where it
            has. "raise": raise `NotConverged`; not possible under jit. "return": return what there is, ``result`` tells.
    """

    linear: str | LinearSolver = "auto"
    rtol: float | None = None
    atol: float = 0.0
    max_iterations: int | None = None
    initial_guess: Guess = "apply"
    on_failure: OnFailure = "sequential"

    def __post_init__(self) -> None:
        find_solver(self.linear)
        if self.rtol is not None and not self.rtol >= 0:
            raise ValueError(f"rtol is {self.rtol}, expected a number >= 0, or None.")
        if not self.atol >= 0:
            raise ValueError(f"atol is {self.atol}, expected a number >= 0.")
        if self.max_iterations is not None and self.max_iterations < 1:
            raise ValueError(f"max_iterations is {self.max_iterations}, expected at least 1, or None.")
        if self.on_failure not in get_args(OnFailure):
            raise ValueError(f"on_failure is {self.on_failure!r}, expected one of {get_args(OnFailure)}.")
        if not callable(self.initial_guess) and self.initial_guess not in ("apply", "constant"):
            raise ValueError(f'initial_guess is {self.initial_guess!r}, expected "apply", "constant" or a function.')

    def bind(self, problem: Problem) -> tuple[Solve, "_Operands"]:
        """What solves the chain, and the arrays that it needs beside the chain's own."""
        length = problem.length
        wide = in_float32(problem)
        operands = _Operands(self._users_guess(problem), wide.captured)
        step, layout = wide.step, wide.layout  # not `wide`: the user's function must not outlive the call
        eps = max(float(jnp.finfo(dtype).eps) for dtype in layout.dtypes)

        def run(steps: Steps, initial: Leaves, operands: _Operands) -> Run:
            inside = Steps(step, layout, _cast(steps.inputs, wide_inputs), operands.captured)
            return self._run(steps, inside, initial, length, operands.guess, eps)

        wide_inputs = [x.dtype for x in wide.inputs]
        return run, operands

    def _run(self, steps: Steps, inside: Steps, initial: Leaves, length: int, guess: Leaves | None, eps: float) -> Run:
        layout = inside.layout
        start = layout.flatten(_cast(initial, layout.dtypes))
        first = self._first_trajectory(inside, start, length, guess)
        end = self._iterate(inside, start, first, eps)
        ok = end.prefix >= length
        trajectory = _cast(layout.unflatten(end.value), steps.layout.dtypes)
        failure = Result.NOT_CONVERGED
        if self.on_failure == "sequential":
            failure = Result.FINISHED_SEQUENTIALLY
            trajectory = finish(steps, initial, trajectory, jnp.where(ok, length, end.exact))
        outputs = steps.outputs(before(initial, trajectory), trajectory)
        stats = Stats(end.iterations, end.residual, end.prefix)
        return Run(trajectory, outputs, stats, jnp.where(ok, jnp.int32(Result.CONVERGED), jnp.int32(failure)))

    def _users_guess(self, problem: Problem) -> Leaves | None:
        """What a user's own ``initial_guess`` returns, checked; no derivatives pass through it."""
        if not callable(self.initial_guess):
            return None
        tree = problem.step.state_tree
        initial = jax.tree.unflatten(tree, problem.initial)
        inputs = jax.tree.unflatten(problem.step.input_tree, problem.inputs)
        leaves, found = jax.tree.flatten(self.initial_guess(initial, inputs))
        expected = [(problem.length, *z.shape) for z in problem.initial]
        shapes = [jnp.shape(leaf) for leaf in leaves]
        if found != tree or shapes != expected:
            raise ValueError(
                f"initial_guess returned leaves of shapes {shapes} in {found}, expected {expected} in {tree}: a trajectory."
            )
        return [lax.stop_gradient(jnp.asarray(leaf)) for leaf in leaves]

    def _first_trajectory(self, steps: Steps, start: Array, length: int, guess: Leaves | None) -> Array:
        constant = jnp.broadcast_to(start, (length, *start.shape))
        if guess is not None:
            return steps.layout.flatten(_cast(guess, steps.layout.dtypes))
        if self.initial_guess == "constant":
            return constant
        applied = steps.evaluate(constant)
        return jnp.where(jnp.isfinite(applied), applied, constant)

    def _iterate(self, steps: Steps, start: Array, first: Array, eps: float) -> "_Iterate":
        length = first.shape[0]
        solver = find_solver(self.linear)
        rtol = ROUNDING * eps if self.rtol is None else self.rtol
        update_tol = max(eps**0.5, rtol)
        budget = min(BUDGET if self.max_iterations is None else self.max_iterations, length + 1)

        def starts(trajectory: Array) -> Array:
            return jnp.concatenate([start[None], trajectory[:-1]])

        def largest(values: Array) -> Array:
            return jnp.abs(values).max(axis=-1, initial=0)

        def leading(true: Array) -> Array:
            """How many steps from the start are true in all their entries."""
            return jnp.cumprod(true.reshape(length, -1).all(axis=1).astype(jnp.int32)).sum(dtype=jnp.int32)

        def iterate(now: _Iterate) -> _Iterate:
            states = starts(now.trajectory)
            value, blocks = linearize(steps, states)
            b = (value - blocks.apply(states)).at[0].set(value[0])  # the first step starts from what is known
            trajectory = solver.solve(blocks, b)
            # An overflow on the way is no answer, and would spoil all later steps for good.
            trajectory = jnp.where(jnp.isfinite(trajectory), trajectory, now.trajectory)
            states = starts(trajectory)
            value = steps.evaluate(states)
            finite = jnp.isfinite(value).all(axis=-1) & jnp.isfinite(trajectory).all(axis=-1)
            size = jnp.maximum(largest(value), largest(states))
            residual = jnp.where(finite, largest(value - trajectory), jnp.inf)
            relative = jnp.where(residual > 0, residual / jnp.where(size > 0, size, 1), 0)
            worst = jnp.where(jnp.isnan(relative), jnp.inf, relative).max(initial=0)
            settled = largest(trajectory - now.trajectory) <= self.atol + update_tol * size
            stagnates = (worst <= STAGNATION * eps) & (worst > now.residual / 2)
            good = finite & settled & ((residual <= self.atol + rtol * size) | stagnates)
            # To the last bit: the state after those that are what the step makes of the one before them.
            exact = leading(value == trajectory) + jnp.int32(1)
            index = lax.broadcasted_iota(jnp.int32, value.shape, 0)
            trajectory = jnp.where(index < exact, value, trajectory)
            return _Iterate(now.iterations + jnp.int32(1), trajectory, value, worst, leading(good), exact)

        def goes_on(now: _Iterate) -> Array:
            return (now.iterations < budget) & (now.prefix < length)

        infinite = jnp.full((), jnp.inf, start.dtype)
        begin = _Iterate(jnp.int32(0), first, first, infinite, jnp.int32(0), jnp.int32(0))
        return lax.while_loop(goes_on, iterate, begin)


class _Operands(NamedTuple):
    guess: Leaves | None  # a trajectory
    captured: Leaves  # what the step closes over where it is computed in float32


class _Iterate(NamedTuple):
    iterations: Array
    trajectory: Array  # [L, *batch, w]
    value: Array  # the steps, applied to the trajectory: closer to the answer by one step, and the user's own rounding
    residual: Array  # the largest, relative to the states
    prefix: Array  # how many steps from the start have converged
    exact: Array  # how many of the first values are the sequential program's to the last bit


def finish(steps: Steps, initial: Leaves, trajectory: Leaves, prefix: Array) -> Leaves:
    """Run the steps after ``prefix`` one by one, over what is there; no turn of the loop if that is all of them."""

    def body(index: Array, trajectory: Leaves) -> Leaves:
        last = [
            jnp.where(index == 0, z, lax.dynamic_index_in_dim(rest, jnp.maximum(index - 1, 0), keepdims=False))
            for z, rest in zip(initial, trajectory, strict=True)
        ]
        inputs = [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in steps.inputs]
        state = steps.step(last, inputs, steps.captured)
        return [lax.dynamic_update_index_in_dim(rest, z, index, 0) for rest, z in zip(trajectory, state, strict=True)]

    length = jnp.int32(trajectory[0].shape[0])
    finished: Leaves = lax.fori_loop(prefix, length, body, trajectory)
    return finished


def in_float32(problem: Problem) -> Problem:
    """The same chain computed in float32 or better.

    Iterates of bfloat16 or float16 stall far above what their dtype could resolve. A step that insists on its narrow dtype, by a
    cast of its own, is iterated as it is.
    """
    initial, inputs = [_widened(z) for z in problem.initial], [_widened(x) for x in problem.inputs]
    if [z.dtype for z in initial] == list(problem.layout.dtypes):
        return problem
    tree, batch_ndim = problem.step.state_tree, len(problem.layout.batch_shape)
    state = jax.tree.unflatten(tree, initial)
    arguments = jax.tree.unflatten(problem.step.input_tree, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in inputs])
    try:
        step, captured = trace(problem.function, state, arguments)
    except (TypeError, ValueError):  # what jax raises of dtypes that do not mix, and `trace` of a state cast back
        return problem
    layout = StateLayout.of(initial, batch_ndim)
    return Problem(problem.function, step, layout, problem.length, initial, inputs, captured)


def _widened(x: Array) -> Array:
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and jnp.finfo(x.dtype).bits < 32
    return x.astype(np.float32) if narrow else x


def _cast(leaves: Leaves, dtypes: Sequence[Any]) -> Leaves:
    return [leaf if leaf.dtype == dtype else leaf.astype(dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
