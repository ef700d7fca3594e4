"""A chain with its initial state: traced with shapes for a plan, run for a sample or to time it."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from deeppcr.api import solve, vector_batch
from deeppcr.chain import Chain, TracedChain, chain_length, trace_chain
from deeppcr.checks import describe
from deeppcr.layers import Repeated
from deeppcr.layers.reading import is_sequential
from deeppcr.layers.segments import Description
from deeppcr.layers.segments import describe as describe_layers
from deeppcr.platforms import is_eager
from deeppcr.solution import Solution


@dataclasses.dataclass(frozen=True)
class Instance:
    """A chain, its initial state, and the number of its batch axes.

    Attributes:
        chain: of states alone.
        state: the initial one.
        batch_ndim: the number of leading batch axes of the state.
        name: of the state, in messages.
        f: the step with outputs, as `scan` takes it; None if it has none.
        is_listed: whether its steps are layers of a list.
    """

    chain: Chain
    state: Any
    batch_ndim: int
    name: str
    f: Callable[[Any, Any], tuple[Any, Any]] | None = None
    is_listed: bool = False

    @cached_property
    def traced(self) -> TracedChain:
        """The chain, traced once, with shapes alone."""
        found: list[TracedChain] = []

        def trace(state: Any, inputs: Any) -> None:
            found.append(self._traced(state, inputs))

        jax.eval_shape(trace, self.state, self.chain.inputs)
        (chain,) = found
        return chain

    @property
    def has_arrays(self) -> bool:
        """Whether the chain can be run now: it has arrays, not shapes or tracers."""
        leaves = jax.tree.leaves((self.state, self.chain.inputs))
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves) or not is_eager(leaves):
            return False
        return all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)

    @property
    def length(self) -> int:
        """L."""
        return chain_length(self.chain.inputs, self.chain.length, "chain.inputs")

    @property
    def shapes(self) -> tuple[Any, Any]:
        """The state and the inputs, as shapes on one device."""
        shapes: tuple[Any, Any] = jax.tree.map(_shape, (self.state, self.chain.inputs))
        return shapes

    @property
    def arrays(self) -> tuple[Any, Any]:
        """The state and the inputs, to run the chain."""
        return jax.tree.map(jnp.asarray, (self.state, self.chain.inputs))

    def first(self, steps: int) -> "Instance":
        """The same with its first steps alone, on the default device."""
        state, inputs = jax.tree.map(_here, self.arrays)
        inputs = jax.tree.map(lambda x: x[:steps], inputs)
        chain = Chain(self.chain.step, inputs, steps)
        return dataclasses.replace(self, chain=chain, state=state)

    def solve(self, **options: Any) -> Solution:
        """`deeppcr.solve` of the chain."""
        return solve(self.chain, self.state, batch_ndim=self.batch_ndim, **options)

    def solved(self, state: Any, inputs: Any, **options: Any) -> Any:
        """The trajectory from another state, with other inputs."""
        chain = Chain(self.chain.step, inputs, self.chain.length)
        return solve(chain, state, batch_ndim=self.batch_ndim, **options).trajectory

    def _traced(self, state: Any, inputs: Any) -> TracedChain:
        chain = self.chain
        length = chain_length(inputs, chain.length, "chain.inputs")
        f = self.f or (lambda z, x: (chain.step(z, x), None))
        return trace_chain(f, state, inputs, length, self.batch_ndim, self.name)


def instances_of(
    program: Any,
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
    batch_ndim: int | None,
) -> tuple[Description | None, list[Instance]]:
    """The description of layers, None for a chain or a step; and each chain.

    The state of a chain after other layers consists of shapes.
    """
    has_inputs = xs is not None or length is not None or reverse
    if isinstance(program, Chain):
        _no_inputs(has_inputs, "a Chain, which has its own inputs: plan(chain, z0)")
        return None, [Instance(program, init, batch_ndim or 0, "z0")]
    if callable(program) and not (isinstance(program, Repeated) or is_sequential(program)):
        if xs is None and length is None:
            raise TypeError(
                f"program is {describe(program)}, a function, but there is no xs and no length: "
                "expected plan(f, init, xs) or plan(f, init, length=L) with "
                "f(carry, x) -> (carry, y), as for scan; or a list of layers, plan(layers, x)."
            )
        step: Any = program
        length = chain_length(xs, length, "xs")
        if reverse:
            xs = jax.tree.map(_reversed, xs)
        chain = Chain(lambda z, x: step(z, x)[0], xs, length)
        return None, [Instance(chain, init, batch_ndim or 0, "init", program)]
    _no_inputs(has_inputs, "a list of layers, which hold their own arrays: plan(layers, x)")
    layers, found = describe_layers(program, init), []
    is_listed = not isinstance(program, Repeated)
    for index, segment in enumerate(layers.segments):
        if not segment.reason:
            run = segment.stacked()
            tree, *types = segment.layers[0].takes
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in types]
            state = jax.tree.unflatten(tree, shapes) if index else init
            batch = vector_batch(state) if batch_ndim is None else batch_ndim
            chain = Chain(run.step, run.inputs, run.length)
            found.append(Instance(chain, state, batch, "x", is_listed=is_listed))
    return layers, found


def _no_inputs(has_inputs: bool, what: str) -> None:
    if has_inputs:
        raise TypeError(
            f"xs, length or reverse was given, but program is {what}; expected none of them."
        )


def _reversed(x: Any) -> Any:
    return x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)[::-1]


def _shape(x: Any) -> Any:
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    x = jnp.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _here(x: Any) -> Any:
    """The array on the default device."""
    return jax.device_put(x, jax.config.jax_default_device)  # type: ignore[attr-defined]
