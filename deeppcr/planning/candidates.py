"""A chain with its initial state, and the candidates that `plan` and `tune` compare."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.api import solve
from deeppcr.arrays import combine, floating, is_traced, partition
from deeppcr.chain.chain import Chain, TracedChain, chain_length, trace_chain, with_outputs
from deeppcr.chain.kept import keeping
from deeppcr.checks import check_type, describe, named_after, no_array
from deeppcr.choose import AdjointOption, Method, left_to_jax
from deeppcr.layers import (
    Description,
    Stack,
    divide,
    is_sequential,
    programs_of,
    vector_batch,
)
from deeppcr.programs.calls import is_jit_disabled, with_operands
from deeppcr.sequential import Sequential
from depth import Cost

SUMMED = Backpropagation(at_once=False)  # each step adds to the gradients
BASELINE = "jax.lax.scan"
ADJOINT_NAMES = {Autodiff: "autodiff", Backpropagation: "backprop", Adjoint: "blocks"}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One combination of a method and an adjoint for a chain.

    Attributes:
        method: the method; None for `jax.lax.scan` itself, which the others are compared with.
        adjoint: the adjoint; None for a forward pass.
        cost: its depth, work and traffic.
        seconds: the time that it takes on the device.
        iterations: of Newton's method; 0 for others.
        compiling: the seconds that it takes to trace and compile, where that is measured.
    """

    method: Method | None
    adjoint: AdjointOption = None
    cost: Cost = dataclasses.field(default_factory=Cost)
    seconds: float = math.inf
    iterations: int = 0
    compiling: float = math.nan

    @property
    def name(self) -> str:
        """The name of the method, and of the adjoint unless it is None."""
        method, adjoint = self.method, self.adjoint
        if method is None:
            return BASELINE
        name = "fused Newton" if method.fused else "Newton"
        if isinstance(method, Sequential):
            name = "sequential" if method.unroll == 1 else f"unroll {method.unroll}"
            name = "fused loop" if method.fused else name
        if adjoint is None:
            return name
        if isinstance(adjoint, Autodiff) and adjoint.checkpoint:
            return f"{name} / checkpoint {adjoint.checkpoint}"
        if adjoint == SUMMED:
            return f"{name} / one loop"
        unroll = getattr(adjoint, "unroll", 1)
        return f"{name} / {ADJOINT_NAMES[type(adjoint)]}" + (
            f", unroll {unroll}" if unroll > 1 else ""
        )


def kept_by(adjoint: AdjointOption, chain: TracedChain) -> str:
    """What a loop of a chain keeps for its derivative by an adjoint: bytes of all steps."""
    step, length = chain.step, chain.length
    state = step.state_bytes
    if isinstance(adjoint, Autodiff) and adjoint.checkpoint:
        count = -(-length // adjoint.checkpoint)
        return f"{count} states: {count * state:,} bytes; the others are computed again"
    if isinstance(adjoint, Autodiff):
        return f"what jax keeps: {length * step.bytes_kept_by_jax:,} bytes"
    values = keeping(chain)
    sizes = values.sizes if values else []
    more = f", and {len(sizes)} more arrays of each step" if sizes else ""
    return f"all states{more}: {length * (state + sum(sizes)):,} bytes"


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x))


def _each_once(candidates: Sequence[Candidate]) -> list[Candidate]:
    by_name: dict[str, Candidate] = {}
    for one in candidates:
        by_name.setdefault(one.name, one)
    return list(by_name.values())


def baseline(candidates: Sequence[Candidate]) -> Candidate:
    """`jax.lax.scan`, with jax's own derivative."""
    return next(one for one in candidates if one.method is None)


