"""Tangents and adjoints by Jacobian blocks of all steps at once and one linear recurrence.

Exact blocks take one solve, if its residual is at rounding level. With approximate blocks (of a
quasi-Newton method, or of a batch whose examples interact, as in batch normalisation) the solution
is corrected against the true derivative until its residual is: see `deeppcr.linear.judged`. So the
derivative is exact with any blocks.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.one_kernel import by_kernel, by_windows
from deeppcr.adjoint.tangents import pullback
from deeppcr.arrays import Leaves, abstract
from deeppcr.chain.chain import TracedChain
from deeppcr.checks import check_count, check_tolerance, option_tree
from deeppcr.linear import Blocks, LinearSolver, Recurrence, find_solver
from deeppcr.linear.judged import (
    FEW_UNITS,
    MOST_CORRECTIONS,
    UNITS,
    USUAL_CORRECTIONS,
    System,
    solve_judged,
)
from deeppcr.linearize import (
    Dense,
    Diagonal,
    Linearization,
    Zero,
    choose_linearization,
    find_linearization,
)
from deeppcr.loops import unless
from deeppcr.lower import even_chunk, steps_in_cache
from deeppcr.sharding import solver_on

# Where corrections do not help. And where one entry does not depend on another, a block multiplies
# by zero, while the step's own derivative has no product: one infinite entry of a cotangent would
# make all others NaN.
BACKPROPAGATION = Backpropagation()


@option_tree("linearize")
@dataclasses.dataclass(frozen=True)
class Adjoint:
    r"""Derivatives by one linear recurrence over all steps, instead of step by step.

    The adjoint states solve $\lambda_l = g_l + A_{l+1}^T \lambda_{l+1}$ with
    $A_l = df/dz(z_{l-1}, x_l)$. All other gradients are one batched vector-Jacobian product. As
    `Newton`, a pytree of the arrays among its options.

    Attributes:
        linearize: the blocks, as in `Newton`. Exact blocks take one solve, and more if products of
            blocks lose digits; backpropagation takes over if that does not help. With approximate
            blocks solves are repeated until the residual against the true derivative is at rounding
            level, so gradients are exact, too. "auto": the blocks of the method, if that is
            `Newton` (without `Clipped`, and not of a `Surrogate`); else the exact Jacobian in its
            narrowest form.
        linear: the solver of the linear recurrence: see `deeppcr.solve_bidiagonal`. Solutions of
            parallel solvers are judged, those of "sequential" are not: where a Jacobian is far
            from normal, it has fewer digits than the step itself, and "backprop" keeps them.
        rtol: float > 0, the tolerance on the residual of each step relative to what it adds, and of
            approximate blocks on the last correction, too (dimensionless); None for 16 units in the
            last place of the dtype, with approximate blocks 8.
        max_iterations: integer >= 1, the number of solves by approximate blocks after which
            backpropagation step by step takes over.
        memory: integer >= 1, bytes for the blocks, as in `Newton`; longer chains are solved in
            chunks.
        checkpoint: integer >= 1, the number of steps in a segment: only every so many states are
            kept for the gradient, which solves each segment again. With about the square root of L,
            memory grows with the square root of L, for one more forward pass. Segments are solved
            one after another, by any method. Without another option, their derivative is that of
            "auto". None: all states are kept. Not for chains on several devices.

    Raises:
        TypeError: an option has a wrong type.
        ValueError: a name is unknown, or a number is out of range.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(0.5 * z + x), jnp.ones((100, 2)))
        >>> adjoint = deeppcr.Adjoint(linear="pcr")
        >>> loss = lambda z: deeppcr.solve(chain, z, adjoint=adjoint).trajectory.sum()
        >>> jax.grad(loss)(jnp.zeros(2)).shape
        (2,)

    References:
        F. Danieli et al., *DeepPCR*, NeurIPS 2023, section 3.2.
    """

    linearize: str | Linearization = "auto"
    linear: str | LinearSolver = "auto"
    rtol: float | None = None
    max_iterations: int = MOST_CORRECTIONS
    memory: int | None = None
    checkpoint: int | None = None

    def __post_init__(self) -> None:
        find_linearization(self.linearize)
        find_solver(self.linear, "linear")
        check_tolerance("rtol", self.rtol, optional=True)
        check_count("max_iterations", self.max_iterations, "number of solves")
        check_count("memory", self.memory, "number of bytes", optional=True)
        check_count("checkpoint", self.checkpoint, "number of steps", optional=True)

    def bind(self, chain: TracedChain, fused: bool = False) -> "JacobianAdjoint":
        """The adjoint of a chain, with every option resolved; ``fused``: as in `Newton`."""
        choice = choose_linearization(
            self.linearize, chain.step, chain.layout, chain.length, None, self.memory
        )
        return JacobianAdjoint(
            choice.bind(),
            find_solver(self.linear),
            choice.is_exact,
            fused and choice.is_exact and self.linear == "auto",
            self.rtol,
            self.max_iterations,
            choice.window,
            # Linearisations of the user's are of the whole state.
            self if isinstance(self.linearize, str | Dense | Diagonal | Zero) else None,
        )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["linearization"],
    meta_fields=["solver", "is_exact", "fused", "rtol", "budget", "window", "option"],
)
@dataclasses.dataclass(frozen=True)
class JacobianAdjoint:
    """`Adjoint`, bound to a chain."""

    linearization: Linearization
    solver: LinearSolver
    is_exact: bool
    fused: bool
    rtol: float | None
    budget: int
    window: int
    option: Adjoint | None

    def of_part(self, chain: TracedChain) -> "JacobianAdjoint | None":
        """See `AdjointSolver`."""
        return None if self.option is None else self.option.bind(chain, self.fused)

    def chunk(self, chain: TracedChain) -> int:
        """See `AdjointSolver`: the steps that fit into memory, or into the cache."""
        length, most, layout = chain.length, self.window, chain.layout

        def shapes() -> Blocks:
            shape = (length, *layout.batch_shape, layout.width)
            states = abstract(chain.initial[0], shape, layout.dtype)
            return jax.eval_shape(partial(self.linearization.blocks, chain), states)

        if isinstance(self.solver.resolve(length, shapes), Recurrence):
            size = self.linearization.bytes_per_step(chain.step, layout)
            most = min(most, steps_in_cache(size, chain.captured))
        return even_chunk(length, most)

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `AdjointSolver`."""
        layout = chain.layout
        first = _product(chain, states, False, layout.flatten(enter))
        right, t = self._solve(chain, states, layout.flatten(b), first, False)
        by_steps = partial(BACKPROPAGATION.forward, chain, states, b, enter)
        return unless(right, layout.unflatten(t), by_steps)

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `AdjointSolver`."""
        by_blocks = partial(self._by_blocks, chain, states, g, enter)
        run = partial(by_windows, by_blocks)
        pulled = by_kernel(run, chain, states, g, enter) if self.fused else None
        return pulled or by_blocks()

    def _by_blocks(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        layout = chain.layout
        right, y = self._solve(chain, states, layout.flatten(g), layout.flatten(enter), True)
        leave = chain.axis.of_first(_product(chain, states, True, y[0]))
        by_steps = partial(BACKPROPAGATION.backward, chain, states, g, enter)
        return unless(right, (layout.unflatten(y), layout.unflatten(leave)), by_steps)

    def _solve(
        self, chain: TracedChain, states: Leaves, b: Array, enter: Array, transposed: bool
    ) -> tuple[Array, Array]:
        """Whether the solution is as good as backpropagation's, and it.

        Of the recurrence, or of its transpose; ``enter``: what its first step adds to ``b``.
        """
        layout = chain.layout
        axis = chain.axis.reversed if transposed else chain.axis
        b = axis.set_first(b, b[-1 if transposed else 0] + enter)
        system = System(b, axis, transposed)
        solver = solver_on(chain.axis, self.solver)
        blocks = self.linearization.blocks(chain, layout.flatten(states))

        def solve(arrays: Any, b: Array) -> Array:
            return solver.solve_unguarded(arrays[0], b, transposed=transposed)

        def products(arrays: Any, v: Array) -> Array:
            _, chain, states = arrays
            derivative = _derivative(chain, states, transposed)
            return layout.flatten(derivative(layout.unflatten(v)))

        arrays = blocks, chain, states
        if self.is_exact and not solver.multiplies(blocks):
            y = solve(arrays, b)
            spoilt = ~jnp.isfinite(y).all()
            return axis.largest(spoilt.astype(jnp.int32)) == 0, y
        sizes, eps = zip(*layout.eps, strict=True)
        rounding = np.repeat(eps, sizes)
        judged = partial(solve_judged, system, arrays, solve, products)
        if self.is_exact:
            y, prefix = judged(tolerance=self.rtol or UNITS * rounding)
        else:
            tolerance = self.rtol or FEW_UNITS * rounding
            y, prefix = judged(tolerance=tolerance, budget=self.budget, expected=USUAL_CORRECTIONS)
        return prefix == system.total, y


def _product(chain: TracedChain, states: Leaves, transposed: bool, v: Array) -> Array:
    """``A_1 v``, of the first step, or ``A_1^T v``."""
    inputs, state = jax.tree.map(lambda x: x[0], (chain.inputs, states))
    step = partial(chain.step, inputs=inputs, captured=chain.captured)
    vector = chain.layout.unflatten(v)
    return chain.layout.flatten(_derivative(step, state, transposed)(vector))


def _derivative(
    f: Callable[[Leaves], Leaves], state: Leaves, transposed: bool
) -> Callable[[Leaves], Leaves]:
    """``v -> J v`` for the derivative J of ``f``, or ``J^T v``."""
    if not transposed:
        return lambda v: jax.jvp(f, (state,), (v,))[1]
    pull = pullback(f, state)
    return lambda v: pull(v)[0]
