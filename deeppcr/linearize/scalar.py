"""A number instead of the Jacobian.

`Scalar` is Picard iteration, as in ParaDiGMS (Shih et al., NeurIPS 2023). `Zero` is Jacobi
iteration, as in parallel decoding (Song et al., ICML 2021).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from deeppcr.arrays import StateLayout
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.step import Step, users_input
from deeppcr.checks import check_type, describe, option_tree
from deeppcr.linear import Blocks, Scalars, Zeros
from deeppcr.linearize.linearization import Linearization


@option_tree("coefficient", "of_input")
@dataclasses.dataclass(frozen=True)
class Scalar(Linearization):
    """$A_l = c_l I$: no derivatives, and the recurrence is a discounted sum.

    For a step $z + h g(z)$ take c = 1, which is Picard iteration and has the name "identity". For a
    step $a z + g(z)$ take c = a if g hardly depends on z. The best c is the mean derivative of the
    step, the linear part and the rest: an iteration carries errors on along the chain, multiplied
    by c at every step. So c > 1 costs iterations wherever the step itself does not amplify: in a
    diffusion step $a x + b eps(x)$ with a > 1 eps shrinks what a expands, and c = 1 suits better.

    Attributes:
        coefficient: c (dimensionless), a real number or an array ``[L]``.
        of_input: a function ``(input of the step) -> c``, which returns a scalar; used instead of
            ``coefficient``. None: not used.

    Raises:
        TypeError: ``coefficient`` is not a real number or array, or ``of_input`` not callable.
        ValueError: either has another shape.

    Example:
        >>> inputs = {"a": jnp.linspace(0.9, 1.0, 50)}
        >>> chain = deeppcr.Chain(lambda z, x: x["a"] * z + 0.1 * jnp.sin(z), inputs)
        >>> newton = deeppcr.Newton(linearize=deeppcr.Scalar(of_input=lambda x: x["a"]))
        >>> bool(deeppcr.solve(chain, jnp.ones(3), method=newton).converged)
        True

    References:
        A. Shih et al., *Parallel Sampling of Diffusion Models*, NeurIPS 2023.
    """

    coefficient: Any = 1.0
    of_input: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.coefficient is None or isinstance(self.coefficient, str | complex):
            raise TypeError(
                f"coefficient is {describe(self.coefficient)}, expected a real number, "
                "or an array with one for each step."
            )
        expected = "a function of the step's input, or None"
        check_type("of_input", self.of_input, Callable | None, expected)

    def traced(self, chain: TracedChain) -> "Scalar":
        length, coefficient = chain.length, self.coefficient
        if self.of_input is not None:
            inputs = chain.step.input_of(chain.axis.in_order(chain.inputs))
            of_each = partial(jax.vmap(self.of_input, axis_size=length), users_input(inputs))
            shapes = [list(leaf.shape[1:]) for leaf in jax.tree.leaves(jax.eval_shape(of_each))]
            if shapes != [[]]:
                raise ValueError(
                    f"of_input returns arrays of shapes {shapes} for the input of a step, "
                    "expected a number."
                )
            (coefficient,) = jax.tree.leaves(of_each())
        shape, dtype = jnp.shape(coefficient), jnp.result_type(coefficient)
        if shape not in ((), (length,)) or not (
            jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
        ):
            raise ValueError(
                f"coefficient is {dtype}{list(shape)}, expected a real number, "
                f"or one for each of {length} steps."
            )
        # A leaf, so that nothing is compiled again for another number.
        return Scalar(jnp.asarray(coefficient))

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        length, scalar = len(states), jnp.asarray(self.coefficient)
        if scalar.ndim and len(scalar) != length:  # a window, a chunk or a shard of the chain
            index = jnp.arange(length, dtype=jnp.int32)
            index = index if chain.offset is None else chain.offset + index
            scalar = jnp.take(scalar, index, mode="clip")
        scalar = jnp.broadcast_to(scalar.astype(states.dtype), (length,))
        return Scalars(scalar, states.shape[1:-1], states.shape[-1])

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        return int(layout.dtype.itemsize)

    def __str__(self) -> str:
        return "scalar"


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Zero(Linearization):
    """``A_l = 0``: each iteration applies the step to all states. No derivatives, no recurrence."""

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        return Zeros.like(states)

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        return 0

    def __str__(self) -> str:
        return "zero"
