"""`LRU`: the linear recurrent unit, a diagonal recurrence of complex numbers."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.nn.cells import times


class LRU(nnx.RNNCellBase):
    r"""The linear recurrent unit.

    $$
    s_t = \lambda \odot s_{t-1} + \gamma \odot (B x_t), \qquad y_t = \mathrm{Re}(C s_t) + D x_t,
    $$

    with complex states $s$, $\lambda = \exp(-\exp(\nu) + i \exp(\theta))$, which is stable, and
    $\gamma$, which starts as $\sqrt{1 - |\lambda|^2}$. It is linear, so the first iteration of
    Newton's method is exact. The Jacobian has a 2 x 2 block for each unit: its real and its
    imaginary part.

    Args:
        in_features: the number of features of an input.
        hidden_features: the number of units.
        out_features: the number of features of an output; None for ``hidden_features``.
        min_radius: the least magnitude of $\lambda$ at the start, >= 0 (dimensionless).
        max_radius: the largest, < 1.
        max_phase: the largest phase of $\lambda$ at the start, in radians.
        param_dtype: of the parameters, a real dtype.
        rngs: `nnx.Rngs` with a stream for parameters.

    Raises:
        ValueError: not ``0 <= min_radius < max_radius < 1``.

    Shapes: the carry is complex, ``[*batch, hidden_features]``, the output ``[*batch,
    out_features]``, the input ``[*batch, in_features]``.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(deeppcr.nn.LRU(3, 16, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)

    References:
        A. Orvieto et al., *Resurrecting Recurrent Neural Networks for Long Sequences*, ICML 2023,
        section 3.
    """

    num_feature_axes = 1

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        min_radius: float = 0.4,
        max_radius: float = 0.99,
        max_phase: float = 6.28,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        if not 0 <= min_radius < max_radius < 1:
            raise ValueError(
                f"min_radius is {min_radius} and max_radius is {max_radius}, "
                "expected 0 <= min_radius < max_radius < 1."
            )
        self.in_features, self.hidden_features = in_features, hidden_features
        self.out_features = out_features or hidden_features
        self.param_dtype = param_dtype
        units = (hidden_features,)
        # The squared magnitude is uniform in a ring: lemma 3.2.
        low, high = min_radius**2, max_radius**2
        squared = jax.random.uniform(rngs.params(), units, param_dtype, low, high)
        squared = jnp.maximum(squared, jnp.finfo(param_dtype).tiny)
        phase = jax.random.uniform(rngs.params(), units, param_dtype, 1e-3, max_phase)
        self.nu_log = nnx.Param(jnp.log(-0.5 * jnp.log(squared)))
        self.theta_log = nnx.Param(jnp.log(phase))
        self.gamma_log = nnx.Param(0.5 * jnp.log1p(-squared))

        def linear(before: int, after: int) -> nnx.Linear:
            return nnx.Linear(before, after, use_bias=False, param_dtype=param_dtype, rngs=rngs)

        self.B = linear(in_features, 2 * hidden_features)
        self.C = linear(2 * hidden_features, self.out_features)
        self.D = linear(in_features, self.out_features)

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: Any = None, carry_init: Any = None
    ) -> Array:
        """Zeros; see `flax.nnx.RNNCellBase`."""
        dtype = jnp.complex128 if self.param_dtype == jnp.float64 else jnp.complex64
        return jnp.zeros((*input_shape[:-1], self.hidden_features), dtype)

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """The next carry and the output."""
        decay = jnp.exp(-jnp.exp(self.nu_log[...]))
        phase = jnp.exp(self.theta_log[...])
        factor = jax.lax.complex(decay * jnp.cos(phase), decay * jnp.sin(phase))
        scale = jnp.exp(self.gamma_log[...])
        real, imaginary = (times(scale, x) for x in jnp.split(self.B(inputs), 2, axis=-1))
        carry = times(factor, carry) + jax.lax.complex(real, imaginary)
        parts = jnp.concatenate([carry.real, carry.imag], axis=-1)
        return carry, self.C(parts) + self.D(inputs)
