"""A chain cut into chunks that are side by side: ``[steps of a chunk, *batch, w, chunks]``.

Steps are added before the first, so that all chunks are equally long. They keep the initial state.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array, lax

from deeppcr.axis.local import ChainAxis, moved


@dataclasses.dataclass(frozen=True)
class ChunkedAxis(ChainAxis):
    """All steps on one device, in chunks.

    Attributes:
        length: L, the steps of the chain.
        chunks: the number of chunks.
    """

    length: int = 1
    chunks: int = 1

    @property
    def steps(self) -> int:
        """The steps of a chunk."""
        return -(-self.length // self.chunks)

    @property
    def added(self) -> int:
        """The number of steps that are added before the first."""
        return self.steps * self.chunks - self.length

    @property
    def entries(self) -> int:
        """See `ChainAxis`."""
        return -2

    def cut(self, x: Array, start: Array) -> Array:
        """``[L, ...]`` as ``[steps, ..., chunks]``, with ``start`` at the added steps."""
        added = jnp.broadcast_to(start, (self.added, *start.shape))
        x = jnp.concatenate([added, x]).reshape((self.chunks, self.steps, *x.shape[1:]))
        return jnp.moveaxis(x, 0, -1)

    def joined(self, x: Array) -> Array:
        """The inverse of `cut`."""
        x = jnp.moveaxis(x, -1, 0)
        return x.reshape((-1, *x.shape[2:]))[self.added :]

    def total(self, length: int) -> int:
        """See `ChainAxis`."""
        return self.length

    def starts(self, entry: Array, ends: Array) -> Array:
        """The state before each chunk, ``[..., chunks]``, from those after them."""
        return moved(jnp.broadcast_to(entry[..., None], ends.shape), ends, -1)

    def before(self, entry: Array, states: Array) -> Array:
        """See `ChainAxis`."""
        return super().before(self.starts(entry, states[-1]), states)

    def after(self, last: Array, origins: Array) -> Array:
        """The state after each step, from those before the steps; ``last`` after all of them."""
        last = jnp.broadcast_to(last[..., None], origins.shape[1:])
        ends = jnp.broadcast_to(moved(last, origins[0], -1, True), origins.shape)
        return moved(ends, origins, 0, True)

    def indices(self, shape: tuple[int, ...]) -> Array:
        """See `ChainAxis`; 0 at the added steps."""
        step, chunk = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, len(shape) - 1))
        return lax.max(chunk * self.steps + step - self.added, jnp.int32(0))

    def largest(self, x: Array) -> Array:
        """See `ChainAxis`: over the chunks."""
        return x.max(axis=-1, keepdims=True)
