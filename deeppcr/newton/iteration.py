"""Linearise, solve, check, repeat: the loop of every Newton-like method.

    while the states have not converged:             `_goes_on`
        states = solution of the recurrence          `_newton`: linearise, solve, damp, accelerate
        value, convergence = test(step(states))      `_checked`

The loop works on the whole chain, or on a window that slides along it: the next W states that have
not converged.
"""

import dataclasses
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays import cast, like
from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.chain.chain import TracedChain
from deeppcr.linear import Blocks
from deeppcr.loops import ITERATION, STEP, iterate, named
from deeppcr.lower import Opening, each, in_place, once_unless, opening
from deeppcr.newton import one_kernel
from deeppcr.newton.convergence import Criterion, Evaluation
from deeppcr.newton.damping import SWEEPS, growth_rate, largest
from deeppcr.newton.guess import first_trajectory
from deeppcr.newton.iterate import Convergence, Iterate, Reached, Window, finish
from deeppcr.solution import ROUNDING, Result, Run, SolvedBy, Stats, unrecorded

CHEAP_BLOCK = 4  # entries of a block, up to which a product of two is cheap


class Proposal(NamedTuple):
    """The next states, before the step is applied to them.

    Attributes:
        states: ``[W, *batch, w]``.
        sizes: of the entries: see `Iterate`.
        history: of the iterates: see `Iterate`.
        is_solved: bool, whether they are known to be the solution.
    """

    states: Array
    sizes: Any
    history: Any
    is_solved: Array


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["method", "in_float32"],
    meta_fields=["fused", "criterion", "expected", "is_affine"],
)
@dataclasses.dataclass(frozen=True)
class NewtonSolver:
    """`Newton` for one chain: a pytree of the arrays that it needs besides those of the chain.

    Attributes:
        method: a `Newton` whose options are those of this chain: ``linearize``, ``linear`` and
            ``progress`` are objects, ``initial_guess`` is a name or leaves ``[L, ...]``, ``atol`` a
            number or an array ``[L]``; ``max_iterations`` and ``window`` are numbers.
        in_float32: the chain in float32 or better, without initial state and inputs.
        fused: whether one kernel solves the chain.
        criterion: the convergence criterion, but for an array of absolute tolerances.
        expected: the number of iterations to expect, within the budget or not.
        is_affine: whether the step is affine in its state. Then the first iterate is the solution,
            unless blocks amplify its rounding errors.
    """

    method: Any
    in_float32: TracedChain
    fused: bool
    criterion: Criterion
    expected: int
    is_affine: bool

    def solve(self, chain: TracedChain) -> Run:
        """Iterate from the initial trajectory until convergence, or until the budget is spent."""
        if self.fused:
            return one_kernel.solved(self, chain, dataclasses.replace(self, fused=False).solve)
        step, layout = self.in_float32.step, self.in_float32.layout
        of_inputs = [x.aval.dtype for x in step.jaxpr.invars[step.states :]]
        in_float32 = dataclasses.replace(
            chain,
            step=step,
            layout=layout,
            initial=cast(chain.initial, layout.dtypes),
            inputs=cast(chain.inputs[: len(of_inputs)], of_inputs),
            captured=self.in_float32.captured,
        )
        end = iterate(
            ITERATION,
            partial(self._goes_on, in_float32),
            partial(self._trip, in_float32),
            self._begin(in_float32),
            self.method.max_iterations,
            self.expected,
        )
        return self._finished(chain, in_float32, end)

    def _begin(self, chain: TracedChain) -> Iterate:
        """Before the first trip."""
        entry = chain.layout.flatten(chain.initial)
        first = first_trajectory(self.method.initial_guess, chain, entry)
        # The first trips apply the step to the guess, and test the result.
        early = 1 + (self.method.initial_guess == "apply")
        recorded = self.method.max_iterations + 2 if self.method.record else 0
        states = first[: self.method.window]
        now = Iterate(
            iterations=jnp.int32(-early),
            states=states,
            value=states,
            convergence=Convergence.unknown(states),
            window=Window.begin(entry, first, self.method.window),
            sizes=jnp.zeros_like(entry) if self.method.damping else (),
            history=self.method.acceleration.begin(states) if self.method.acceleration else (),
            residuals=jnp.full(recorded, unrecorded(), states.dtype),
            reported=jnp.int32(0),
        )

        def opened(last: Iterate) -> Iterate:
            applied = last._replace(
                states=_applied(last),
                iterations=last.iterations + jnp.int32(1),
                convergence=now.convergence,  # they are no iterate yet
            )
            return self._checked(chain, applied, jnp.full_like(applied.states, jnp.inf))

        return _opening(chain).before(early, opened, now)

    def _goes_on(self, chain: TracedChain, now: Iterate) -> Array:
        reached = self._reached(chain, now)
        within = now.iterations < self.method.max_iterations
        goes_on = within & (reached.prefix < chain.total) & ~reached.stuck
        return (now.iterations < 0) | goes_on

    def _trip(self, chain: TracedChain, now: Iterate) -> Iterate:
        """The next states, f applied to them, and how far they have converged."""
        window = chain.window(now.window.start, self.method.window)
        reached = self._reached(chain, now)
        opens = now.iterations < 0
        applied = Proposal(_applied(now), now.sizes, now.history, jnp.zeros((), bool))
        newton = partial(self._newton, window, now, reached)
        if _opening(chain).inside:  # no branch: what it reads, such as weights, is large
            with named(STEP, 1):
                proposal = lax.while_loop(*once_unless(opens, like(applied, now), newton))[1]
        else:
            proposal = newton()
        update = jnp.where(opens, jnp.inf, jnp.abs(proposal.states - now.states))
        if self.is_affine:
            update = jnp.where(proposal.is_solved, 0, update)
        states, update = in_place(proposal.states, update)
        following = now._replace(
            iterations=now.iterations + jnp.int32(1),
            states=states,
            sizes=proposal.sizes,
            history=proposal.history,
        )
        if self.method.window < chain.length:
            following, update = self._slide(chain, now, following, update, reached)
        return self._checked(chain, following, update)

    def _newton(self, window: TracedChain, now: Iterate, reached: Reached) -> Proposal:
        """The states of the next iterate: blocks, the linear recurrence, damping, acceleration."""
        entry, start, axis = now.window.entry, now.window.start, window.axis
        origin = axis.before(entry, now.states)
        blocks: Blocks = self.method.linearize.blocks(window, origin)
        index, sizes, history = axis.indices(origin.shape), now.sizes, now.history
        if region := self.method.damping:
            seen = jnp.where(index < reached.prefix - start, now.states, 0)
            both = jnp.maximum(jnp.abs(now.states), jnp.abs(now.value))
            seen = jnp.where(now.iterations == 0, both, seen)
            sizes = jnp.maximum(sizes, axis.largest(largest(seen)))
            states = region.limited(self.method.linear, blocks, now.states, now.value, sizes, axis)

            def sweep(_: Array, states: Array) -> Array:
                swept = like(window.evaluate(axis.before(entry, states)), states)
                return jnp.where(jnp.isfinite(swept).all(axis=-1)[..., None], swept, states)

            states = lax.fori_loop(0, SWEEPS, sweep, like(states, states, now.value))
        else:
            # The first step starts from a known state. An update in place would be a kernel of its
            # own on a GPU; on a TPU the iteration of a GRU would take 4 times as long (jax 0.10.2).
            change = now.value - blocks.apply(origin, "summand")
            states = self.method.linear.solve_unguarded(
                blocks, jnp.where(index == 0, now.value, change)
            )
        # What overflows would spread to all later steps.
        states = jnp.where(jnp.isfinite(states), states, now.states)
        # The recurrence reproduces states that are exact to the last bit only to rounding.
        states = jnp.where(index < reached.exact - start, now.value, states)
        if acceleration := self.method.acceleration:
            states, history = acceleration(history, now.states, states, axis)
        solved = self._keeps_size(blocks, axis) if self.is_affine else jnp.zeros((), bool)
        return like(Proposal(states, sizes, history, solved), now)

    def _checked(self, chain: TracedChain, now: Iterate, update: Array) -> Iterate:
        """The iterate with ``f`` applied to its states, and how far they have converged."""
        window = chain.window(now.window.start, self.method.window)
        origin = window.axis.before(now.window.entry, now.states)
        value = each(window.evaluate)(origin)  # with fewer kernels on a GPU
        criterion = self._criterion(now.window.start)

        def tested() -> Convergence:
            evaluation = Evaluation(value, now.states, origin, update)
            convergence = criterion(evaluation, now.iterations, now.convergence, window.axis)
            return like(convergence, now)

        # The states that the step is applied to first are no iterate.
        convergence = _opening(chain).select(now.iterations < 0, now.convergence, tested)
        now = now._replace(value=value, convergence=convergence)
        if not (self.method.record or self.method.progress):
            return now
        residuals, reported, reached = now.residuals, now.reported, self._reached(window, now)
        if self.method.record:
            residuals = residuals.at[now.iterations + 1].set(reached.worst)
        if self.method.progress:
            reported = jnp.maximum(reported, reached.prefix)
            jax.debug.callback(self.method.progress, now.iterations, reported, reached.worst)
        return now._replace(residuals=residuals, reported=reported)

    def _slide(
        self, chain: TracedChain, last: Iterate, now: Iterate, update: Array, reached: Reached
    ) -> tuple[Iterate, Array]:
        """Move the window to the first state that has not converged.

        That is known of the iterate before, and of states whose update is within the user's
        tolerance.
        """
        window, states = now.window, now.states
        before = chain.axis.before(window.entry, states)
        within = self._criterion(window.start).within_tolerance(states, before, update)
        is_right = chain.axis.indices(states.shape) < reached.prefix - window.start
        final = jnp.where(is_right, now.value, states)
        start = jnp.maximum(reached.prefix, window.start + within)
        start = jnp.minimum(start, jnp.int32(chain.length - self.method.window))
        start = jnp.where(last.iterations < 0, window.start, start)
        distance = start - window.start
        window = window.moved(start, final, reached.exact)
        guess = lax.dynamic_slice_in_dim(window.whole, start, self.method.window)
        # Under a name, states that enter start from the last one of the window.
        if isinstance(self.method.initial_guess, str):
            guess = jnp.broadcast_to(states[-1], guess.shape)
        enters = chain.axis.indices(guess.shape) >= self.method.window - distance
        history = (
            self.method.acceleration.shift(now.history, distance)
            if self.method.acceleration
            else ()
        )
        following = now._replace(
            states=jnp.where(enters, guess, jnp.roll(states, -distance, axis=0)),
            convergence=now.convergence.shifted(distance, enters.all(axis=-1), now.iterations),
            window=window,
            history=history,
        )
        return following, jnp.where(enters, jnp.inf, jnp.roll(update, -distance, axis=0))

    def _reached(self, chain: TracedChain, now: Iterate) -> Reached:
        return Reached.of(now, chain.axis.total(self.method.window))

    def _keeps_size(self, blocks: Blocks, axis: ChainAxis) -> Array:
        """Whether no block amplifies differences, by a bound on its norm: bool."""
        dtype = self.in_float32.layout.dtype
        ones = jnp.ones(blocks.vector_shape, dtype)
        limit = 1 + ROUNDING * jnp.finfo(dtype).eps

        def norm(of: Blocks) -> Array:
            """The largest sum of the magnitudes in a row."""
            sums = jax.tree.map(jnp.abs, of).apply(ones)
            return axis.largest(sums.max(axis=0, initial=0)).max(initial=0)

        keeps = norm(blocks) <= limit
        # Of rotations: rows of A^T A bound the square of the 2-norm.
        if blocks.block_size <= CHEAP_BLOCK:
            keeps |= norm(blocks.transpose().compose(blocks)) <= limit
        return keeps

    def _criterion(self, start: Array) -> Criterion:
        """The convergence criterion of the window that begins at ``start``."""
        if isinstance(self.method.atol, Real):
            return self.criterion
        layout = self.in_float32.layout
        atol = lax.dynamic_slice_in_dim(self.method.atol, start, self.method.window)
        shape = (-1, *(1,) * len(layout.batch_shape), 1)
        return dataclasses.replace(self.criterion, atol=atol.astype(layout.dtype).reshape(shape))

    def _finished(self, chain: TracedChain, in_float32: TracedChain, last: Iterate) -> Run:
        """The run, after the sequential fallback if it is needed and requested."""
        end = self._reached(in_float32, last)
        ok = end.prefix >= chain.total
        trajectory = in_float32.layout.unflatten(last.window.all_states(last.value))
        trajectory = cast(trajectory, chain.layout.dtypes)
        failure = Result.NOT_CONVERGED
        worst = end.worst
        if self.method.on_failure == "sequential":
            failure = Result.FINISHED_SEQUENTIALLY
            worst = jnp.where(ok, worst, 0)
            # From the last state that is exact to the last bit: see `deeppcr.newton.method`.
            fails = self.expected > self.method.max_iterations
            trajectory = finish(chain, trajectory, jnp.where(ok, chain.total, end.exact), fails)
        origin = chain.before(chain.initial, trajectory)
        stats = Stats(last.iterations, worst, end.prefix)
        if self.method.record:
            states = in_float32.layout.flatten(cast(origin, in_float32.layout.dtypes))
            rate = growth_rate(in_float32, states)
            stats = dataclasses.replace(stats, residuals=last.residuals[1:], growth_rate=rate)
        plateau = self.criterion.is_plateau(end.worst)
        success = jnp.where(plateau, jnp.int32(Result.PLATEAU), jnp.int32(Result.CONVERGED))
        result = jnp.where(ok, success, jnp.int32(failure))
        outputs = chain.outputs(origin, trajectory)
        ends = [z[-1] for z in trajectory] if chain.axis == LOCAL else []
        method = jnp.int32(SolvedBy.NEWTON)
        return Run(trajectory, outputs, stats, result, method, ends)


def _opening(chain: TracedChain) -> Opening:
    """How the first trips are written, which apply the step to the guess."""
    return opening(sharded=chain.axis.size > 1)


def _applied(last: Iterate) -> Array:
    """The step applied to a guess. What overflows would spread to all later states."""
    return jnp.where(jnp.isfinite(last.value), last.value, last.states)
