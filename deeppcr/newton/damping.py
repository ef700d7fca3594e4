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
the step is applied twice to all states (Jacobi iterations), which maps them back to the range of
the step: with one, Metropolis chains of 10,000 steps take 1.2 times as many iterations.

In trials it was preferred to Levenberg-Marquardt by a Kalman filter and smoother with fixed damping
(ELK, Gonzalez et al., *Towards scalable and stable parallelization of nonlinear RNNs*, NeurIPS
2024), to Jacobians scaled down or clipped in norm, and to updates clipped as a whole. Updates
clipped step by step, and a gain only where an update is the largest so far, take fewer iterations
on Metropolis chains and more on trained GRUs; with a region half as large they serve
`deeppcr.newton.auto_damping`, which needs no second solve. `python -m experiments iterations
--parts damping` compares it with undamped Newton.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr.avals import like
from deeppcr.checks import describe
from deeppcr.linear import Blocks, LinearSolver
from deeppcr.newton.transforms import Transform, Trip

SWEEPS = 2  # Jacobi iterations after each update


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

    def update(self, solver: LinearSolver, sizes: Array, trip: Trip) -> Array:
        """The next states; ``sizes``: of the entries, ``[*batch, w]``."""
        unit, blocks = self.unit(sizes), _finite(trip.blocks)
        residual = self._residual(trip.states, trip.value, unit)
        limit = shrinkage(solver.solve_unguarded(blocks, residual) / unit)
        before = trip.chain.axis.before(jnp.ones_like(limit[0]), limit)
        gain = jnp.where(before > 0, jnp.minimum(1, limit / jnp.where(before > 0, before, 1)), 0)
        update = solver.solve_unguarded(blocks.scale(gain), residual)
        finite_update = jnp.where(jnp.isfinite(update), update, jnp.zeros_like(update))
        after = trip.states + finite_update * shrinkage(update / unit)[..., None]

        def sweep(_: Array, states: Array) -> Array:
            swept = like(trip.evaluate(states), states)
            return jnp.where(jnp.isfinite(swept).all(axis=-1)[..., None], swept, states)

        after = like(after, after, trip.value)
        swept: Array = lax.fori_loop(0, SWEEPS, sweep, after)
        return swept

    def unit(self, sizes: Array) -> Array:
        """The size of the trust region, ``[1, *batch, w]``."""
        return (jnp.where(sizes > 0, sizes, jnp.ones_like(sizes)) * self.radius)[None]

    def _residual(self, states: Array, value: Array, unit: Array) -> Array:
        """The residual within the trust region; 0 where it is not finite."""
        residual = value - states
        finite = jnp.isfinite(residual).all(axis=-1)
        residual = jnp.where(finite[..., None], residual, jnp.zeros_like(residual))
        return residual * shrinkage(residual / unit)[..., None]


@dataclasses.dataclass(frozen=True)
class Damped(Transform):
    """The same within a trust region. Its own state: the sizes of the entries."""

    solver: LinearSolver
    region: TrustRegion

    def begin(self, states: Array) -> Any:
        return jnp.zeros_like(states[0])

    def __call__(self, states: Array, own: Any, trip: Trip) -> tuple[Array, Any]:
        seen = jnp.where(trip.indices < trip.converged, states, 0)
        seen = jnp.where(trip.is_first, jnp.maximum(jnp.abs(states), jnp.abs(trip.value)), seen)
        sizes = jnp.maximum(own, trip.chain.axis.largest(largest(seen)))
        return self.region.update(self.solver, sizes, trip), sizes


def _finite(blocks: Blocks) -> Blocks:
    """A Jacobian entry that is not finite says nothing about how differences propagate."""
    finite: Blocks = jax.tree.map(
        lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf)), blocks
    )
    return finite


def shrinkage(update: Array) -> Array:
    """t, ``[L, *batch]``; 0 for an update that is not finite."""
    size = jnp.abs(update).max(axis=-1, initial=0)
    return jnp.where(
        jnp.isfinite(size), lax.rsqrt(1 + jnp.square(jnp.where(jnp.isfinite(size), size, 0))), 0
    )


def largest(states: Array) -> Array:
    """The largest finite value of every entry along the chain."""
    return jnp.where(jnp.isfinite(states), jnp.abs(states), jnp.zeros_like(states)).max(
        axis=0, initial=0
    )
