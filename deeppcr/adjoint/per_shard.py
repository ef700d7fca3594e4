"""Derivatives of a chain that is sharded over devices: each solves its shard of the recurrence."""

import dataclasses
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint.solver import AdjointSolver
from deeppcr.axis import ChainAxis, ChainSharding
from deeppcr.chain import TracedChain
from deeppcr.state import Leaves


@partial(jax.tree_util.register_dataclass, data_fields=["inner"], meta_fields=["sharding"])
@dataclasses.dataclass(frozen=True)
class AdjointPerShard:
    """An `AdjointSolver`, on every shard of a chain at once."""

    inner: AdjointSolver
    sharding: ChainSharding

    def chunk(self, chain: TracedChain) -> int:
        """See `AdjointSolver`: all steps that a device has."""
        return chain.length

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `AdjointSolver`."""

        def shard(inner: AdjointSolver, chain: TracedChain, *leaves: Leaves) -> Leaves:
            axis = self.sharding.shard
            return inner.on_shard(axis).forward(chain.shard(axis), *leaves)

        t: Leaves = self._run(shard, chain, self.sharding.along)(
            self.inner, chain, states, b, enter
        )
        return t

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `AdjointSolver`."""

        def shard(
            inner: AdjointSolver, chain: TracedChain, *leaves: Leaves
        ) -> tuple[Leaves, Leaves]:
            axis = self.sharding.shard
            return inner.on_shard(axis).backward(chain.shard(axis), *leaves)

        out = (self.sharding.along, P())
        left: tuple[Leaves, Leaves] = self._run(shard, chain, out)(
            self.inner, chain, states, g, enter
        )
        return left

    def _run(self, f: Any, chain: TracedChain, out: Any) -> Any:
        """``f(inner, chain, states, right-hand side, enter)`` per shard."""
        along = self.sharding.along
        return self.sharding.per_shard(f, (P(), chain.sharded(along, P()), along, along, P()), out)

    def on_shard(self, axis: ChainAxis) -> AdjointSolver:
        """See `AdjointSolver`."""
        return self.inner.on_shard(axis)
