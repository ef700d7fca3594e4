"""`AdjointSolver`: propagates tangents along the chain, and cotangents back."""

from typing import Protocol

from deeppcr.axis import ChainAxis
from deeppcr.chain import TracedChain
from deeppcr.state import Leaves


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
