"""`RNN`: `flax.nnx.RNN`, solved in parallel."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from deeppcr.adjoint import Adjoint
from deeppcr.avals import of_step
from deeppcr.choose import MethodOption, find_adjoint, find_method
from deeppcr.linear import LinearSolver
from deeppcr.nn.over_time import Sequences, batch_axes, recur


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
        time_major: inputs are ``[time, *batch, *features]`` instead of ``[*batch, time,
            *features]``.
        return_carry: return the last carry, too.
        reverse: read each sequence from its end.
        keep_order: return the outputs of a reversed pass in the order of the inputs.
        unroll: steps per trip of the loop, where the layer runs sequentially.
        state_axes: as in `flax.nnx.RNN`, where None means that all variables of the cell are
            carried along. Nothing else is supported.
        broadcast_rngs: a filter for the random streams of the cell that are the same at all times,
            as for dropout with one mask.
        rngs: for the initial carry, as in `flax.nnx.RNN`.
        method: as in `deeppcr.scan`.
        adjoint: as in `deeppcr.scan`.

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
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int = 1,
        state_axes: Any = None,
        broadcast_rngs: Any = None,
        rngs: Any = True,
        method: str | MethodOption = "auto",
        adjoint: str | LinearSolver | Adjoint = "auto",
    ) -> None:
        if state_axes is not None:
            raise ValueError(
                f"state_axes is {state_axes}, expected None: all variables of the cell are carried "
                "along. Use flax.nnx.RNN for others."
            )
        if isinstance(cell, linen.Module):
            raise TypeError(
                f"cell is a flax.linen {type(cell).__name__}, expected one of flax.nnx; "
                "for linen: deeppcr.nn.linen.RNN(cell)."
            )
        find_method(method)  # check names before the first call
        find_adjoint(adjoint)
        super().__init__(
            cell,
            time_major=time_major,
            return_carry=return_carry,
            reverse=reverse,
            keep_order=keep_order,
            unroll=unroll,
            broadcast_rngs=broadcast_rngs,
            rngs=rngs,
        )
        self.method, self.adjoint = method, adjoint

    def __call__(
        self,
        inputs: Any,
        *,
        initial_carry: Any = None,
        seq_lengths: Any = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Any = None,
    ) -> Any:
        """Apply the cell to every entry of the sequences.

        Args:
            inputs: ``[*batch, time, *features]``; ``[time, *batch, *features]`` if ``time_major``.
            initial_carry: None for that of the cell.
            seq_lengths: integers ``[*batch]``, the number of valid entries of each sequence. The
                others are padding: a reversed pass leaves them at the end, and the last carry is
                that of the last valid entry (the initial one, if there is none). Outputs of padding
                mean nothing.
            return_carry: overrides that of the layer, as do ``time_major``, ``reverse`` and
                ``keep_order``.
            time_major: see above.
            reverse: see above.
            keep_order: see above.
            rngs: `nnx.Rngs` or a stream, for the initial carry.

        Returns:
            the outputs ``[*batch, time, ...]``, ``time`` first if ``time_major``; with
            ``return_carry`` the last carry and the outputs.

        Raises:
            ValueError: ``inputs`` has too few axes, or ``seq_lengths`` is not ``[*batch]``.
        """
        sequences = Sequences.of(
            inputs,
            self.cell.num_feature_axes,
            seq_lengths,
            self.time_major if time_major is None else time_major,
            self.reverse if reverse is None else reverse,
            self.keep_order if keep_order is None else keep_order,
        )
        return_carry = self.return_carry if return_carry is None else return_carry
        carry = initial_carry
        if carry is None:
            stream = self.rngs if rngs is None else rngs
            stream = stream.carry.fork() if isinstance(stream, nnx.Rngs) else stream
            carry = self.cell.initialize_carry(sequences.shape_of_entry(inputs), stream)
        all_carries = return_carry and seq_lengths is not None

        @nnx.split_rngs(splits=1, only=self.broadcast_rngs, squeeze=True)
        def run(cell: Any) -> tuple[Any, Any]:
            same = nnx.All(nnx.RngState, self.broadcast_rngs)
            graph, fixed, state = _split(cell, same)

            def step(before: Any, x: Any) -> tuple[Any, Any]:
                state, carry = before
                here = jax.tree.map(lambda leaf: leaf, fixed)  # variables of this trace
                cell = nnx.merge(graph, here, state)
                carry, y = cell(carry, x)
                return (_split(cell, same)[2], carry), y

            axes = batch_axes(carry, sequences.batch)
            if axes and _moves(step, state, carry, sequences.by_time(inputs)):
                axes = 0
            after, last, outputs = recur(
                step,
                state,
                carry,
                inputs,
                sequences,
                all_carries,
                unroll=self.unroll,
                method=self.method,
                adjoint=self.adjoint,
                batch_ndim=axes,
            )
            nnx.update(cell, after)
            return last, outputs

        last, outputs = run(self.cell)
        return (last, outputs) if return_carry else outputs


def _split(cell: Any, same: Any) -> tuple[Any, Any, Any]:
    """The graph of a cell, its random streams that are the ``same`` at all times, and the rest."""
    graph, fixed, *rest = nnx.split(cell, same, ...)
    return graph, fixed, rest[0]


def _moves(step: Any, state: Any, carry: Any, xs: Any) -> bool:
    """Whether a floating variable of the cell changes, such as a running mean over the batch."""
    found = False

    def probe(state: Any, carry: Any, x: Any) -> None:
        nonlocal found
        before = jax.tree.leaves(state)  # the step changes the variables themselves
        (after, _), _ = step((state, carry), x)
        leaves = zip(before, jax.tree.leaves(after), strict=True)
        found = any(a is not b and jnp.issubdtype(a.dtype, jnp.inexact) for a, b in leaves)

    if any(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(_unusual(state))):
        jax.eval_shape(probe, state, carry, of_step(xs))
    return found


def _unusual(state: Any) -> Any:
    """The variables that are no parameters."""
    return nnx.filter_state(state, nnx.Not(nnx.Param))
