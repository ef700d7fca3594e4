"""A trust region for chains that amplify differences.

An update ``D = Y - Z`` of Newton's method solves ``D_l = A_l D_{l-1} + e_l``, where
``e_l = f(Z_{l-1}) - Z_l`` is the residual. Far from the solution, where the chain amplifies
differences, D grows exponentially along the chain. It overflows, or leaves the region in which the
linearisation holds. A trust region keeps every update within the size ``s`` of the states. Clipping
D is not enough, because later steps still propagate the update before clipping. So the growth
itself is limited,

    D_l = g_l A_l D_{l-1} + e_l,    g_l = min(1, t_l / t_{l-1}),
    t_l = 1 / sqrt(1 + (|D_l| / (radius s))^2),

with the t of a first, unlimited solve. This is a quasi-Newton method with the same linear
recurrence: its Jacobians are scaled down where the unlimited update grows. Near the solution
``t = 1 - O(|D|^2)``, and the method is Newton's, with its quadratic convergence. After the update
the step is applied once to all states (a Jacobi iteration), which maps them back to the range of
the step.

In trials it was preferred to Levenberg-Marquardt by a Kalman filter and smoother with fixed damping
(ELK, Gonzalez et al., *Towards scalable and stable parallelization of nonlinear RNNs*, NeurIPS
2024), to Jacobians scaled down or clipped in norm, and to updates clipped as a whole. Updates
clipped step by step, and a gain only where an update is the largest so far, take fewer iterations
on Metropolis chains and more on trained GRUs. `python -m experiments iterations
--parts damping` compares it with undamped Newton.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis import LOCAL, ChainAxis
from deeppcr.checks import describe
from deeppcr.linear import Blocks, LinearSolver

PATIENCE = 8  # iterations without progress after which "auto" changes its mind
LEFT = 0.6  # how many states may be wrong after as many damped iterations, of those wrong before
CLOSE = 1e-3  # residual, in sizes of an entry, of a state that is nearly right
PLAIN, DAMPED, OVER = range(3)


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Limit the growth of updates along the chain to the size of its states.

    For chains that amplify differences, whose iterates overflow or diverge without it.

    Attributes:
        radius: float > 0, the size of the trust region relative to that of each entry of the state
            (dimensionless). The size of an entry is its largest magnitude in the initial trajectory
            or in a converged state.

    Raises:
        ValueError: ``radius`` is not positive.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: 3.6 * z * (1 - z), length=100)
        >>> newton = deeppcr.Newton(damping=deeppcr.TrustRegion())
        >>> bool(deeppcr.solve(chain, jnp.array(0.3), method=newton).converged)
        True
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"radius is {describe(self.radius)}, expected a number > 0.")

    def begin(self, states: Array, value: Array, axis: ChainAxis = LOCAL) -> Array:
        """The sizes of the entries, ``[*batch, w]``.

        Args:
            states: the initial guess, ``[L, *batch, w]``.
            value: f of every state, ``[L, *batch, w]``.
            axis: the chain axis.
        """
        return axis.largest(jnp.maximum(_largest(states), _largest(value)))

    def update(
        self,
        solver: LinearSolver,
        blocks: Blocks,
        states: Array,
        value: Array,
        converged: Array,
        sizes: Array,
        evaluate: Callable[[Array], Array],
        axis: ChainAxis = LOCAL,
    ) -> tuple[Array, Any]:
        """The next states.

        Args:
            solver: of the linear recurrence.
            blocks: at the states.
            states: ``[L, *batch, w]``.
            value: f of every state, ``[L, *batch, w]``.
            converged: bool ``[L]``.
            sizes: what `begin` or the last call returned.
            evaluate: f, applied to every state.
            axis: the chain axis.

        Returns:
            the states and the sizes.
        """
        known = converged.reshape((-1, *(1,) * (states.ndim - 1)))
        sizes = jnp.maximum(
            sizes, axis.largest(_largest(jnp.where(known, states, jnp.zeros_like(states))))
        )
        unit = self.unit(sizes)
        unlimited = solver.solve_unguarded(_finite(blocks), self._residual(states, value, unit))
        after = self.limited(solver, blocks, states, value, unlimited, unit, evaluate, axis)
        return after, sizes

    def limited(
        self,
        solver: LinearSolver,
        blocks: Blocks,
        states: Array,
        value: Array,
        unlimited: Array,
        unit: Array,
        evaluate: Callable[[Array], Array],
        axis: ChainAxis = LOCAL,
    ) -> Array:
        """The next states.

        Args:
            solver: of the linear recurrence.
            blocks: at the states.
            states: ``[L, *batch, w]``.
            value: f of every state, ``[L, *batch, w]``.
            unlimited: the update without a trust region, ``[L, *batch, w]``.
            unit: the size of the trust region, ``[1, *batch, w]``.
            evaluate: f, applied to every state.
            axis: the chain axis.
        """
        limit = _limit(unlimited / unit)
        before = axis.before(jnp.ones_like(limit[0]), limit)
        gain = jnp.where(before > 0, jnp.minimum(1, limit / jnp.where(before > 0, before, 1)), 0)
        residual = self._residual(states, value, unit)
        update = solver.solve_unguarded(_finite(blocks).scale(gain), residual)
        finite_update = jnp.where(jnp.isfinite(update), update, jnp.zeros_like(update))
        after = states + finite_update * _limit(update / unit)[..., None]
        swept = evaluate(after)
        return jnp.where(jnp.isfinite(swept).all(axis=-1)[..., None], swept, after)

    def unit(self, sizes: Array) -> Array:
        """The size of the trust region, ``[1, *batch, w]``."""
        return (jnp.where(sizes > 0, sizes, jnp.ones_like(sizes)) * self.radius)[None]

    def _residual(self, states: Array, value: Array, unit: Array) -> Array:
        """The residual within the trust region; 0 where it is not finite."""
        residual = value - states
        finite = jnp.isfinite(residual).all(axis=-1)
        residual = jnp.where(finite[..., None], residual, jnp.zeros_like(residual))
        return residual * _limit(residual / unit)[..., None]


class Trial(NamedTuple):
    """The state of `AutoDamping`.

    Attributes:
        sizes: of the entries, ``[*batch, w]``.
        saved: ``[L, *batch, w]``, the initial trajectory, from which the trust region starts; then
            the iterate before it, to go back to.
        phase: int32: PLAIN, DAMPED, or OVER if it was tried in vain.
        tried: int32, the damped iterations.
        share: of the states that plain iterations had not brought near their values.
        prefix: int32, the number of converged states from the start when progress was measured.
        spent: int32, the iterations of a trial in vain, which are not counted in the budget.
    """

    sizes: Array
    saved: Array
    phase: Array
    tried: Array
    share: Array
    prefix: Array
    spent: Array


# Not the default: with it programs compile 1.5 to 2.2 times as long, and chains that converge take
# up to a tenth longer (CPU, jax 0.10.2). A second loop after the plain one is hardly cheaper.
# Clipping the updates of the plain loop is, but solves nothing without a new start and a sweep.
@dataclasses.dataclass(frozen=True)
class AutoDamping:
    """Plain iterations, and a trust region where these get nowhere.

    It enters after `PATIENCE` iterations in which the largest residual has not fallen, from the
    initial trajectory. It stays if it brings many more states near their values than plain
    iterations, or so many states from the start to convergence that the others follow within the
    budget; near the solution it limits nothing. Otherwise the iteration goes back to the iterate
    before it, with the exact states that are known by now, and stays plain; the iterations in vain
    are not counted in the budget. So no chain is lost that plain iterations solve within theirs.
    """

    region: TrustRegion = TrustRegion()

    def begin(self, states: Array, value: Array, axis: ChainAxis = LOCAL) -> Trial:
        """See `TrustRegion`."""
        none, sizes = jnp.int32(0), self.region.begin(states, value, axis)
        return Trial(sizes, states, none, none, jnp.ones((), states.dtype), none, none)

    def update(
        self,
        solver: LinearSolver,
        blocks: Blocks,
        states: Array,
        value: Array,
        plain: Array,
        exact: Array,
        stalled: Array,
        prefix: Array,
        remaining: Array,
        left: Array,
        trial: Trial,
        evaluate: Callable[[Array], Array],
        axis: ChainAxis = LOCAL,
    ) -> tuple[Array, Trial]:
        """The next states.

        Args:
            solver: of the linear recurrence.
            blocks: at the states.
            states: ``[L, *batch, w]``.
            value: f of every state, ``[L, *batch, w]``.
            plain: the next states of the plain iteration, ``[L, *batch, w]``.
            exact: bool ``[L]``, whether a state is exact.
            stalled: int32, the number of iterations since the largest residual fell.
            prefix: int32, the number of converged states from the start of the chain.
            remaining: int32, the number of states after them.
            left: int32, the number of iterations, this one included, that are left.
            trial: what `begin` or the last call returned.
            evaluate: f, applied to every state.
            axis: the chain axis.
        """

        def damped(now: tuple[Array, Array, Trial]) -> tuple[Array, Array, Trial]:
            unit = self.region.unit(trial.sizes)
            wrong = ~(jnp.abs(value - states) <= CLOSE * unit).all(axis=-1)
            share = axis.mean(wrong.mean(dtype=states.dtype))
            begins = trial.phase == PLAIN
            is_due = ~begins & (trial.tried % PATIENCE == 0)
            gained, remain, iterations = (
                x.astype(states.dtype) for x in (prefix - trial.prefix, remaining, left)
            )
            advances = gained * iterations >= PATIENCE * remain
            stagnates = is_due & (share > LEFT * trial.share) & ~advances
            fails = ~begins & (stagnates | (left <= 1))
            after = self.region.limited(
                solver, blocks, states, value, plain - states, unit, evaluate, axis
            )
            known = exact.reshape((-1, *(1,) * (states.ndim - 1)))
            swaps, measures = begins | fails, begins | is_due
            following = Trial(
                sizes=trial.sizes,
                saved=jnp.where(swaps, states, trial.saved),
                phase=jnp.where(fails, OVER, DAMPED).astype(jnp.int32),
                tried=jnp.where(begins, 1, trial.tried + 1).astype(jnp.int32),
                share=jnp.where(begins, share, trial.share),
                prefix=jnp.where(measures, prefix, trial.prefix),
                spent=trial.spent + jnp.where(fails, trial.tried + 1, 0).astype(jnp.int32),
            )
            swapped = jnp.where(known, value, trial.saved)
            return jnp.zeros_like(now[0]), jnp.where(swaps, swapped, after), following

        # A loop of at most one trip. Under `jax.vmap` a branch would compute both sides.
        enters = (trial.phase == PLAIN) & (stalled >= PATIENCE) & (left > PATIENCE)
        _, after, following = lax.while_loop(
            lambda now: now[0], damped, (enters | (trial.phase == DAMPED), plain, trial)
        )
        return after, following


def _finite(blocks: Blocks) -> Blocks:
    """A Jacobian entry that is not finite says nothing about how differences propagate."""
    finite: Blocks = jax.tree.map(
        lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf)), blocks
    )
    return finite


def _limit(update: Array) -> Array:
    """t, ``[L, *batch]``; 0 for an update that is not finite."""
    size = jnp.abs(update).max(axis=-1, initial=0)
    return jnp.where(
        jnp.isfinite(size), lax.rsqrt(1 + jnp.square(jnp.where(jnp.isfinite(size), size, 0))), 0
    )


def _largest(states: Array) -> Array:
    """The largest finite value of every entry along the chain."""
    return jnp.where(jnp.isfinite(states), jnp.abs(states), jnp.zeros_like(states)).max(
        axis=0, initial=0
    )
