"""How fast a chain amplifies differences: its largest Lyapunov exponent.

A small difference at one state grows along the linearised chain, ``t_l = df/dz(z_{l-1}) t_{l-1}``,
as ``exp(rate * l)`` in the long run, almost whatever its direction. The chain is cut into about
sqrt(L) pieces of sqrt(L) steps. A first sweep carries a random vector through every piece, all
pieces side by side; its end is the direction that grows in the piece after it, where a second sweep
measures. So the depth is 2 sqrt(L), the work two derivatives in one direction a step, and no
Jacobian is made.

Where the rate is positive, differences grow, and every iteration of Newton's method gets right only
some more of the first states; where it is negative all states converge together, quadratically
(Gonzalez et al., *Predictability enables parallelization of nonlinear state space models*, 2025).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.chain import TracedChain
from deeppcr.state import Leaves


def growth_rate(chain: TracedChain, states: Array) -> Array:
    """The growth rate of differences: natural logarithm per step, of the example with the largest.

    Args:
        chain: all L steps of a chain.
        states: ``z_0 .. z_{L-1}``, laid out as ``[L, *batch, w]``.
    """
    layout, length = chain.layout, chain.length
    size = math.isqrt(length - 1) + 1
    pieces = length // size
    shape = states.shape[1:]
    backwards = (
        chain.step.has_custom_vjp
    )  # such a step has no other derivative; the exponents are the same

    def cut(x: Array) -> Array:
        whole = x[: pieces * size].reshape((pieces, size, *x.shape[1:]))
        return jnp.moveaxis(whole, 1, 0)

    def one(vector: Array, state: Array, inputs: Leaves) -> Array:
        def f(z: Array) -> Array:
            return layout.flatten(chain.step(layout.unflatten(z), inputs, chain.captured))

        if not backwards:
            moved: Array = jax.jvp(f, (state,), (vector,))[1]
            return moved
        return jax.vjp(f, state)[1](vector)[0]

    def body(vector: Array, step: tuple[Array, Leaves]) -> tuple[Array, Array]:
        state, inputs = step
        vector = jax.vmap(one)(vector, state, inputs)
        norm = jnp.maximum(jnp.linalg.norm(vector, axis=-1), tiny)
        return vector / norm[..., None], jnp.log(norm)

    tiny = float(jnp.finfo(states.dtype).tiny)
    parts = (cut(states), [cut(x) for x in chain.inputs])
    random = np.random.default_rng(0).normal(size=(pieces, *shape))
    begin = jnp.asarray(random / np.linalg.norm(random, axis=-1, keepdims=True), states.dtype)
    ends, _ = lax.scan(body, begin, parts, reverse=backwards)
    begin = (
        jnp.concatenate([ends[1:], begin[-1:]])
        if backwards
        else jnp.concatenate([begin[:1], ends[:-1]])
    )
    _, logs = lax.scan(body, begin, parts, reverse=backwards)
    return chain.axis.mean(logs.mean((0, 1))).max()


def forecast_iterations(rate: float, length: int) -> int:
    """How many iterations Newton's method takes with exact Jacobians, by a rule of thumb.

    Where differences die out, errors are squared all along the chain, and a start that is far off
    takes some iterations more on long chains. Where they grow, an iteration settles as many states
    more as it takes for them to grow by about sqrt(e). On tanh and gated recurrent networks,
    pendulums and the logistic map of 200 to 1000 steps it is right within a factor of 2 to 3, as
    long as the iterates stay where the chain itself goes; far from it they may see other rates.
    """
    return min(length + 1, round(4 + math.log2(max(length, 1)) / 2 + 2 * max(rate, 0.0) * length))
