"""A chain with its initial state: traced with shapes for a plan, run for a sample or to time it."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.api import solve, vector_batch
from deeppcr.axis import ChainSharding
from deeppcr.chain.chain import Chain, TracedChain, trace_chain, with_outputs
from deeppcr.chain.length import chain_length
from deeppcr.checks import describe
from deeppcr.choose import AdjointOption, Method, left_to_jax
from deeppcr.layers import Repeated
from deeppcr.layers import describe as describe_layers
from deeppcr.layers.reading import is_sequential
from deeppcr.lower import is_eager
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from deeppcr.solution import Solution

Pair = tuple[Method, AdjointOption]


@dataclasses.dataclass(frozen=True)
class Instance:
    """A chain and its initial state.

    Attributes:
        f: the step with outputs, as `scan` takes it.
        state: the initial state.
        inputs: of all steps.
        length: L.
        batch_ndim: the number of leading batch axes of the state.
        name: of the state, in messages.
        sharding: of the chain over devices, if `shard` has set it.
    """

    f: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    inputs: Any
    length: int
    batch_ndim: int
    name: str
    sharding: ChainSharding | None = None

    @cached_property
    def traced(self) -> TracedChain:
        """The chain, traced once, with shapes alone."""

        def trace(state: Any, inputs: Any) -> TracedChain:
            chain = trace_chain(self.f, state, inputs, self.length, self.batch_ndim, self.name)
            return dataclasses.replace(chain, function=None, adapt=None)

        found: TracedChain = jax.eval_shape(trace, self.state, self.inputs)
        return found

    @property
    def has_arrays(self) -> bool:
        """Whether the chain can be run now: it has arrays, not shapes or tracers."""
        leaves = jax.tree.leaves((self.state, self.inputs))
        shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
        here = all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)
        return here and not shapes and is_eager(leaves)

    def solve(self, state: Any, inputs: Any, **options: Any) -> Solution:
        """`deeppcr.solve` of the chain, from another state, with other inputs."""
        chain = Chain(lambda z, x: self.f(z, x)[0], inputs, self.length)
        return solve(chain, state, batch_ndim=self.batch_ndim, **options)

    def program(self, method: Method, adjoint: AdjointOption) -> Callable[[Any, Any], Any]:
        """A function of the state and the inputs: all states, or a gradient if there is an adjoint.

        The gradient is that of the mean square of all states. Of a step with forward mode only, it
        is the derivative along the state.
        """

        def states(state: Any, inputs: Any) -> Any:
            return self.solve(state, inputs, method=method, adjoint=adjoint or "auto").trajectory

        def loss(state: Any, inputs: Any) -> Any:
            leaves = jax.tree.leaves(states(state, inputs))
            return sum(jnp.mean(jnp.abs(z).astype(jnp.float32) ** 2) for z in leaves)

        if adjoint is None or self.traced.step.not_differentiable:
            return states
        if self.traced.step.forwards_only:
            return lambda state, inputs: jax.jvp(lambda z: loss(z, inputs), (state,), (state,))
        return jax.grad(loss, argnums=(0, 1), allow_int=True)


def instance_of(
    program: Any, init: Any, xs: Any, length: int | None, reverse: bool, batch_ndim: int | None
) -> Instance:
    """The chain of a step, a `Chain`, or layers: the longest of theirs.

    The state of a chain after other layers consists of shapes.
    """
    is_chain = isinstance(program, Chain)
    is_layers = isinstance(program, Repeated) or is_sequential(program) or not callable(program)
    if (is_chain or is_layers) and not (xs is None is length and not reverse):
        raise TypeError(
            "xs, length or reverse was given, but program is a "
            f"{'Chain: plan(chain, z0)' if is_chain else 'list of layers: plan(layers, x)'}; "
            "expected none of them, since it has its own inputs."
        )
    if is_chain:
        xs, steps = program.inputs, chain_length(program.inputs, program.length, "chain.inputs")
        parts = with_outputs(program.step), init, xs, steps, batch_ndim or 0, "z0"
        return Instance(*parts, program.sharding)
    if not is_layers:
        if xs is None and length is None:
            raise TypeError(
                f"program is {describe(program)}, a function, but there is no xs and no length: "
                "expected plan(f, init, xs) or plan(f, init, length=L) with "
                "f(carry, x) -> (carry, y), as for scan; or a list of layers, plan(layers, x)."
            )
        steps, xs = chain_length(xs, length, "xs"), jax.tree.map(_reversed, xs) if reverse else xs
        return Instance(program, init, xs, steps, batch_ndim or 0, "init")
    layers = describe_layers(program, init)
    chains = [segment for segment in layers.segments if not segment.reason]
    if not chains:
        raise ValueError(f"there is no chain: no two neighbouring layers are alike.\n{layers}")
    segment = max(chains, key=lambda segment: len(segment.layers))
    run, state = segment.stacked(), segment.layers[0].trial.takes if segment.start else init
    batch = vector_batch(state) if batch_ndim is None else batch_ndim
    return Instance(with_outputs(run.step), state, run.inputs, run.length, batch, "x")


def _reversed(x: Any) -> Any:
    """The inputs from the last to the first."""
    return x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)[::-1]


def gradients(chain: TracedChain, methods: Sequence[Method]) -> list[Pair]:
    """The sensible pairs for a gradient, jax's own first."""
    found: list[Pair] = [(Sequential(), Autodiff())]
    if not left_to_jax(chain):
        found += [(methods[0], Backpropagation()), *((each, Adjoint()) for each in methods)]
    return found


def name_of_pair(method: Method, adjoint: AdjointOption) -> str:
    """The name of a method, and of an adjoint unless it is None."""
    if isinstance(method, Newton):
        name = "Newton"
    else:
        name = "sequential" if method.unroll == 1 else f"unroll {method.unroll}"
        name = "fused loop" if method.fused else name
    if isinstance(adjoint, Autodiff):
        return f"{name} / autodiff" + (f", unroll {adjoint.unroll}" if adjoint.unroll > 1 else "")
    return name + {Adjoint: " / blocks", Backpropagation: " / backprop"}.get(type(adjoint), "")
