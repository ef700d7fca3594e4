"""`AdjointSolver`: propagates tangents along the chain, and cotangents back; and its chunks."""

import math
from typing import Protocol

from deeppcr.axis import ChainAxis
from deeppcr.chain import TracedChain
from deeppcr.state import Leaves

CHUNK = 1 << 21  # bytes of a chunk, so that they stay in the cache of a CPU


class AdjointSolver(Protocol):
    """Solves ``t_l = A_l t_{l-1} + b_l`` and its transpose on a chunk of the chain.

    ``A_l = df/dz(z_{l-1})`` at known states ``z_0 .. z_{L-1}``. A pytree.
    """

    def chunk(self, chain: TracedChain) -> int:
        """The number of steps to solve at once; the chunks follow one another."""

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """``t_l = A_l t_{l-1} + b_l`` with ``t_0 = enter``."""

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """``lam_l = g_l + A_{l+1}^T lam_{l+1}``, ``g_L`` plus ``enter``; and ``A_1^T lam_1``."""

    def on_shard(self, axis: ChainAxis) -> "AdjointSolver":
        """The same on one device of many, inside `jax.shard_map`."""


def steps_in_cache(chain: TracedChain, each: int) -> int:
    """The steps of a chunk that takes ``each`` bytes a step.

    Every chunk adds to the gradients of the captured arrays, so it takes as many bytes as they do.
    """
    captured = sum(math.prod(c.shape) * c.dtype.itemsize for c in chain.captured)
    return max(1, max(CHUNK, captured) // max(each, 1))


def even_chunk(length: int, most: int) -> int:
    """The steps of a chunk, up to ``most``, of chunks that are about equal."""
    count = -(-length // most)
    even = [n for n in range(count, 2 * count) if length % n == 0]  # else the last is shorter
    return -(-length // (even[0] if even else count))
