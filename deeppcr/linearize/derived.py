"""Blocks made from those of another linearisation: clipped, or of another function.

Newton's method needs blocks that resemble the derivative of the step, not the derivative itself:
the residual is that of the step, whatever the blocks.

Where a step amplifies differences, products of its derivatives along the chain overflow long before
the iteration is near the solution. Blocks whose entries are limited keep them bounded (diagonal
blocks, limit 1), and are exact wherever the step does not amplify.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.arrays import StateLayout, abstract, avals_of, of_step
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step
from deeppcr.chain.trace import trace
from deeppcr.checks import check_type, describe, option_tree
from deeppcr.linear import Blocks
from deeppcr.linearize.exact import exact_linearization, find_linearization
from deeppcr.linearize.linearization import Linearization


@option_tree("linearize")
@dataclasses.dataclass(frozen=True)
class Clipped(Linearization):
    """$A_l$: the blocks of another linearisation, their entries clipped to [-limit, limit].

    For chains whose steps amplify differences here and there, such as Metropolis chains: products
    of diagonal blocks that are clipped to [-1, 1] never grow. Where nothing is clipped the blocks
    are those of ``linearize``. Gradients are not affected: by default an adjoint takes the blocks
    as they are without clipping.

    Attributes:
        linearize: the blocks to clip, as in `Newton`.
        limit: float > 0, the largest absolute value of an entry (dimensionless, if all entries of
            the state have the same units).

    Raises:
        TypeError: ``limit`` is not a real number.
        ValueError: ``limit`` is not positive, or ``linearize`` is unknown.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.sin(2 * z + x), jnp.linspace(0.0, 9.0, 100))
        >>> newton = deeppcr.Newton(linearize=deeppcr.Clipped("diagonal", 1.0))
        >>> bool(deeppcr.solve(chain, jnp.array(0.5), method=newton).converged)
        True

    References:
        Newton's method on Metropolis chains: D. M. Zoltowski et al., *Parallelizing MCMC Across the
        Sequence Length*, NeurIPS 2025.
    """

    linearize: str | Linearization = "auto"
    limit: float = 1.0

    def __post_init__(self) -> None:
        find_linearization(self.linearize)
        if isinstance(self.limit, bool) or not isinstance(self.limit, int | float):
            raise TypeError(f"limit is {describe(self.limit)}, expected a real number > 0.")
        if not 0 < self.limit < math.inf:
            raise ValueError(f"limit is {self.limit}, expected a finite number > 0.")

    def _inside(self, step: Step, layout: StateLayout) -> Linearization:
        return find_linearization(self.linearize) or exact_linearization(step, layout)

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        blocks = self._inside(chain.step, chain.layout).blocks(chain, states)
        return jax.tree.map(lambda x: jnp.clip(x, -self.limit, self.limit), blocks)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        return self._inside(step, layout).bytes_per_step(step, layout)

    def traced(self, chain: TracedChain) -> "Clipped":
        inside = self._inside(chain.step, chain.layout)
        return dataclasses.replace(self, linearize=inside.traced(chain))

    @property
    def of_adjoint(self) -> Linearization | None:
        linearization = find_linearization(self.linearize)
        return linearization and linearization.of_adjoint

    def __str__(self) -> str:
        return f"{self.linearize}, clipped to {self.limit:g}"


@option_tree("step", "linearize")
@dataclasses.dataclass(frozen=True)
class Surrogate(Linearization):
    r"""$A_l = dg/dz(z_{l-1}, x_l)$: the derivatives of another function g than the step f.

    The residual is that of f, so the solution is that of f, too; g determines how many iterations
    it takes. For steps

    - without a derivative, such as a `jax.pure_callback`
    - whose derivative is NaN or infinite somewhere, though the step is not (a norm at 0)
    - with an expensive derivative: g may be a small network in the place of a large one.

    A step that jumps (accept or reject, rounding) usually takes fewer iterations by its own
    derivative, that of the branch taken, than by that of a soft gate (straight-through): close to
    the solution no state crosses the jump, and there the own derivative is exact.

    Gradients of the solution are those of f. By default their blocks are those of f, as if there
    were no g. ``Adjoint(linearize=Surrogate(g))`` takes those of g, and corrects the result.

    Attributes:
        step: g, a function of the same signature as the step: ``(state, input) -> state`` for
            `solve`, ``(carry, x) -> (carry, y)`` for `scan`, which ignores its ``y``. It may close
            over arrays. It returns a state of the structure, shapes and dtypes of the step's.
        linearize: the form of the blocks, as in `Newton`. "auto": the narrowest that g's structure
            proves to hold all of its Jacobian.

    Raises:
        TypeError: ``step`` is not a function, or returns another state than the chain's.
        ValueError: ``linearize`` is unknown.

    Example:
        >>> step = lambda z, x: jnp.sin(jnp.linalg.norm(z) + x) * jnp.ones(2)
        >>> smooth = lambda z, x: jnp.sin(jnp.sqrt(z @ z + 1e-6) + x) * jnp.ones(2)
        >>> chain = deeppcr.Chain(step, jnp.zeros(100).at[-1].set(1.0))  # the norm of 0, 99 times
        >>> newton = deeppcr.Newton(linearize=deeppcr.Surrogate(smooth))
        >>> solution = deeppcr.solve(chain, jnp.zeros(2), method=newton)
        >>> bool(solution.converged), bool(solution.stats.iterations < 10)
        (True, True)

    References:
        Approximate derivatives: C. T. Kelley, *Iterative Methods for Linear and Nonlinear
        Equations*, section 5.4. Straight-through: Y. Bengio, N. Léonard, A. Courville, *Estimating
        or Propagating Gradients Through Stochastic Neurons for Conditional Computation*, 2013.
    """

    step: Callable[[Any, Any], Any]
    linearize: str | Linearization = "auto"

    def __post_init__(self) -> None:
        signature = "a function with the signature of the chain's step"
        check_type("step", self.step, Callable, signature)
        find_linearization(self.linearize)

    def traced(self, chain: TracedChain) -> Linearization:
        assert chain.adapt is not None
        state = jax.tree.unflatten(chain.step.state_tree, list(map(abstract, chain.initial)))
        inputs = chain.step.input_of(list(map(of_step, chain.inputs)))
        try:
            step, captured = trace(chain.adapt(self.step), state, inputs)
        except TypeError as error:
            raise TypeError(f"linearize is {describe(self)}, but: {error}") from error
        inside = find_linearization(self.linearize) or exact_linearization(step, chain.layout)
        surrogate = dataclasses.replace(chain, step=step, captured=captured)
        return TracedSurrogate(inside.traced(surrogate), captured, step, chain.layout)

    def _untraced(self, *_: Any) -> Any:
        """Those of what `traced` returns have both."""
        raise ValueError(
            f"linearize is {describe(self)}, whose cost is not known before a call; "
            "expected a linearisation of the step itself in a plan."
        )

    blocks = bytes_per_step = cast(Any, _untraced)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["linearization", "captured"],
    meta_fields=["step", "layout"],
)
@dataclasses.dataclass(frozen=True)
class TracedSurrogate(Linearization):
    """A `Surrogate` of one chain.

    Attributes:
        linearization: of the surrogate.
        captured: the arrays that it closes over.
        step: the surrogate, in the dtypes of the user's chain. The chain may be in wider ones, and
            may have further inputs behind those of the user.
        layout: of its state.
    """

    linearization: Linearization
    captured: Any
    step: Step
    layout: StateLayout

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        avals = avals_of(self.step.jaxpr.invars[self.step.states :])
        inputs = [x.astype(a.dtype) for x, a in zip(chain.inputs, avals, strict=False)]
        surrogate = dataclasses.replace(
            chain, step=self.step, layout=self.layout, inputs=inputs, captured=self.captured
        )
        return self.linearization.blocks(surrogate, states)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        return self.linearization.bytes_per_step(self.step, layout)

    @property
    def of_adjoint(self) -> None:
        return None

    def __str__(self) -> str:
        return f"{self.linearization} of a surrogate"
