"""The state of the loop of Newton's method: the iterate in its window, and how far it has come.

The window slides along the chain as its first states converge. The solve holds the blocks of the
window, and the trajectory is its only array of L steps. A window of L steps never moves. What has
not converged when the loop ends, the sequential fallback computes step by step (`finish`).
"""

from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.arrays import Leaves
from deeppcr.chain.chain import TracedChain
from deeppcr.loops import FALLBACK, fallback, steps_from, unless
from deeppcr.lower import fused_scan, pack
from deeppcr.sequential import kernel_of


class Stagnation(NamedTuple):
    """How far residuals and updates have fallen, and when they last did.

    Both are the largest of the chain, relative to the size of the entry. A loop carries them
    packed.

    Attributes:
        residual: the smallest so far, in units in the last place. Below 0 before the first test:
            that of the initial trajectory does not count, since good iterates may stray above it.
        update: the same of updates, not in units.
        residual_fell: the iteration in which the residual last fell much below its smallest.
        update_fell: the same of the update.
    """

    residual: Array
    update: Array
    residual_fell: Array
    update_fell: Array

    def following(
        self, residual: Array, update: Array, iteration: Array, factor: float
    ) -> tuple[Array, ...]:
        """The next one, packed; ``factor``: what counts as to fall much."""

        def follow(level: Array, least: Array, fell: Array) -> tuple[Array, Array]:
            smallest = jnp.where(least < 0, jnp.inf, jnp.minimum(level, least))
            falls = jnp.isfinite(smallest) & (level <= smallest) & (smallest <= factor * least)
            return smallest, jnp.where(falls, iteration, fell)

        least_residual, residual_fell = follow(residual, self.residual, self.residual_fell)
        least_update, update_fell = follow(update, self.update, self.update_fell)
        return pack(least_residual, least_update, residual_fell, update_fell)


class Convergence(NamedTuple):
    """The convergence state of an iterate ``[L, *batch, w]``.

    Attributes:
        worst: the largest residual, relative to the size of the entry.
        stagnation: a `Stagnation`, packed.
        update_norm: ``[L, *batch]``, the largest update up to this step, relative to the size of
            the state; inf before the first. Only quasi-Newton methods use it, and the next.
        contraction: ``[L, *batch]``, estimated contraction factor of each step's update; inf while
            unknown.
        converged: int32, the number of states from the start that are right.
        same: int32, the number that the step reproduces to the last bit.
        finite: int32, the number that the step makes finite.
    """

    worst: Array
    stagnation: tuple[Array, ...]
    update_norm: Array
    contraction: Array
    converged: Array
    same: Array
    finite: Array

    @classmethod
    def unknown(cls, states: Array) -> Self:
        """The convergence state before the first test, of ``states: [L, *batch, w]``."""
        infinite = jnp.full((), jnp.inf, states.dtype)
        unknown = jnp.full(states.shape[:-1], jnp.inf, states.dtype)
        none = jnp.int32(0)
        before = jnp.full((), -1, states.dtype)
        stagnation = pack(*Stagnation(-infinite, -infinite, before, before))
        return cls(infinite, stagnation, unknown, unknown, none, none, none)

    def shifted(self, distance: Array, entered: Array, iterations: Array) -> Self:
        """The state of a window that has moved on by ``distance`` steps, not yet tested there.

        The steps that have ``entered``, bool ``[L, *batch]``, have no history, and may raise the
        residual. ``iterations``, int32, have made the states.
        """

        def shifted(x: Array) -> Array:
            return jnp.where(entered, jnp.inf, jnp.roll(x, -distance, axis=0))

        norm = shifted(self.update_norm)
        contraction = shifted(self.contraction)
        infinite = jnp.full((), jnp.inf, self.worst.dtype)
        before = (iterations - jnp.int32(1)).astype(infinite.dtype)
        fresh = pack(*Stagnation(infinite, infinite, before, before))
        stagnation = jax.tree.map(partial(jnp.where, distance > 0), fresh, self.stagnation)
        return self._replace(update_norm=norm, contraction=contraction, stagnation=stagnation)


class Window(NamedTuple):
    """The steps that are solved at once.

    Attributes:
        start: int32, the index of the first of them.
        entry: ``[*batch, w]``, the state before it.
        known: int32, the number of states from the start of the chain that equal the sequential
            program's to the last bit, when the window moved last.
        whole: ``[L, *batch, w]``, all states; empty if the window is the chain.
    """

    start: Array
    entry: Array
    known: Array
    whole: Array

    @classmethod
    def begin(cls, entry: Array, first: Array, size: int) -> Self:
        """The first ``size`` steps, after the state ``entry``; ``first``: all states."""
        whole = first if size < len(first) else jnp.zeros_like(first[:0])
        return cls(jnp.int32(0), entry, jnp.int32(0), whole)

    def all_states(self, states: Array) -> Array:
        """The states of the chain, from those of the window."""
        if not self.whole.size:
            return states
        return lax.dynamic_update_slice_in_dim(self.whole, states, self.start, 0)

    def moved(self, start: Array, states: Array, exact: Array) -> "Window":
        """The window from ``start`` on, with these ``states`` in this one."""
        distance = start - self.start
        last = lax.dynamic_index_in_dim(states, jnp.maximum(distance - 1, 0), keepdims=False)
        entry = jnp.where(distance > 0, last, self.entry)
        return Window(start, entry, exact, self.all_states(states))


