"""`RNN` for `flax.linen`: `flax.linen.RNN`, solved in parallel."""

from typing import Any

import jax
from flax import linen

from deeppcr.nn.over_time import recur


class RNN(linen.RNN):
    """A recurrent layer: `flax.linen.RNN`, with `deeppcr.scan` in the place of `jax.lax.scan`.

    It takes the arguments of `flax.linen.RNN`, has the same parameters under the same names, and
    returns the same results. A cell whose variables change from step to step (``variable_axes``,
    ``variable_carry``) runs as `flax.linen.RNN`, and so does the initialisation of parameters.
    Random streams of the cell, such as "dropout", are drawn at every time if ``split_rngs`` says
    so, else once; they differ from those that `flax.linen.RNN` draws.

    Attributes:
        method: as in `deeppcr.scan`.
        adjoint: as in `deeppcr.scan`.

    Example:
        >>> from flax import linen
        >>> layer = deeppcr.nn.linen.RNN(linen.GRUCell(16), method="newton")
        >>> x = jnp.ones((8, 100, 3))
        >>> outputs, variables = layer.init_with_output(jax.random.key(0), x)
        >>> outputs.shape
        (8, 100, 16)
    """

    method: Any = "auto"
    adjoint: Any = "auto"

    def __call__(
        self,
        inputs: Any,
        *,
        initial_carry: Any = None,
        init_key: Any = None,
        seq_lengths: Any = None,
        **options: bool | None,
    ) -> Any:
        """Apply the cell to every entry of the sequences.

        Args:
            inputs: ``[*batch, time, *features]``; ``[time, *batch, *features]`` if ``time_major``.
            initial_carry: None for that of the cell.
            init_key: a random key for the initial carry of the cell; None for key 0.
            seq_lengths: integers ``[*batch]``, the number of valid entries of each sequence; as in
                `deeppcr.nn.RNN`.
            **options: ``return_carry``, ``time_major``, ``reverse`` and ``keep_order`` override
                those of the layer.

        Returns:
            the outputs ``[*batch, time, ...]``, ``time`` first if ``time_major``; with
            ``return_carry`` the last carry and the outputs.

        Raises:
            ValueError: ``inputs`` has too few axes, or ``seq_lengths`` is not ``[*batch]``.
            TypeError: an option is unknown.
        """
        if self.is_initializing() or self.variable_axes or self.variable_carry:
            initial: dict[str, Any] = {"initial_carry": initial_carry, "init_key": init_key}
            return super().__call__(inputs, seq_lengths=seq_lengths, **(initial | options))

        def first(shape: tuple[int, ...]) -> Any:
            key = jax.random.key(0) if init_key is None else init_key
            return self.cell.initialize_carry(key, shape)

        cell, variables = self.cell.unbind()
        names = [name for name in self.split_rngs if isinstance(name, str) and self.has_rng(name)]
        streams = {name: self.make_rng(name) for name in names}
        drawn = {name for name in streams if self.split_rngs[name]}

        def step(before: Any, x: Any) -> tuple[Any, Any]:
            keys, carry = before
            pairs = {name: jax.random.split(key) for name, key in keys.items() if name in drawn}
            now = keys | {name: pair[1] for name, pair in pairs.items()}
            carry, y = cell.apply(variables, carry, x, rngs=now)
            return (keys | {name: pair[0] for name, pair in pairs.items()}, carry), y

        return recur(self, options, inputs, initial_carry, first, seq_lengths, step, streams)[1]
