"""The growth rate of differences along a chain: its largest Lyapunov exponent.

A small difference propagates along the linearised chain, ``t_l = df/dz(z_{l-1}) t_{l-1}``, and
grows as ``exp(rate * l)`` asymptotically, for almost every direction. The estimate divides the
chain into about sqrt(L) segments of sqrt(L) steps. A first sweep propagates a random vector through
all segments in parallel; its end is the growing direction of the next segment, where a second sweep
measures the growth. So the depth is 2 sqrt(L), the work is two directional derivatives per step,
and no Jacobian is formed.

If the rate is positive, differences grow, and each iteration of Newton's method makes only some
more of the first states exact. If it is negative, all states of a smooth chain converge together,
quadratically, once the iterates are near (Gonzalez et al., *Predictability enables parallelization
of nonlinear state space models*, 2025). A step that jumps, or that has several attractors, may take
hundreds of iterations at a negative rate.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.arrays.avals import like
from deeppcr.arrays.state import Leaves
from deeppcr.axis import ChainAxis
from deeppcr.chain.chain import TracedChain
from deeppcr.linearize import derivative


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

    parts = (cut(states), [cut(x) for x in chain.inputs])
    random = np.random.default_rng(0).normal(size=(pieces, *states.shape[1:]))
    begin = jnp.asarray(random / np.linalg.norm(random, axis=-1, keepdims=True), states.dtype)
    begin = like(begin, states)
    ends, _ = lax.scan(body, begin, parts, reverse=axis.backwards)
    _, logs = lax.scan(body, axis.before(begin[0], ends), parts, reverse=axis.backwards)
    return chain.axis.mean(logs.mean((0, 1))).max()
