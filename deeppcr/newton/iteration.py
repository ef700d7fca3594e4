"""Linearise, solve, check, repeat: the loop of every Newton-like method, over the whole chain or a window that slides along it.

A window is the next W states that have not converged. In every turn it moves on by the states that have, so memory is that of W
blocks; the trajectory itself is the only array of all L steps. A window of all steps never moves.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.acceleration import Anderson
from deeppcr.chain import Steps
from deeppcr.convergence import Criterion, Judgement
from deeppcr.damping import TrustRegion
from deeppcr.linear import LinearSolver
from deeppcr.linearize import Linearization
from deeppcr.loops import iterate


class Iterate(NamedTuple):
    """Where an iteration stands.

    Attributes:
        iterations: int32.
        place: int32, the step at which the window starts, counted from 0.
        entry: the state before it.
        states: ``[W, *batch, w]``, the window.
        value: what the steps make of them: closer to the answer by one step, and the user's own rounding.
        judgement: of the states.
        prefix: int32, how many states from the start of the chain have converged.
        exact: int32, how many of them are the sequential program's to the last bit.
        whole: ``[L, *batch, w]``, all states; empty if the window is the chain.
        memory: of the linearisation.
        sizes: what the damping remembers.
        past: what the acceleration remembers of earlier iterates.
        history: residuals by iteration, that of the guess first; empty if not asked for.
    """

    iterations: Array
    place: Array
    entry: Array
    states: Array
    value: Array
    judgement: Judgement
    prefix: Array
    exact: Array
    whole: Array
    memory: Any
    sizes: Any
    past: Any
    history: Array


@dataclasses.dataclass(frozen=True)
class Iteration:
    """One Newton-like method, with all that it needs to run.

    Attributes:
        linearization: where blocks come from.
        solver: of the linear recurrence.
        damping: what keeps updates within reason, if anything.
        acceleration: what makes better iterates of the last few, if anything.
        criterion: what counts as converged.
        budget: how many iterations.
        window: how many states at once, at most L.
        continues: whether states that enter the window start from the last one in it, and not from the guess.
        history: whether residuals are kept.
        progress: called with iteration, prefix and residual, while it runs.
    """

    linearization: Linearization
    solver: LinearSolver
    damping: TrustRegion | None
    acceleration: Anderson | None
    criterion: Criterion
    budget: int
    window: int
    continues: bool
    history: bool
    progress: Callable[[int, int, float], None] | None = None

    def run(self, steps: Steps, start: Array, first: Array) -> Iterate:
        """Iterate from the trajectory ``first``: ``[L, *batch, w]``, or its first W states if the rest continues."""
        length = steps.total

        def goes_on(now: Iterate) -> Array:
            return (now.iterations < self.budget) & (now.prefix < length)

        end = iterate(
            goes_on,
            lambda now: self._turn(steps, now),
            self._begin(steps, start, first),
            self.budget,
        )
        return end._replace(whole=self._written(end))

    def _begin(self, steps: Steps, start: Array, first: Array) -> Iterate:
        window, length = self.window, steps.length
        states = first[:window]
        here = steps.part(jnp.int32(0), window)
        whole = jnp.zeros_like(first[:0])
        if window < length:
            unknown = jnp.zeros((length - len(first), *first.shape[1:]), first.dtype)
            whole = jnp.concatenate([first, unknown])
        now = Iterate(
            iterations=jnp.int32(0),
            place=jnp.int32(0),
            entry=start,
            states=states,
            value=states,
            judgement=Judgement.unknown(states),
            prefix=jnp.int32(0),
            exact=jnp.int32(0),
            whole=whole,
            memory=self.linearization.begin(here, here.across.before(start, states)),
            sizes=(),
            past=self.acceleration.begin(states) if self.acceleration else (),
            history=jnp.full((self.budget + 1 if self.history else 0,), _unrecorded(), start.dtype),
        )
        now = self._checked(here, now, jnp.full_like(states, jnp.inf))
        return (
            now._replace(sizes=self.damping.begin(states, now.value, here.across))
            if self.damping
            else now
        )

    def _turn(self, steps: Steps, now: Iterate) -> Iterate:
        here = steps.part(now.place, self.window)
        inputs = here.across.before(now.entry, now.states)
        blocks, memory = self.linearization.next(here, inputs, now.memory, now.iterations)
        sizes = now.sizes
        if self.damping:
            converged = here.across.index(self.window) < now.prefix - now.place

            def evaluate(states: Array) -> Array:
                return here.evaluate(here.across.before(now.entry, states))

            states, sizes = self.damping.update(
                self.solver,
                blocks,
                now.states,
                now.value,
                converged,
                now.sizes,
                evaluate,
                here.across,
            )
        else:
            b = here.across.set_first(
                now.value - blocks.apply(inputs), now.value[0]
            )  # the first step starts from what is known
            states = self.solver.solve_unguarded(blocks, b)
        # An overflow on the way is no answer, and would spoil all later steps for good.
        states = jnp.where(jnp.isfinite(states), states, now.states)
        # What is right to the last bit is kept: a solution of the recurrence would be so to rounding only.
        states = jnp.where(_index(here, states) < now.exact - now.place, now.value, states)
        past = now.past
        if self.acceleration:
            states, past = self.acceleration(past, now.states, states, here.across)
        update = jnp.abs(states - now.states)
        moved = now._replace(
            iterations=now.iterations + jnp.int32(1),
            states=states,
            memory=memory,
            sizes=sizes,
            past=past,
        )
        if self.window < steps.length:
            moved, update = self._slide(steps, moved, update)
            here = steps.part(moved.place, self.window)
        return self._checked(here, moved, update)

    def _slide(self, steps: Steps, now: Iterate, update: Array) -> tuple[Iterate, Array]:
        """Move the window to the first state that had not converged before this turn."""
        window, length = self.window, steps.length
        whole = self._written(now)
        place = jnp.minimum(now.prefix, jnp.int32(length - window))
        distance = place - now.place
        last = lax.dynamic_index_in_dim(now.value, jnp.maximum(distance - 1, 0), keepdims=False)
        entry = jnp.where(distance > 0, last, now.entry)
        guess = lax.dynamic_slice_in_dim(whole, place, window)
        if self.continues:
            guess = jnp.broadcast_to(now.states[-1], guess.shape)
        enters = _index(steps, guess) >= window - distance

        def forward(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.roll(leaf, -distance, axis=0), tree)

        states = jnp.where(enters, guess, forward(now.states))
        update = jnp.where(enters, jnp.inf, forward(update))
        begun = distance > 0  # other states: whether residuals fall begins anew
        judgement = now.judgement._replace(
            least=jnp.where(begun, jnp.inf, now.judgement.least),
            stalled=jnp.where(begun, 0, now.judgement.stalled),
            moved=jnp.where(enters.all(axis=-1), jnp.inf, forward(now.judgement.moved)),
            factor=jnp.where(enters.all(axis=-1), jnp.inf, forward(now.judgement.factor)),
        )
        moved = now._replace(
            place=place, entry=entry, states=states, whole=whole, judgement=judgement
        )
        past = self.acceleration.shift(now.past, distance) if self.acceleration else now.past
        return moved._replace(memory=forward(now.memory), past=past), update

    def _checked(self, here: Steps, now: Iterate, update: Array) -> Iterate:
        """Apply the steps to the states, and judge these."""
        across, inputs = here.across, here.across.before(now.entry, now.states)
        value = here.evaluate(inputs)
        # To the last bit: the state after those that are what the step makes of the one before them.
        same, finite = across.leading(value == now.states, jnp.isfinite(value))
        reached, follows = (
            jnp.minimum(same + jnp.int32(1), jnp.int32(here.total)),
            now.place <= now.exact,
        )
        exact = jnp.where(follows, now.place + reached, now.exact)
        judgement = self.criterion(value, now.states, inputs, update, now.judgement, across)
        # What is returned is what the steps make of the states: where all before the last are right, so is that.
        right = (exact - now.place >= here.total) & (finite >= here.total)
        judgement = judgement._replace(worst=jnp.where(right, 0, judgement.worst))
        converged = jnp.maximum(
            judgement.converged, jnp.where(follows, jnp.minimum(reached, finite), 0)
        )
        history = (
            now.history.at[now.iterations].set(judgement.worst) if self.history else now.history
        )
        prefix = now.place + converged
        if self.progress:
            jax.debug.callback(self._report, now.iterations, prefix, judgement.worst)
        return now._replace(
            value=value, judgement=judgement, prefix=prefix, exact=exact, history=history
        )

    def _report(self, iteration: Array, prefix: Array, residual: Array) -> None:
        """Tell the user how far it is."""
        if self.progress:
            self.progress(int(iteration), int(prefix), float(residual))

    def _written(self, now: Iterate) -> Array:
        """All states, with the window in its place."""
        if not now.whole.size:
            return now.value
        return lax.dynamic_update_slice_in_dim(now.whole, now.value, now.place, 0)


def _unrecorded() -> float:
    """What stands after the last residual: NaN, but for those who have jax look for NaNs, which are none of theirs."""
    return jnp.inf if jax.config.jax_debug_nans else jnp.nan  # type: ignore[attr-defined]


def _index(here: Steps, states: Array) -> Array:
    """The places of states, beside every entry of them."""
    return jnp.broadcast_to(
        here.across.index(len(states)).reshape((-1, *(1,) * (states.ndim - 1))), states.shape
    )