@dataclasses.dataclass(frozen=True)
class Instance:
    """A chain and its initial state.

    Attributes:
        chain: the chain.
        f: its step with outputs, as `scan` takes it.
        state: the initial state.
        batch_ndim: the number of leading batch axes of the state.
        name: of the state, in messages.
    """

    chain: Chain
    f: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batch_ndim: int
    name: str

    @cached_property
    def traced(self) -> TracedChain:
        """The chain, traced once, with shapes alone."""
        chains, length = list[TracedChain](), int(self.chain.length or 0)

        def trace(state: Any, inputs: Any) -> None:
            chain = trace_chain(self.f, state, inputs, length, self.batch_ndim, self.name)
            chains.append(chain.abstract)

        jax.eval_shape(trace, self.state, self.chain.inputs)
        if not chains[0].initial:
            leaves = ", ".join(map(describe, jax.tree.leaves(self.state)))
            raise TypeError(
                f"{self.name} has {f'the leaves {leaves}' if leaves else 'no leaves'}, expected a "
                "floating one: nothing is solved for, and the chain runs as jax.lax.scan."
            )
        if not length:
            raise ValueError("the chain has 0 steps, expected 1 or more: there is nothing to plan.")
        return chains[0]

    @cached_property
    def weights(self) -> list[Any]:
        """The floating arrays that the step closes over, which people train."""
        state, inputs = jax.tree.map(_shape, (self.state, self.chain.inputs))
        first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), inputs)
        arrays = jax.make_jaxpr(self.chain.step)(state, first).consts
        return partition(arrays, floating(arrays))

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        """What `program` takes: the state, the inputs and the weights."""
        return self.state, self.chain.inputs, self.weights

    @property
    def shapes(self) -> Any:
        """`arguments`, as shapes on one device."""
        return jax.tree.map(_shape, self.arguments)

    @cached_property
    def why_not_now(self) -> str:
        """Why the chain cannot be run now; empty if it can: it has arrays that are here."""
        leaves = jax.tree.leaves(self.arguments)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            return "there are shapes (jax.ShapeDtypeStruct), no arrays"
        if is_jit_disabled():
            return "jax.disable_jit is on"
        read = jax.make_jaxpr(self.program(Candidate(Sequential())))(*self.shapes).consts
        # Operations on arrays that are not traced are, too, under `jax.jit`.
        if is_traced(leaves, read, jnp.zeros(())):
            return "jax traces it, as jax.jit, jax.grad and jax.vmap do"
        are_here = all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)
        return "" if are_here else "there are arrays on other machines"

    def candidates(
        self, methods: Sequence[Method], adjoint: AdjointOption = None
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Those of a forward pass and of a gradient, each name once; see `baseline`.

        The first are the first method, and it with the ``adjoint``. A step without a derivative has
        nothing to choose for a gradient.
        """
        first = Sequential() if self.traced.step.not_differentiable else methods[0]
        forward = list(map(Candidate, (*methods, Sequential(), None)))
        gradient = [Candidate(first, adjoint or Autodiff()), Candidate(None, Autodiff())]
        if not left_to_jax(self.traced):
            gradient += [Candidate(first, Backpropagation())]
            gradient += [Candidate(first, SUMMED)]
            gradient += map(partial(Candidate, adjoint=Adjoint()), methods)
        return _each_once(forward), _each_once(gradient)

    def program(self, candidate: Candidate) -> Callable[[Any, Any, Any], Any]:
        """A function of `arguments`: all states, or a gradient if there is an adjoint.

        The gradient is that of the mean square of all states, by all arguments. Of a step with
        forward mode only, it is the derivative along the state.
        """
        options: Any = {"method": candidate.method, "adjoint": candidate.adjoint or "auto"}

        def states(state: Any, inputs: Any, weights: Any) -> Any:
            step = _with_weights(self.chain.step, weights)
            if candidate.method is None:
                return lax.scan(lambda *zx: (step(*zx),) * 2, state, inputs, self.chain.length)[1]
            chain = dataclasses.replace(self.chain, step=step, inputs=inputs, sharding=None)
            return solve(chain, state, batch_ndim=self.batch_ndim, **options).trajectory

        def loss(state: Any, inputs: Any, weights: Any) -> Any:
            leaves = jax.tree.leaves(states(state, inputs, weights))
            return sum(jnp.mean(jnp.abs(z).astype(jnp.float32) ** 2) for z in leaves)

        if candidate.adjoint is None or self.traced.step.not_differentiable:
            return states
        if self.traced.step.forwards_only:
            return lambda z, *rest: jax.jvp(lambda z: loss(z, *rest), (z,), (z,))
        return jax.grad(loss, argnums=(0, 1, 2), allow_int=True)


def _with_weights(step: Callable[[Any, Any], Any], weights: Sequence[Any]) -> Callable[..., Any]:
    """The step that reads ``weights`` in place of the floating arrays that it closes over."""

    @wraps(step)
    def read(z: Any, x: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(z, x)
        program, arrays = with_operands(closed)
        arrays = combine(arrays, floating(arrays), weights)
        results = jaxpr_as_fun(program)(*arrays, *jax.tree.leaves((z, x)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return read


def instance_of(
    program: Any, init: Any, xs: Any, length: int | None, reverse: bool, batch_ndim: int | None
) -> Instance:
    """The chain of a step, a `Chain`, or layers: the longest of theirs.

    The state of a chain after other layers consists of shapes.
    """
    _check_arrays("init", init)
    _check_arrays("xs", xs)
    is_chain = isinstance(program, Chain)
    is_layers = isinstance(program, Stack) or is_sequential(program) or not callable(program)
    if (is_chain or is_layers) and not (xs is None is length and not reverse):
        raise TypeError(
            "xs, length or reverse was given, but program is a "
            f"{'Chain: plan(chain, z0)' if is_chain else 'list of layers: plan(layers, x)'}; "
            "expected none of them, since it has its own inputs."
        )
    if is_chain:
        length = chain_length(program.inputs, program.length, "chain.inputs")
        chain = dataclasses.replace(program, length=length)
        return Instance(chain, with_outputs(chain.step), init, batch_ndim or 0, "z0")
    if not is_layers:
        check_type("program", program, Callable, "a function: f(carry, x) -> (carry, y)")
        if xs is length is None:
            raise TypeError(
                f"program is {describe(program)}, a function, but there is no xs and no length: "
                "expected plan(f, init, xs) or plan(f, init, length=L) with "
                "f(carry, x) -> (carry, y), as for scan; or a list of layers, plan(layers, x)."
            )
        length, xs = chain_length(xs, length, "xs"), jax.tree.map(_reversed, xs) if reverse else xs
        chain = Chain(named_after(program)(lambda z, x: program(z, x)[0]), xs, length)
        return Instance(chain, program, init, batch_ndim or 0, "init")
    every = programs_of(program, init)
    segments = divide(every)
    chains = [segment for segment in segments if not segment.reason]
    if not chains:
        table = Description(segments)
        raise ValueError(f"there is no chain: no two neighbouring layers are alike.\n{table}")
    segment = max(chains, key=lambda segment: segment.stop - segment.start)
    run, state = segment.stack(every), init
    if segment.start:
        state = jax.tree.map(_shape, every[segment.start].takes)
    batch = vector_batch(state) if batch_ndim is None else batch_ndim
    return Instance(run.chain, with_outputs(run.step), state, batch, "x")


def _check_arrays(name: str, tree: Any) -> None:
    """Raise unless all leaves are arrays, numbers, or shapes."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        try:
            jax.dtypes.result_type(leaf)
        except (TypeError, ValueError):
            place = name + jax.tree_util.keystr(path)
            expected = "an array, a number or a jax.ShapeDtypeStruct"
            error = no_array(place, leaf, expected)
            if hasattr(leaf, "init_noise_sigma"):
                error = TypeError(
                    f"{place} is {leaf}, expected {expected}; a sampler is planned by "
                    "deeppcr.diffusion.plan(model, schedule, x_T, steps=...)."
                )
            raise error from None


def _reversed(x: Any) -> Any:
    """The inputs from the last to the first."""
    return x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x)[::-1]
