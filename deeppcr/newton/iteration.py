"""Linearise, solve, check, repeat: the loop of every Newton-like method.

The loop works on the whole chain, or on a window that slides along it: the next W states that have
not converged. After each iteration the window moves past those that have. So the solve holds W
blocks, and the trajectory is its only array of L steps. A window of L steps never moves.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import PartitionSpec as P

from deeppcr.avals import abstract
from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks, LinearSolver, ShardSolver, name_of
from deeppcr.linearize import (
    BlockDiagonal,
    Clipped,
    Dense,
    Diagonal,
    Scalar,
    TracedSurrogate,
    Zero,
)
from deeppcr.loops import ITERATION, iterate
from deeppcr.newton.auto_damping import Trial
from deeppcr.newton.convergence import ROUNDING, Convergence, Criterion
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.fallback import finish
from deeppcr.newton.guess import first_trajectory
from deeppcr.newton.iterate import Iterate, Progress
from deeppcr.newton.lyapunov import growth_rate
from deeppcr.newton.precision import cast
from deeppcr.platforms import platform
from deeppcr.ran import Ran
from deeppcr.solution import Result, Run, Stats, unrecorded
from deeppcr.state import StateLayout
from deeppcr.step import Step

# The names of blocks in the description of a run.
KINDS: dict[type, str] = {
    Dense: "dense",
    Diagonal: "diagonal",
    BlockDiagonal: "block diagonal",
    Scalar: "scalar",
    Zero: "zero",
    TracedSurrogate: "surrogate",
    Clipped: "clipped",
}


SMALL = 4  # entries of a block, up to which a product of two is cheap


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["linearization", "guess", "atol", "captured"],
    meta_fields=[
        "options",
        "solver",
        "criterion",
        "budget",
        "expected",
        "is_affine",
        "window",
        "step",
        "layout",
        "dtypes",
    ],
)
@dataclasses.dataclass(frozen=True)
class NewtonSolver:
    """`Newton` for one chain: a pytree of the arrays that it needs besides those of the chain.

    Attributes:
        linearization: the source of the blocks.
        guess: leaves ``[L, ...]`` of the initial trajectory, if one was given.
        atol: ``[L]``, the absolute tolerances, if there is one for each step.
        captured: arrays that ``step`` closes over.
        options: the options that do not depend on the chain.
        solver: of the linear recurrence.
        criterion: the convergence criterion.
        budget: the maximum number of iterations.
        expected: the number of iterations to expect, within the budget or not.
        is_affine: whether the step is affine in its state. Then the first iterate is the solution,
            unless blocks amplify its rounding errors.
        window: the number of steps that are solved at once.
        step: the user's step, traced in float32 or better.
        layout: of its state.
        dtypes: of its inputs.
    """

    linearization: Any
    guess: Any
    atol: Any
    captured: Any
    options: Any  # Newton, without the fields above
    solver: LinearSolver
    criterion: Criterion
    budget: int
    expected: int
    is_affine: bool
    window: int
    step: Step
    layout: StateLayout
    dtypes: tuple[Any, ...]

    def sharded(self, along: P, replicated: P) -> "NewtonSolver":
        """How its arrays are sharded: a prefix of this pytree."""
        return dataclasses.replace(
            self, linearization=replicated, guess=along, atol=along, captured=replicated
        )

    def solve(self, chain: TracedChain) -> Run:
        """Iterate from the initial trajectory until convergence, or until the budget is spent."""
        wide = dataclasses.replace(
            chain,
            step=self.step,
            layout=self.layout,
            initial=cast(chain.initial, self.layout.dtypes),
            inputs=cast(chain.inputs, self.dtypes),
            captured=self.captured,
        )
        start, recorded = wide.layout.flatten(wide.initial), self.budget + 1
        residuals = jnp.full((recorded if self.options.record else 0,), unrecorded(), start.dtype)
        end = iterate(*self._loop(wide, self._begin(wide, start, residuals)))
        return self._finished(chain, wide, end)

    @property
    def _is_auto(self) -> bool:
        return bool(self.options.damping == "auto")

    def _loop(self, chain: TracedChain, start: Iterate) -> tuple[Any, ...]:
        """The loop over iterations for ``chain``, as arguments of `iterate`."""
        goes_on, trip = partial(self._goes_on, chain), partial(self._iteration, chain)
        loop = ITERATION, goes_on, trip, start, self.budget, self.expected
        if not self._is_auto:
            return loop
        return *loop, lambda now: now.is_due, partial(self._decide, chain)

    def _goes_on(self, chain: TracedChain, now: Iterate) -> Array:
        reached = self._progress(chain, now)
        return (now.counted < self.budget) & (reached.prefix < chain.total) & ~reached.stuck

    def _decide(self, chain: TracedChain, now: Iterate) -> Iterate:
        """The iterate with what the damping decides for the next trip."""
        reached, start = self._progress(chain, now), now.entry
        # A Jacobi iteration follows, which makes it the default, "apply".
        guess = first_trajectory("constant", self.guess, chain, start, self.window)
        value, trial = now.damping.decide(
            now.states,
            now.value,
            guess,
            chain.axis.index(self.window) < reached.exact - now.start,
            now.iterations,
            reached.prefix,
            chain.total - reached.prefix,
            self.budget - now.counted,
            chain.axis,
        )
        following = now._replace(value=value, damping=trial)
        # After iterations in vain, residuals are those of the iterate before them.
        is_later = lax.iota(jnp.int32, len(now.residuals)) > following.counted
        forgotten = trial.goes_back & is_later
        return following._replace(
            convergence=now.convergence.restarted(trial.goes_back, following.counted),
            residuals=jnp.where(forgotten, unrecorded(), now.residuals),
        )

    def _progress(self, chain: TracedChain, now: Iterate) -> Progress:
        return Progress.of(now, chain.axis.total(self.window))

    def _begin(self, chain: TracedChain, start: Array, residuals: Array) -> Iterate:
        first = first_trajectory(self.options.initial_guess, self.guess, chain, start, self.window)
        states, window = first[: self.window], chain.window(jnp.int32(0), self.window)
        whole = jnp.zeros_like(first[:0])
        if self.window < chain.length:
            unknown = jnp.zeros((chain.length - len(first), *first.shape[1:]), first.dtype)
            whole = jnp.concatenate([first, unknown])
        acceleration = self.options.acceleration
        damping = self.options.damping
        now = Iterate(
            iterations=jnp.int32(0),
            start=jnp.int32(0),
            entry=start,
            states=states,
            value=states,
            convergence=Convergence.unknown(states),
            known=jnp.int32(0),
            whole=whole,
            damping=(),
            history=acceleration.begin(states) if acceleration else (),
            residuals=residuals,
            reported=jnp.int32(0),
        )
        now = self._checked(window, now, jnp.full_like(states, jnp.inf))
        if self._is_auto:
            now = now._replace(damping=Trial.begin(now.value, now.convergence.same))
        elif damping:
            now = now._replace(damping=damping.begin(states, now.value, chain.axis))
        return now

    def _iteration(self, chain: TracedChain, now: Iterate) -> Iterate:
        """The next iterate: blocks, the linear recurrence, its residual."""
        window, axis, options = chain.window(now.start, self.window), chain.axis, self.options
        origin = axis.before(now.entry, now.states)
        blocks: Blocks = self.linearization.blocks(window, origin)
        damping, history, reached = now.damping, now.history, self._progress(chain, now)
        if options.damping and not self._is_auto:
            converged = axis.index(self.window) < reached.prefix - now.start
            states, damping = options.damping.update(
                self.solver,
                blocks,
                now.states,
                now.value,
                converged,
                damping,
                lambda states: window.evaluate(axis.before(now.entry, states)),
                axis,
            )
        else:
            # The first step starts from a known state. An update in place would be a kernel of its
            # own on a GPU; on a TPU the iteration of a GRU would take 4 times as long (jax 0.10.2).
            is_first = _index(window, now.value) == 0
            b = jnp.where(is_first, now.value, now.value - blocks.apply_only(origin))
            states = self.solver.solve_unguarded(blocks, b)
        # Discard overflows, which would spread to all later steps for good.
        states = jnp.where(jnp.isfinite(states), states, now.states)
        # Keep states that are exact to the last bit: the recurrence reproduces them to rounding.
        is_known = _index(window, states) < reached.exact - now.start
        states = jnp.where(is_known | now.takes_value, now.value, states)
        if options.acceleration:
            states, history = options.acceleration(history, now.states, states, axis)
        update = jnp.abs(states - now.states)
        if self._is_auto:  # of a trip that is not Newton's the update says nothing
            update = jnp.where(now.takes_value, jnp.inf, update)
        if platform() != "cpu":  # then they take the place of the last ones, without a copy
            states, update = lax.optimization_barrier((states, update))
        following = now._replace(
            iterations=now.iterations + jnp.int32(1),
            states=states,
            damping=damping,
            history=history,
        )
        solved = self._keeps_size(blocks, axis) if self.is_affine else None
        if self.window < chain.length:
            following, update = self._slide(chain, following, update, reached)
            window = chain.window(following.start, self.window)
        return self._checked(window, following, update, solved)

    def _keeps_size(self, blocks: Blocks, axis: ChainAxis) -> Array:
        """Whether no block amplifies differences, by a bound on its norm: bool."""
        ones, limit = (
            jnp.ones(blocks.vector_shape, self.layout.dtype),
            1 + ROUNDING * jnp.finfo(self.layout.dtype).eps,
        )

        def largest(of: Blocks) -> Array:
            """Largest sum of the magnitudes in a row."""
            sums = jax.tree.map(jnp.abs, of).apply(ones)
            return axis.largest(sums.max(axis=0, initial=0)).max(initial=0)

        keeps = largest(blocks) <= limit
        if blocks.block_size <= SMALL:  # rotations: rows of A^T A bound the square of the 2-norm
            keeps |= largest(blocks.transpose().compose(blocks)) <= limit
        return keeps

    def _slide(
        self, chain: TracedChain, now: Iterate, update: Array, reached: Progress
    ) -> tuple[Iterate, Array]:
        """Move the window to the first state that has not converged.

        That is known of the iterate before, and of states whose update is within the user's
        tolerance.
        """
        before = chain.axis.before(now.entry, now.states)
        within = self._criterion(now.start).within_tolerance(now.states, before, update)
        known = _index(chain, now.states) < reached.prefix - now.start
        found = jnp.where(known, now.value, now.states)
        whole = self._whole(now._replace(value=found))
        start = jnp.maximum(reached.prefix, now.start + within)
        start = jnp.minimum(start, jnp.int32(chain.length - self.window))
        distance = start - now.start
        last = lax.dynamic_index_in_dim(found, jnp.maximum(distance - 1, 0), keepdims=False)
        guess = lax.dynamic_slice_in_dim(whole, start, self.window)
        if self.guess is None:  # states that enter start from the last one of the window
            guess = jnp.broadcast_to(now.states[-1], guess.shape)
        enters = _index(chain, guess) >= self.window - distance

        def forward(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.roll(leaf, -distance, axis=0), tree)

        states = jnp.where(enters, guess, forward(now.states))
        update = jnp.where(enters, jnp.inf, forward(update))
        acceleration = self.options.acceleration
        following = now._replace(
            start=start,
            entry=jnp.where(distance > 0, last, now.entry),
            states=states,
            whole=whole,
            convergence=now.convergence.shifted(distance, enters.all(axis=-1), now.iterations),
            known=reached.exact,
            history=acceleration.shift(now.history, distance) if acceleration else now.history,
        )
        return following, update

    def _checked(
        self, window: TracedChain, now: Iterate, update: Array, solved: Array | None = None
    ) -> Iterate:
        """The iterate with ``f`` applied to its states, and how far they have converged.

        ``solved``: whether the size of the last update says nothing: bool, None for False.
        """
        origin = window.axis.before(now.entry, now.states)
        value = window.evaluate_only(origin)
        now = now._replace(value=value)
        return self._tested(window, now, value, now.states, origin, update, solved)

    def _tested(
        self,
        window: TracedChain,
        now: Iterate,
        value: Array,
        states: Array,
        origin: Array,
        update: Array,
        solved: Array | None,
    ) -> Iterate:
        """The iterate, and how far its ``states`` have converged; arrays as of `Criterion`."""
        axis, criterion = window.axis, self._criterion(now.start)
        last, count = now.convergence, now.counted
        found = criterion(value, states, origin, update, count, last, axis, solved)
        now = now._replace(convergence=found)
        residuals, reported = now.residuals, now.reported
        reached = self._progress(window, now)
        if self.options.record:
            residuals = residuals.at[count].set(reached.worst)
        if self.options.progress:
            reported = jnp.maximum(reported, reached.prefix)
            self._report(now, count, reported, reached.worst)
        return now._replace(residuals=residuals, reported=reported)

    def _report(self, now: Iterate, *numbers: Array) -> None:
        """Tell the user of an iteration, once."""
        report = partial(jax.debug.callback, self.options.progress)
        if not self._is_auto:
            report(*numbers)
        else:
            lax.cond(now.takes_value, lambda *_: None, report, *numbers)

    def _criterion(self, start: Array) -> Criterion:
        """The convergence criterion of the window that begins at ``start``."""
        if self.atol is None:
            return self.criterion
        atol = lax.dynamic_slice_in_dim(self.atol, start, self.window)
        shape = (-1, *(1,) * len(self.layout.batch_shape), 1)
        return dataclasses.replace(
            self.criterion, atol=atol.astype(self.layout.dtype).reshape(shape)
        )

    def _finished(self, chain: TracedChain, wide: TracedChain, last: Iterate) -> Run:
        """The run, after the sequential fallback if it is needed and requested."""
        end = self._progress(wide, last)
        ok = end.prefix >= chain.total
        trajectory = cast(wide.layout.unflatten(self._whole(last)), chain.layout.dtypes)
        failure, worst = Result.NOT_CONVERGED, end.worst
        if self.options.on_failure == "sequential":
            failure, worst = Result.FINISHED_SEQUENTIALLY, jnp.where(ok, worst, 0)
            # From the last state that is exact to the last bit: see `deeppcr.newton.method`.
            fails = self.expected > self.budget
            trajectory = finish(chain, trajectory, jnp.where(ok, chain.total, end.exact), fails)
        origin = chain.before(chain.initial, trajectory)
        stats = Stats(last.counted, worst, end.prefix)
        if self.options.record:
            rate = growth_rate(wide, wide.layout.flatten(cast(origin, wide.layout.dtypes)))
            stats = dataclasses.replace(stats, residuals=last.residuals, growth_rate=rate)
        plateau = self.criterion.is_plateau(end.worst)
        success = jnp.where(plateau, jnp.int32(Result.PLATEAU), jnp.int32(Result.CONVERGED))
        result = jnp.where(ok, success, jnp.int32(failure))
        outputs = chain.outputs(origin, trajectory)
        ends = [z[-1] for z in trajectory] if chain.axis == LOCAL else []
        return Run(trajectory, outputs, stats, result, self._ran(wide), ends)

    def _ran(self, wide: TracedChain) -> Ran:
        """The description of this method."""
        kind = KINDS.get(type(self.linearization), "other")
        solver = self.solver.inside if isinstance(self.solver, ShardSolver) else self.solver
        shapes = partial(self._shapes, wide)
        name = "none" if kind == "zero" else name_of(solver.chosen(shapes))
        is_damped = isinstance(self.options.damping, TrustRegion)
        return Ran.newton(kind, name, is_damped)

    def _shapes(self, chain: TracedChain) -> Blocks:
        """The shapes of the blocks of a window."""
        window, layout = chain.window(jnp.int32(0), self.window), chain.layout
        shape = self.window, *layout.batch_shape, layout.width
        states = abstract(chain.initial[0], shape, layout.dtype)
        blocks: Blocks = jax.eval_shape(partial(self.linearization.blocks, window), states)
        return blocks

    def _whole(self, now: Iterate) -> Array:
        """All states, with those of the window written into them."""
        if not now.whole.size:
            return now.value
        return lax.dynamic_update_slice_in_dim(now.whole, now.value, now.start, 0)


def _index(chain: TracedChain, states: Array) -> Array:
    """The index of every state, broadcast to its entries."""
    index = chain.axis.index(len(states)).reshape((-1, *(1,) * (states.ndim - 1)))
    return jnp.broadcast_to(index, states.shape)