class Iterate(NamedTuple):
    """The state of the loop.

    Attributes:
        iterations: int32, the number of trips of the loop. Below 0 before the initial trajectory
            has been tested: the first trips apply the step to the guess, and test what comes out.
        states: ``[W, *batch, w]``, those of the window.
        value: ``f`` applied to every state of the iterate: one step closer to the answer, and
            rounded as the user's own program rounds. Before the first trip, the guess.
        convergence: of the states.
        window: the steps that are solved at once.
        sizes: of the entries, ``[*batch, w]``, for a trust region; else ().
        history: of the iterates, for acceleration; else ().
        residuals: one more than iterations, that of the guess in the second place; empty unless
            recorded.
        reported: int32, the number of converged states reported to the user last. The
            estimate may fall; the reported count must not.
    """

    iterations: Array
    states: Array
    value: Array
    convergence: Convergence
    window: Window
    sizes: Any
    history: Any
    residuals: Array
    reported: Array


class Reached(NamedTuple):
    """How far an iterate has come. Computed where it is needed: the loop carries less.

    Attributes:
        prefix: int32, the number of converged states from the start of the chain.
        exact: int32, the number of them that equal the sequential program's to the last bit.
        stuck: bool, the state after them is not finite, and no iteration changes that.
        worst: the largest residual of what would be returned, relative to the size of the entry.
    """

    prefix: Array
    exact: Array
    stuck: Array
    worst: Array

    @classmethod
    def of(cls, now: Iterate, total: int) -> Self:
        """The progress of an iterate; ``total``: the number of steps that are solved at once."""
        convergence = now.convergence
        start, known = now.window.start, now.window.known
        follows = start <= known
        # Exact to the last bit: the states that ``f`` reproduces, and the one after them.
        reached = jnp.minimum(convergence.same + jnp.int32(1), jnp.int32(total))
        right = jnp.where(follows, jnp.minimum(reached, convergence.finite), 0)
        # The step makes it of a state that is right, and so does every later iteration.
        known_to_be = (convergence.finite <= convergence.converged) | (
            follows & (convergence.finite <= convergence.same)
        )
        exact = jnp.where(follows, start + reached, known)
        # ``value`` is returned: if all states but the last are right, so is all of it.
        is_exact = (exact - start >= total) & (convergence.finite >= total)
        return cls(
            prefix=start + jnp.maximum(convergence.converged, right),
            exact=exact,
            stuck=(convergence.finite < total) & known_to_be,
            worst=jnp.where(is_exact, 0, convergence.worst),
        )


def finish(chain: TracedChain, trajectory: Leaves, prefix: Array, expected: bool = False) -> Leaves:
    """Run the steps after ``prefix`` one by one; the loop makes no trip if there are none.

    On a GPU all steps run again where one kernel does that. ``expected``: whether it is known
    beforehand that there are some.
    """
    length = chain.length
    if step := kernel_of(chain):

        def kernel() -> Leaves:
            return fused_scan(step, chain.initial, chain.inputs, chain.captured, False, length)[1]

        with fallback(FALLBACK, expected):
            return unless(prefix == length, trajectory, kernel)

    def run(entry: Leaves, trajectory: Leaves) -> tuple[Leaves, Leaves]:
        def step(index: Array, before: Leaves) -> tuple[Leaves, Leaves]:
            inputs = [lax.dynamic_index_in_dim(x, index, keepdims=False) for x in chain.inputs]
            after = chain.step(before, inputs, chain.captured)
            return after, after

        begin = jnp.clip(prefix - chain.axis.rank * length, 0, length).astype(jnp.int32)
        before = [
            jnp.where(begin == 0, z, lax.dynamic_index_in_dim(rest, begin - 1, keepdims=False))
            for z, rest in zip(entry, trajectory, strict=True)
        ]
        with fallback(FALLBACK, expected):
            _, finished = steps_from(begin, step, before, trajectory)
        return [leaf[-1] for leaf in finished], finished

    if chain.axis.size == 1:
        return run(chain.initial, trajectory)[1]
    return lax.cond(
        prefix < chain.total,
        lambda: chain.axis.sequentially(run, chain.initial, trajectory)[1],
        lambda: trajectory,
    )
