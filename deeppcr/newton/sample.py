"""Newton's method on a sample of a chain: how many iterations will it take?

No bound from shapes or from the growth rate predicts the number of iterations: a chain that forgets
may hold iterates in the wrong basin for hundreds of iterations (a bistable step, a jump), and a
linear chain takes one, however it amplifies differences. So the iteration itself is run, on the
whole chain if that is cheap, else on a shorter chain: a few segments of its inputs, joined.

The sequential program runs first. The iterates are compared with its states, so no convergence test
is needed, and a tangent beside it measures the growth rate. An exact linearisation needs no blocks:

    Y_l = f(Z_{l-1}) + df/dz(Z_{l-1}) (Y_{l-1} - Z_{l-1})

is a directional derivative in each step of a loop. That costs no more than a few passes of the
sequential program, and compiles in a fraction of the time of the parallel solve.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.chain import TracedChain
from deeppcr.linear import Recurrence
from deeppcr.linearize import Linearization
from deeppcr.newton.convergence import STAGNATION
from deeppcr.newton.guess import first_trajectory
from deeppcr.state import Leaves

MOST = 32  # iterations on the sample
SECONDS = 0.15  # that they may take, if none converges; mostly it is a tenth of that
FEWEST = 32  # steps of a sample that says anything
# Units in the last place by which a parallel solver may miss a state: `STAGNATION`, and a margin.
ROUNDING = STAGNATION / 2
SEGMENTS = 4  # of the inputs, joined to a shorter chain
# Compiling takes longer than running: without optimisation it takes half as long.
UNOPTIMISED: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}


class Sample(NamedTuple):
    """What Newton's method did on a sample of a chain.

    Attributes:
        steps: of the sample.
        length: L, of the chain.
        iterations: after which the states were right, or the most that were tried.
        prefix: states from the start that were right by then; ``steps`` if it converged.
        rate: the growth rate of differences, natural logarithm per step; NaN if unknown.
        rounding: the error of a parallel solver, in units in the last place of a state; NaN if
            unknown.
        finite: whether the sequential program's states are.
        is_exact: whether the linearisation is exact, so that errors are squared.
    """

    steps: int
    length: int
    iterations: int
    prefix: int
    rate: float
    rounding: float
    finite: bool
    is_exact: bool

    @property
    def converged(self) -> bool:
        """Whether all states of the sample became right."""
        return self.prefix == self.steps

    @property
    def forecast(self) -> int:
        """The number of iterations that the whole chain will take.

        The sample counts those to half of the digits. Newton's method takes one more for the
        others, other linearisations as many again. A longer chain that forgets its past within the
        sample takes a few more; any other chain takes more in proportion to its length.
        """
        count = self.iterations + 1 if self.is_exact else 2 * self.iterations
        if self.rounding > ROUNDING:
            return self.length + 1
        times = self.length / max(1, self.prefix)
        if self.converged and self.forgets:
            count += round(math.log2(times) / 2)
        else:
            count = math.ceil(count * times)
        return min(count, self.length + 1)

    @property
    def forgets(self) -> bool:
        """Whether differences decay to a tenth of the digits within the sample."""
        return self.steps == self.length or self.rate * self.steps < -math.log(1e3)

    def __str__(self) -> str:
        whole = self.steps == self.length
        part = "the whole chain" if whole else f"{self.steps} of {self.length} steps"
        if not self.finite:
            return f"the states of {part} are not finite"
        text = f"as found on {part}"
        if not self.converged:
            text = (
                f"{self.prefix} of {self.steps} states converge in {self.iterations} iterations "
                f"on {part}"
            )
        elif self.rounding > ROUNDING:
            text = f"{self.iterations} on {part}, but a parallel solve loses digits"
        if math.isnan(self.rate):
            return text
        trend = "grow" if self.rate > 0 else "decay"
        return f"{text}; small differences {trend} at a rate of {self.rate:+.3g} a step"


def affordable(work: float, length: int, most: int) -> int:
    """The number of steps of a sample that can be run; 0 if it would be too few.

    Args:
        work: operations of a step.
        length: L.
        most: iterations.
    """
    trip = 1e-6 + 3 * work / 2e9  # of a loop on one core of a CPU
    steps = min(length, int(SECONDS / (trip * most)))
    return steps if steps >= min(FEWEST, length) else 0


def indices(length: int, steps: int) -> np.ndarray | None:
    """The steps of a sample: a few segments, from the start to the end; None for all steps."""
    if steps >= length:
        return None
    size = steps // SEGMENTS
    starts = np.linspace(0, length - size, SEGMENTS).astype(int)
    return (starts[:, None] + np.arange(size)).ravel()


def sample(
    chain: TracedChain, length: int, linearization: Linearization, guess: str, most: int = MOST
) -> Sample:
    """Run Newton's method on ``chain``, a sample of a chain of ``length`` steps.

    Args:
        chain: with arrays, in float32 or better.
        length: the number of steps of the whole chain.
        linearization: of Newton's method.
        guess: its initial trajectory, by name.
        most: the number of iterations after which it ends.
    """
    is_exact = linearization.is_exact(chain.step, chain.layout)
    arrays = chain.initial, chain.inputs, chain.captured

    def program(initial: Leaves, inputs: Leaves, captured: Leaves) -> tuple[Array, ...]:
        here = jax.tree.unflatten(
            jax.tree.structure(chain), jax.tree.leaves((initial, inputs, captured))
        )
        return _run(here, linearization, guess, is_exact, most)

    compiled = jax.jit(program).lower(*arrays).compile(compiler_options=UNOPTIMISED)
    iterations, prefix, rate, rounding, finite = (x.item() for x in compiled(*arrays))
    return Sample(chain.length, length, iterations, prefix, rate, rounding, finite, is_exact)


def _run(
    chain: TracedChain, linearization: Linearization, guess: str, is_exact: bool, most: int
) -> tuple[Array, ...]:
    start = chain.layout.flatten(chain.initial)
    states, rate, rounding = _trajectory(chain, start)
    finite = jnp.isfinite(states).all()
    largest = jnp.maximum(jnp.abs(states).max(axis=0), jnp.abs(start))
    near = (4 * float(jnp.finfo(states.dtype).eps) ** 0.5 * largest)[None]
    advance = partial(_newton, chain, start)
    if not is_exact or chain.step.has_custom_vjp:
        advance = partial(_by_blocks, chain, start, linearization)

    def goes_on(now: tuple[Array, Array, Array]) -> Array:
        _, iterations, prefix = now
        return finite & (iterations < most) & (prefix < chain.length)

    def iteration(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        iterate, iterations, _ = now
        after = advance(iterate)
        after = jnp.where(jnp.isfinite(after), after, iterate)
        right = (jnp.abs(after - states) <= near).reshape((chain.length, -1)).all(axis=1)
        prefix = jnp.where(right.all(), chain.length, jnp.argmin(right))
        return after, iterations + 1, prefix.astype(jnp.int32)

    first = first_trajectory(guess, None, chain, start, chain.length)
    _, iterations, prefix = lax.while_loop(goes_on, iteration, (first, jnp.int32(0), jnp.int32(0)))
    return iterations, prefix, rate, rounding, finite


def _trajectory(chain: TracedChain, start: Array) -> tuple[Array, Array, Array]:
    """The sequential program's states, the growth rate of a difference, and `Sample.rounding`.

    A parallel solver sums ``P_{j->l} b_j`` over j, with products P of Jacobians and the right-hand
    sides ``b_j = f(z_{j-1}) - A_j z_{j-1}`` of the recurrence. The rounding errors are those of the
    sum of magnitudes, ``s_l = |A_l| s_{l-1} + |b_l|``, where a difference tells ``|A_l|``.
    """
    by_rows = chain.step.has_custom_vjp  # it has no directional derivative
    tiny = float(jnp.finfo(start.dtype).tiny)
    decayed = tiny / float(jnp.finfo(start.dtype).eps)  # a state whose last digits underflow
    random = np.random.default_rng(0).normal(size=start.shape)
    unit = random / np.maximum(np.linalg.norm(random, axis=-1, keepdims=True), tiny)
    size, zero = jnp.linalg.norm(start, axis=-1), jnp.zeros_like(start[..., 0])

    def body(now: tuple[Array, ...], inputs: Leaves) -> tuple[tuple[Array, ...], Any]:
        state, vector, before, total, grown = now
        f = _step(chain, inputs)
        if by_rows:
            unknown = jnp.full_like(zero, jnp.nan)
            return (f(state), *now[1:]), (f(state), unknown, unknown, unknown)
        after, push = jax.linearize(f, state)
        moved = push(vector)
        norm = jnp.maximum(jnp.linalg.norm(moved, axis=-1), tiny)
        total = norm * total + jnp.linalg.norm(after - push(state), axis=-1)
        grown = jnp.maximum(grown, 0) + jnp.log(norm)
        size = jnp.linalg.norm(after, axis=-1)
        larger = jnp.maximum(size, before)
        error = jnp.where(larger > decayed, total / jnp.maximum(larger, decayed), 0)
        following = after, moved / norm[..., None], size, total, grown
        return following, (after, jnp.log(norm), error, grown)

    begin: tuple[Array, ...] = (start, jnp.asarray(unit, start.dtype), size, size, zero)
    _, (states, logs, errors, grown) = lax.scan(body, begin, chain.inputs, chain.length)
    overflows = grown.max() > 0.5 * math.log(float(jnp.finfo(start.dtype).max))
    rounding = jnp.where(overflows | ~jnp.isfinite(errors).all(), jnp.inf, errors.max())
    return states, logs.mean(axis=0).max(), rounding


def _newton(chain: TracedChain, start: Array, iterate: Array) -> Array:
    """The next iterate of Newton's method, one directional derivative after another."""

    def body(after: Array, given: tuple[Array, Leaves]) -> tuple[Array, Array]:
        state, inputs = given
        value, moved = jax.jvp(_step(chain, inputs), (state,), (after - state,))
        return value + moved, value + moved

    origin = chain.axis.before(start, iterate)
    return lax.scan(body, start, (origin, chain.inputs))[1]


def _by_blocks(
    chain: TracedChain, start: Array, linearization: Linearization, iterate: Array
) -> Array:
    """The next iterate with blocks that are not exact, or of a step without directional ones."""
    origin = chain.axis.before(start, iterate)
    blocks, value = linearization.blocks(chain, origin), chain.evaluate(origin)
    b = chain.axis.set_first(value - blocks.apply(origin), value[0])
    return Recurrence().solve_unguarded(blocks, b)


def _step(chain: TracedChain, inputs: Leaves) -> Callable[[Array], Array]:
    """The step as a function of vectors."""

    def f(state: Array) -> Array:
        after = chain.step(chain.layout.unflatten(state), inputs, chain.captured)
        return chain.layout.flatten(after)

    return f
