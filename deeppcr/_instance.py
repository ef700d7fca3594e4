"""A chain with its initial state: traced with shapes for a plan, or run for trials."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr._plan.candidates import Candidate
from deeppcr.api import solve, vector_batch
from deeppcr.chain import Chain, TracedChain, chain_length, trace_chain
from deeppcr.layers import stack_layers
from deeppcr.layers.segments import Description, describe
from deeppcr.newton.lyapunov import growth_rate

TRIAL = 0.2  # seconds for each candidate


@dataclasses.dataclass(frozen=True)
class Instance:
    """A chain, its initial state, and the number of its batch axes."""

    chain: Chain
    state: Any
    batch_ndim: int

    def traced(self) -> TracedChain:
        """The chain, traced with shapes alone."""
        found: list[TracedChain] = []

        def trace(state: Any, inputs: Any) -> None:
            found.append(self._traced(state, inputs))

        jax.eval_shape(trace, self.state, self.chain.inputs)
        (chain,) = found
        return chain

    def growth_rate(self) -> float:
        """The growth rate of small differences along the sequential program's states."""

        @jax.jit
        def rate(state: Any, inputs: Any) -> Any:
            trajectory = self._solved(state, inputs, method="sequential")
            chain = self._traced(state, inputs)
            states = chain.before(chain.initial, jax.tree.leaves(trajectory))
            return growth_rate(chain, chain.layout.flatten(states))

        return float(rate(*self._arrays("iterations='sample'")))

    def seconds(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """The seconds of each candidate by its name: the minimum of several interleaved calls."""
        arguments = self._arrays("trials=True")
        calls: dict[str, Callable[[], Any]] = {}
        for candidate in candidates:
            compiled = jax.jit(self._program(candidate)).lower(*arguments).compile()
            calls[candidate.name] = partial(compiled, *arguments)
        least = {name: _clock(call) for name, call in calls.items()}  # the first call warms up
        least = {name: _clock(call) for name, call in calls.items()}
        rounds = {name: max(2, min(50, int(TRIAL / seconds))) for name, seconds in least.items()}
        for k in range(max(rounds.values())):
            for name, call in calls.items():
                if k < rounds[name]:
                    least[name] = min(least[name], _clock(call))
        return least

    def _traced(self, state: Any, inputs: Any) -> TracedChain:
        chain = self.chain
        length = chain_length(inputs, chain.length, "chain.inputs")
        return trace_chain(
            lambda z, x: (chain.step(z, x), None), state, inputs, length, self.batch_ndim, "x"
        )

    def _solved(self, state: Any, inputs: Any, **options: Any) -> Any:
        """The trajectory from another state, with other inputs."""
        chain = Chain(self.chain.step, inputs, self.chain.length)
        return solve(chain, state, batch_ndim=self.batch_ndim, **options).trajectory

    def _program(self, candidate: Candidate) -> Callable[[Any, Any], Any]:
        if candidate.adjoint is None:
            return partial(self._solved, method=candidate.method)

        def loss(state: Any, inputs: Any) -> Any:
            states = self._solved(state, inputs, method=candidate.method, adjoint=candidate.adjoint)
            return sum(jnp.mean(jnp.square(z.astype(jnp.float32))) for z in jax.tree.leaves(states))

        return jax.grad(loss, argnums=(0, 1), allow_int=True)

    def _arrays(self, wanted_by: str) -> tuple[Any, Any]:
        """The initial state and the inputs, to run the chain."""
        leaves = jax.tree.leaves(self.state)
        if any(isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer) for leaf in leaves):
            raise ValueError(
                f"x has shapes instead of arrays, which {wanted_by} needs to run the chain; "
                "a chain that follows other layers can be planned on its own: "
                "Chain.from_layers(layers, x)."
            )
        return jax.tree.map(jnp.asarray, self.state), self.chain.inputs


def instances_of(
    layers_or_chain: Any, x: Any, batch_ndim: int | None
) -> tuple[Description | None, list[Instance]]:
    """The description of layers, None for a chain; and each chain.

    The state of a chain after other layers consists of shapes.
    """
    if isinstance(layers_or_chain, Chain):
        return None, [Instance(layers_or_chain, x, batch_ndim or 0)]
    layers, found = describe(layers_or_chain, x), []
    for index, segment in enumerate(layers.segments):
        if not segment.reason:
            run = stack_layers(segment.layers, segment.period)
            tree, *types = segment.layers[0].takes
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in types]
            state = jax.tree.unflatten(tree, shapes) if index else x
            batch = vector_batch(state) if batch_ndim is None else batch_ndim
            found.append(Instance(Chain(run.step, run.inputs, run.length), state, batch))
    return layers, found


def _clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
