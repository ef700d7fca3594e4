"""Chains that amplify differences: a trust region, and how fast they do.

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
2024), to Jacobians scaled down or clipped in norm, and to updates clipped as a whole. `python -m
experiments iterations --parts damping` compares it with undamped Newton.

The growth rate of differences along a chain is its largest Lyapunov exponent. A small difference
propagates along the linearised chain, ``t_l = df/dz(z_{l-1}) t_{l-1}``, and grows as
``exp(rate * l)`` asymptotically, for almost every direction. The estimate divides the chain into
about sqrt(L) segments of sqrt(L) steps. A first sweep propagates a random vector through all
segments in parallel; its end is the growing direction of the next segment, where a second sweep
measures the growth. So the depth is 2 sqrt(L), the work is two directional derivatives per step,
and no Jacobian is formed.

If the rate is positive, differences grow, and each iteration of Newton's method makes only some
more of the first states exact. If it is negative, all states of a smooth chain converge together,
quadratically, once the iterates are near (Gonzalez et al., *Predictability enables parallelization
of nonlinear state space models*, 2025). A step that jumps, or that has several attractors, may take
hundreds of iterations at a negative rate.
"""

import dataclasses
import math
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays import Leaves, like
from deeppcr.axis import ChainAxis
from deeppcr.chain.chain import TracedChain
from deeppcr.checks import describe
from deeppcr.linear import Blocks, LinearSolver
from deeppcr.linearize import derivative

SWEEPS = 2  # Jacobi iterations after each update


@dataclasses.dataclass(frozen=True)
class TrustRegion:
    """Limit the update of every step to the size of the states.

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
        if not (isinstance(self.radius, Real) and self.radius > 0):
            raise ValueError(f"radius is {describe(self.radius)}, expected a number > 0.")

    def limited(
        self,
        solver: LinearSolver,
        blocks: Blocks,
        states: Array,
        value: Array,
        sizes: Array,
        axis: ChainAxis,
    ) -> Array:
        """The next states, from ``states`` and ``f`` of those before them, ``[L, *batch, w]``."""
        # A Jacobian entry that is not finite says nothing about how differences propagate.
        blocks = jax.tree.map(_finite, blocks)
        unit = (jnp.where(sizes > 0, sizes, jnp.ones_like(sizes)) * self.radius)[None]
        residual = value - states
        is_finite = jnp.isfinite(residual).all(axis=-1)[..., None]
        residual = jnp.where(is_finite, residual, jnp.zeros_like(residual))
        residual = residual * shrinkage(residual / unit)[..., None]
        limit = shrinkage(solver.solve_unguarded(blocks, residual) / unit)
        before = axis.before(jnp.ones_like(limit[0]), limit)
        gain = jnp.where(before > 0, jnp.minimum(1, limit / jnp.where(before > 0, before, 1)), 0)

        def scaled(leaf: Array) -> Array:  # a block that examples share has the smallest of gains
            if not leaf.size:
                return leaf
            shared = gain.min(axis=tuple(range(leaf.ndim, gain.ndim)), initial=jnp.inf)
            return leaf * shared.reshape((*shared.shape, *(1,) * (leaf.ndim - shared.ndim)))

        update = solver.solve_unguarded(jax.tree.map(scaled, blocks), residual)
        return states + _finite(update) * shrinkage(update / unit)[..., None]


def _finite(values: Array) -> Array:
    """The values; 0 where they are not finite."""
    return jnp.where(jnp.isfinite(values), values, jnp.zeros_like(values))


def shrinkage(update: Array) -> Array:
    """t, ``[L, *batch]``; 0 for an update that is not finite."""
    size = jnp.abs(update).max(axis=-1, initial=0)
    return jnp.where(
        jnp.isfinite(size), lax.rsqrt(1 + jnp.square(jnp.where(jnp.isfinite(size), size, 0))), 0
    )


def largest(states: Array) -> Array:
    """The largest finite value of every entry along the chain."""
    return jnp.abs(_finite(states)).max(axis=0, initial=0)


# -- the growth rate of differences ----------------------------------------------------------------


def growth_rate(chain: TracedChain, states: Array) -> Array:
    """The growth rate of differences: natural logarithm per step, of the example with the largest.

    Args:
        chain: all L steps of a chain.
        states: ``z_0 .. z_{L-1}``, as ``[L, *batch, w]``.
    """
    size = math.isqrt(chain.length - 1) + 1
    pieces = chain.length // size
    tiny = float(jnp.finfo(states.dtype).tiny)
    # A step with reverse mode only has no other derivative; the exponents are the same.
    axis = ChainAxis(backwards=chain.step.has_custom_vjp)

    def cut(x: Array) -> Array:
        whole = x[: pieces * size].reshape((pieces, size, *x.shape[1:]))
        return jnp.moveaxis(whole, 1, 0)

    def one(vector: Array, state: Array, inputs: Leaves) -> Array:
        return derivative(chain, state, inputs)(vector)

    def body(vector: Array, at: tuple[Array, Leaves]) -> tuple[Array, Array]:
        vector = jax.vmap(one)(vector, *at)
        norm = jnp.maximum(jnp.linalg.norm(vector, axis=-1), tiny)
        return vector / norm[..., None], jnp.log(norm)

    parts = (cut(states), list(map(cut, chain.inputs)))
    random = np.random.default_rng(0).normal(size=(pieces, *states.shape[1:]))
    begin = jnp.asarray(random / np.linalg.norm(random, axis=-1, keepdims=True), states.dtype)
    begin = like(begin, states)
    ends, _ = lax.scan(body, begin, parts, reverse=axis.backwards)
    _, logs = lax.scan(body, axis.before(begin[0], ends), parts, reverse=axis.backwards)
    return chain.axis.mean(logs.mean((0, 1))).max()
