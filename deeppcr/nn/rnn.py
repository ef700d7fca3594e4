"""`RNN`: `flax.nnx.RNN`, solved in parallel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from deeppcr import Adjoint
from deeppcr.extend import LinearSolver, MethodOption, describe, find_adjoint, find_method
from deeppcr.nn.over_time import recur


class RNN(nnx.RNN):
    """A recurrent layer: `flax.nnx.RNN`, with `deeppcr.scan` in the place of `jax.lax.scan`.

    Computes $(h_t, y_t) = \\text{cell}(h_{t-1}, x_t)$ for $t = 1, ..., T$. It takes the arguments
    of `flax.nnx.RNN`, returns the same results, and is a `flax.nnx.RNN`: `flax.nnx.Bidirectional`,
    `nnx.jit`, `nnx.grad` and `nnx.Optimizer` work with it. Random keys of the cell (dropout) are
    computed before the carries. Jacobian blocks are those of one sequence: the axes of the batch
    need no ``batch_ndim``.

    Args:
        cell: a `flax.nnx.nn.recurrent.RNNCellBase`: `nnx.GRUCell`, `nnx.LSTMCell`, or your own
            ``cell(carry, x) -> (carry, y)``.
        method: as in `deeppcr.scan`.
        adjoint: as in `deeppcr.scan`.
        **options: of `flax.nnx.RNN`: ``time_major``, ``return_carry``, ``reverse``, ``keep_order``,
            ``unroll`` (where the layer runs sequentially), ``broadcast_rngs``, ``rngs``. All
            variables of the cell are carried along, as ``state_axes=None`` means there.

    Raises:
        TypeError: ``cell`` is one of `flax.linen`.
        ValueError: ``state_axes`` is given; or a name in ``method`` or ``adjoint`` is unknown.

    Example:
        >>> from flax import nnx
        >>> layer = deeppcr.nn.RNN(nnx.GRUCell(3, 16, rngs=nnx.Rngs(0)), return_carry=True)
        >>> carry, outputs = layer(jnp.ones((8, 100, 3)))
        >>> carry.shape, outputs.shape
        ((8, 16), (8, 100, 16))
    """

    def __init__(
        self,
        cell: Any,
        *,
        method: str | MethodOption = "auto",
        adjoint: str | LinearSolver | Adjoint = "auto",
        **options: Any,
    ) -> None:
        if options.pop("state_axes", None) is not None:
            raise ValueError(
                "state_axes is given, expected None: all variables of the cell are carried along. "
                "Use flax.nnx.RNN for others."
            )
        if isinstance(cell, linen.Module):
            raise TypeError(
                f"cell is a flax.linen {type(cell).__name__}, expected one of flax.nnx; "
                "for linen: deeppcr.nn.linen.RNN(cell)."
            )
        if isinstance(cell, type) or not hasattr(cell, "initialize_carry"):
            raise TypeError(
                f"cell is {describe(cell)}, expected a cell such as flax.nnx.GRUCell(...): a "
                "module with initialize_carry and num_feature_axes."
            )
        find_method(method)  # check names before the first call
        find_adjoint(adjoint)
        super().__init__(cell, **options)
        self.method = _attribute(method)
        self.adjoint = _attribute(adjoint)

    def __call__(
        self,
        inputs: Any,
        *,
        initial_carry: Any = None,
        seq_lengths: Any = None,
        rngs: Any = None,
        **options: bool | None,
    ) -> Any:
        """Apply the cell to every entry of the sequences.

        Args:
            inputs: ``[*batch, time, *features]``; ``[time, *batch, *features]`` if ``time_major``.
            initial_carry: None for that of the cell.
            seq_lengths: integers ``[*batch]``, the number of valid entries of each sequence. The
                others are padding: a reversed pass leaves them at the end, and the last carry is
                that of the last valid entry (the initial one, if there is none). Outputs of padding
                mean nothing.
            rngs: `nnx.Rngs` or a stream, for the initial carry.
            **options: ``return_carry``, ``time_major``, ``reverse`` and ``keep_order`` override
                those of the layer.

        Returns:
            the outputs ``[*batch, time, ...]``, ``time`` first if ``time_major``; with
            ``return_carry`` the last carry and the outputs.

        Raises:
            ValueError: ``inputs`` has too few axes, or ``seq_lengths`` is not ``[*batch]``.
            TypeError: an option is unknown.
        """

        def first(shape: tuple[int, ...]) -> Any:
            stream = self.rngs if rngs is None else rngs
            stream = stream.carry.fork() if isinstance(stream, nnx.Rngs) else stream
            return self.cell.initialize_carry(shape, stream)

        @nnx.split_rngs(splits=1, only=self.broadcast_rngs, squeeze=True)
        def run(cell: Any) -> Any:
            same = nnx.All(nnx.RngState, self.broadcast_rngs)
            # Into its graph, the random streams that are the same at all times, and the rest.
            split: Any = nnx.split
            graph, fixed, state = split(cell, same, ...)

            def step(before: Any, x: Any) -> tuple[Any, Any]:
                state, carry = before
                unchanged = jax.tree.map(lambda leaf: leaf, fixed)  # variables of this trace
                cell = nnx.merge(graph, unchanged, state)
                carry, y = cell(carry, x)
                return (split(cell, same, ...)[2], carry), y

            # Other variables than parameters may be means over the batch, which couple its entries.
            variables = jax.tree.leaves(nnx.filter_state(state, nnx.Not(nnx.Param)))
            couples = any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in variables)
            after, outputs = recur(
                self, options, inputs, initial_carry, first, seq_lengths, step, state, couples
            )
            nnx.update(cell, after)
            return outputs

        return run(self.cell)


def _attribute(option: Any) -> Any:
    """An option as an attribute of a module: flax asks for a mark on what holds arrays."""
    holds = any(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(option))
    return nnx.data(option) if holds else option
