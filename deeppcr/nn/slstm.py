"""`SLSTM`: the scalar memory cell of xLSTM, with heads."""

import operator
from itertools import starmap
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from deeppcr.nn.cells import Cell

State = tuple[Array, Array, Array, Array]


class SLSTM(Cell):
    r"""The scalar memory cell of xLSTM: exponential gates, and heads that do not mix.

    $$
    \begin{array}{rl}
    (\tilde z_t, \tilde\imath_t, \tilde f_t, \tilde o_t) &= W x_t + b + R h_{t-1}, \\
    m_t &= \max(\log\sigma(\tilde f_t) + m_{t-1}, \tilde\imath_t), \\
    i_t = \exp(\tilde\imath_t - m_t), \quad
    f_t &= \exp(\log\sigma(\tilde f_t) + m_{t-1} - m_t), \\
    c_t = f_t \odot c_{t-1} + i_t \odot \tanh(\tilde z_t), \quad
    n_t &= f_t \odot n_{t-1} + i_t, \\
    h_t &= \sigma(\tilde o_t) \odot c_t / n_t.
    \end{array}
    $$

    $R$ is block-diagonal: a unit reads the units of its own head. So the Jacobian has one block for
    each head, of four times as many entries as the head has units.

    Args:
        in_features: the number of features of an input.
        hidden_features: the number of units.
        heads: the number of heads; it divides ``hidden_features``.
        param_dtype: of the parameters and the carry.
        rngs: `nnx.Rngs` with a stream for parameters.

    Raises:
        ValueError: ``heads`` does not divide ``hidden_features``.

    Shapes: the carry is ``(c, n, h, m)``, each ``[*batch, hidden_features]`` like the output ``h``;
    the input is ``[*batch, in_features]``.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(deeppcr.nn.SLSTM(3, 16, heads=8, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)

    References:
        M. Beck et al., *xLSTM: Extended Long Short-Term Memory*, NeurIPS 2024, section 2.2 and
        appendix A.
    """

    parts = states = 4

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        heads: int = 1,
        *,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        if heads < 1 or hidden_features % heads:
            raise ValueError(
                f"heads is {heads}, expected a divisor of hidden_features, {hidden_features}."
            )
        super().__init__(in_features, hidden_features, param_dtype=param_dtype, rngs=rngs)
        self.heads, size = heads, hidden_features // heads
        shape = (4, heads, size, size)
        values = jax.random.normal(rngs.params(), shape, param_dtype) / size**0.5
        self.recurrent = nnx.Param(values)

    def __call__(self, carry: State, inputs: Array) -> tuple[State, Array]:
        """The next carry and the output."""
        c, n, h, m = carry
        parts = h.reshape((*h.shape[:-1], self.heads, -1))
        mixed = jnp.einsum("...hi,khij->k...hj", parts, self.recurrent[...])
        mixed = mixed.reshape((4, *h.shape))
        z, i, f, o = starmap(operator.add, zip(self.read(inputs), mixed, strict=True))
        kept = jax.nn.log_sigmoid(f) + m
        m = jnp.maximum(kept, i)
        gate, forget = jnp.exp(i - m), jnp.exp(kept - m)
        c, n = forget * c + gate * jnp.tanh(z), forget * n + gate
        h = jax.nn.sigmoid(o) * c / n
        return (c, n, h, m), h
