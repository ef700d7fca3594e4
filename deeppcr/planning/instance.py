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
from deeppcr.chain.chain import Chain, TracedChain, chain_length, trace_chain, with_outputs
from deeppcr.checks import describe
from deeppcr.choose import AdjointOption, Method, left_to_jax
from deeppcr.layers import Description, Repeated
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
        found: list[TracedChain] = []

        def trace(state: Any, inputs: Any) -> None:
            rest = self.length, self.batch_ndim, self.name
            found.append(trace_chain(self.f, state, inputs, *rest))

        jax.eval_shape(trace, self.state, self.inputs)
        return found[0]

    @property
    def has_arrays(self) -> bool:
        """Whether the chain can be run now: it has arrays, not shapes or tracers."""
        leaves = jax.tree.leaves((self.state, self.inputs))
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves) or not is_eager(leaves):
            return False
        return all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)

    def solve(self, state: Any, inputs: Any, **options: Any) -> Solution:
        """`deeppcr.solve` of the chain, from another state, with other inputs."""
        chain = Chain(lambda z, x: self.f(z, x)[0], inputs, self.length)
        return solve(chain, state, batch_ndim=self.batch_ndim, **options)

    def program(self, method: Method, adjoint: AdjointOption) -> Callable[[Any, Any], Any]:
        """A function of the state and the inputs: all states, or a gradient if there is an adjoint.

        The gradient is that of the mean square of all states. Of a step with forward mode only, it
        is the derivative along the state.
        """
        step = self.traced.step

        def states(state: Any, inputs: Any) -> Any:
            options = {} if adjoint is None else {"adjoint": adjoint}
            return self.solve(state, inputs, method=method, **options).trajectory

        def loss(state: Any, inputs: Any) -> Any:
            leaves = jax.tree.leaves(states(state, inputs))
            return sum(jnp.mean(jnp.abs(z).astype(jnp.float32) ** 2) for z in leaves)

        def pushed(state: Any, inputs: Any) -> Any:
            return jax.jvp(lambda state: loss(state, inputs), (state,), (state,))

        if adjoint is None or step.not_differentiable:
            return states
        return pushed if step.forwards_only else jax.grad(loss, argnums=(0, 1), allow_int=True)


def instances_of(
    program: Any,
    init: Any,
    xs: Any,
    length: int | None,
    reverse: bool,
    batch_ndim: int | None,
) -> tuple[Description | None, list[Instance]]:
    """The description of layers, None for a chain or a step; and each chain, one or more.

    The state of a chain after other layers consists of shapes.
    """
    is_chain = isinstance(program, Chain)
    is_layers = isinstance(program, Repeated) or is_sequential(program) or not callable(program)
    if (is_chain or is_layers) and not (xs is None is length and not reverse):
        what = "a list of layers, which hold their own arrays: plan(layers, x)"
        if is_chain:
            what = "a Chain, which has its own inputs: plan(chain, z0)"
        raise TypeError(
            f"xs, length or reverse was given, but program is {what}; expected none of them."
        )
    if is_chain:
        steps = chain_length(program.inputs, program.length, "chain.inputs")
        parts = with_outputs(program.step), init, program.inputs, steps
        return None, [Instance(*parts, batch_ndim or 0, "z0", program.sharding)]
    if not is_layers:
        if xs is None and length is None:
            raise TypeError(
                f"program is {describe(program)}, a function, but there is no xs and no length: "
                "expected plan(f, init, xs) or plan(f, init, length=L) with "
                "f(carry, x) -> (carry, y), as for scan; or a list of layers, plan(layers, x)."
            )
        steps, xs = chain_length(xs, length, "xs"), _reversed(xs) if reverse else xs
        return None, [Instance(program, init, xs, steps, batch_ndim or 0, "init")]
    layers, found = describe_layers(program, init), []
    for index, segment in enumerate(layers.segments):
        if not segment.reason:
            run = segment.stacked()
            tree, *types = segment.layers[0].takes
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in types]
            state = jax.tree.unflatten(tree, shapes) if index else init
            batch = vector_batch(state) if batch_ndim is None else batch_ndim
            parts = with_outputs(run.step), state, run.inputs, run.length
            found.append(Instance(*parts, batch, "x"))
    if not layers.segments:
        raise ValueError("program is an empty list, expected two layers or more.")
    if not found:
        raise ValueError(f"there is no chain: no two neighbouring layers are alike.\n{layers}")
    return layers, found


def _reversed(xs: Any) -> Any:
    """The inputs from the last to the first."""
    return jax.tree.map(
        lambda x: x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)[::-1], xs
    )


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
    elif method.fused:
        name = "fused loop"
    else:
        name = "sequential" if method.unroll == 1 else f"unroll {method.unroll}"
    match adjoint:
        case Adjoint():
            return f"{name} / blocks"
        case Backpropagation():
            return f"{name} / backprop"
        case Autodiff(unroll=unroll):
            return f"{name} / autodiff" + (f", unroll {unroll}" if unroll > 1 else "")
    return name
