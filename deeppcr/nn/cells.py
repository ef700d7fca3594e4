"""Cells made for parallel time: their units, or groups of them, do not mix from step to step.

The Jacobian of such a cell is diagonal, or has small blocks. Nothing has to be declared: deeppcr
finds it in the traced step. So Newton's method stays exact, and an iteration costs about as much as
evaluating the cell at all times.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array


class Cell(nnx.RNNCellBase):
    """A cell whose inputs are mapped linearly to all that its units read."""

    num_feature_axes = 1
    parts: int  # what the units read of the inputs
    weights = 0  # of a unit for itself, in ``recurrent``
    peepholes = 0  # the same for its cell, in ``peephole``
    states = 1  # arrays in the carry

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.in_features, self.hidden_features = in_features, hidden_features
        self.param_dtype, size = param_dtype, self.parts * hidden_features
        self.dense_i = nnx.Linear(in_features, size, param_dtype=param_dtype, rngs=rngs)
        if self.weights:
            self.recurrent = self.uniform(self.weights, rngs)
        if self.peepholes:
            self.peephole = self.uniform(self.peepholes, rngs)

    def uniform(self, rows: int, rngs: nnx.Rngs) -> nnx.Param:
        """``[rows, units]``: one weight of a unit for itself in each row, within +-1."""
        shape = (rows, self.hidden_features)
        return nnx.Param(jax.random.uniform(rngs.params(), shape, self.param_dtype, -1.0, 1.0))

    def read(self, inputs: Array) -> list[Array]:
        """What the inputs ``[*batch, in_features]`` add to each part: ``[*batch, units]`` each."""
        return jnp.split(self.dense_i(inputs), self.parts, axis=-1)

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: Any = None, carry_init: Any = None
    ) -> Any:
        """Zeros; see `flax.nnx.RNNCellBase`."""
        zeros = jnp.zeros((*input_shape[:-1], self.hidden_features), self.param_dtype)
        return zeros if self.states == 1 else (zeros,) * self.states


class ParaGRU(Cell):
    r"""A gated recurrent unit whose recurrent weights are diagonal.

    $$
    \begin{array}{rl}
    z_t &= \sigma(W_z x_t + b_z + a_z \odot h_{t-1}), \\
    r_t &= \sigma(W_r x_t + b_r + a_r \odot h_{t-1}), \\
    n_t &= \tanh(W_n x_t + b_n + a_n \odot r_t \odot h_{t-1}), \\
    h_t &= (1 - z_t) \odot h_{t-1} + z_t \odot n_t.
    \end{array}
    $$

    The Jacobian is diagonal.

    Args:
        in_features: the number of features of an input.
        hidden_features: the number of units.
        param_dtype: of the parameters and the carry.
        rngs: `nnx.Rngs` with a stream for parameters.

    Shapes: the carry and the output are ``[*batch, hidden_features]``, the input is ``[*batch,
    in_features]``.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(deeppcr.nn.ParaGRU(3, 16, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)

    References:
        F. Danieli et al., *ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large
        Language Models*, 2025, arXiv:2510.21450.
    """

    parts = weights = 3

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """The next carry, which is also the output."""
        (x_z, x_r, x_n), (a_z, a_r, a_n) = self.read(inputs), self.recurrent[...]
        update = jax.nn.sigmoid(x_z + times(a_z, carry))
        reset = jax.nn.sigmoid(x_r + times(a_r, carry))
        new = jnp.tanh(x_n + times(a_n, reset * carry))
        carry = (1 - update) * carry + update * new
        return carry, carry


class ParaLSTM(Cell):
    r"""A long short-term memory with diagonal recurrent weights, peepholes, and coupled gates.

    $$
    \begin{array}{rl}
    f_t &= \sigma(W_f x_t + b_f + a_f \odot h_{t-1} + p_f \odot c_{t-1}), \\
    g_t &= \tanh(W_g x_t + b_g + a_g \odot h_{t-1}), \\
    c_t &= f_t \odot c_{t-1} + (1 - f_t) \odot g_t, \\
    o_t &= \sigma(W_o x_t + b_o + a_o \odot h_{t-1} + p_o \odot c_t), \\
    h_t &= o_t \odot \tanh(c_t).
    \end{array}
    $$

    The input gate is one minus the forget gate. The Jacobian has a 2 x 2 block for each unit.

    Args:
        in_features: the number of features of an input.
        hidden_features: the number of units.
        param_dtype: of the parameters and the carry.
        rngs: `nnx.Rngs` with a stream for parameters.

    Shapes: the carry is ``(c, h)``, both ``[*batch, hidden_features]`` like the output ``h``; the
    input is ``[*batch, in_features]``.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(deeppcr.nn.ParaLSTM(3, 16, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)

    References:
        F. Danieli et al., *ParaRNN: Unlocking Parallel Training of Nonlinear RNNs for Large
        Language Models*, 2025, arXiv:2510.21450.
    """

    parts = weights = 3
    peepholes = states = 2

    def __call__(
        self, carry: tuple[Array, Array], inputs: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """The next carry and the output."""
        (c, h), (x_f, x_g, x_o) = carry, self.read(inputs)
        (a_f, a_g, a_o), (p_f, p_o) = self.recurrent[...], self.peephole[...]
        forget = jax.nn.sigmoid(x_f + times(a_f, h) + times(p_f, c))
        c = forget * c + (1 - forget) * jnp.tanh(x_g + times(a_g, h))
        h = jax.nn.sigmoid(x_o + times(a_o, h) + times(p_o, c)) * jnp.tanh(c)
        return (c, h), h


class MinGRU(Cell):
    r"""A gated recurrent unit whose gates read the input alone.

    $$
    h_t = (1 - z_t) \odot h_{t-1} + z_t \odot (W_h x_t + b_h), \qquad z_t = \sigma(W_z x_t + b_z).
    $$

    It is linear in its state, so the first iteration of Newton's method is exact. The Jacobian is
    diagonal.

    Args:
        in_features: the number of features of an input.
        hidden_features: the number of units.
        param_dtype: of the parameters and the carry.
        rngs: `nnx.Rngs` with a stream for parameters.

    Shapes: the carry and the output are ``[*batch, hidden_features]``, the input is ``[*batch,
    in_features]``.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(deeppcr.nn.MinGRU(3, 16, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)

    References:
        L. Feng et al., *Were RNNs All We Needed?*, 2024, arXiv:2410.01201, section 3.1.
    """

    parts = 2

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """The next carry, which is also the output."""
        x_z, new = self.read(inputs)
        update = jax.nn.sigmoid(x_z)
        carry = (1 - update) * carry + update * new
        return carry, carry


class MinLSTM(Cell):
    r"""A long short-term memory whose gates read the input alone.

    $$
    h_t = \frac{f_t \odot h_{t-1} + i_t \odot (W_h x_t + b_h)}{f_t + i_t}, \qquad
    f_t = \sigma(W_f x_t + b_f), \quad i_t = \sigma(W_i x_t + b_i).
    $$

    It is linear in its state, so the first iteration of Newton's method is exact. The Jacobian is
    diagonal.

    Args:
        in_features: the number of features of an input.
        hidden_features: the number of units.
        param_dtype: of the parameters and the carry.
        rngs: `nnx.Rngs` with a stream for parameters.

    Shapes: the carry and the output are ``[*batch, hidden_features]``, the input is ``[*batch,
    in_features]``.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(deeppcr.nn.MinLSTM(3, 16, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((8, 100, 3))).shape
        (8, 100, 16)

    References:
        L. Feng et al., *Were RNNs All We Needed?*, 2024, arXiv:2410.01201, section 3.2.
    """

    parts = 3

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        """The next carry, which is also the output."""
        x_f, x_i, new = self.read(inputs)
        # f / (f + i), without underflow of both gates
        forget = jax.nn.sigmoid(jax.nn.log_sigmoid(x_f) - jax.nn.log_sigmoid(x_i))
        carry = forget * carry + (1 - forget) * new
        return carry, carry


def times(weights: Array, state: Array) -> Array:
    """``[units]`` times ``[*batch, units]``, entry by entry."""
    return weights.reshape((1,) * (state.ndim - 1) + weights.shape) * state
