"""A chain with its initial state: traced with shapes for a plan, run for a sample or for trials."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr._plan.candidate import Candidate
from deeppcr.api import solve, vector_batch
from deeppcr.chain import Chain, TracedChain, chain_length, trace_chain
from deeppcr.checks import describe
from deeppcr.layers import Repeated
from deeppcr.layers.reading import is_sequential
from deeppcr.layers.segments import Description
from deeppcr.layers.segments import describe as describe_layers
from deeppcr.linearize import Linearization
from deeppcr.newton import Newton
from deeppcr.newton.precision import in_float32
from deeppcr.newton.sample import Sample, indices, sample
from deeppcr.platforms import is_eager
from deeppcr.step import on_no_mesh

TRIAL = 0.2  # seconds for each candidate


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

    def traced(self) -> TracedChain:
        """The chain, traced with shapes alone."""
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

    def sampled(self, steps: int, method: Newton, most: int) -> Sample | None:
        """What Newton's method does on a sample of so many steps; None inside `jax.jit`."""
        state, inputs = self._arrays("iterations='sample'")
        with jax.default_device(_cpu()), on_no_mesh():
            chain = in_float32(self._traced(state, inputs))
            if not is_eager(chain.captured):
                return None
            chosen = indices(chain.length, steps)
            arrays = [_at(x, chosen) for x in chain.inputs]
            shorter = dataclasses.replace(
                chain,
                length=chain.length if chosen is None else len(chosen),
                initial=[_at(z) for z in chain.initial],
                inputs=arrays,
                captured=[_at(c) for c in chain.captured],
                function=None,
            )
            linearize, guess = method.linearize, method.initial_guess
            assert isinstance(linearize, Linearization)
            assert isinstance(guess, str)
            return sample(shorter, chain.length, linearize, guess, most)

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
        f = self.f or (lambda z, x: (chain.step(z, x), None))
        return trace_chain(f, state, inputs, length, self.batch_ndim, self.name)

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
        if not self.has_arrays:
            raise ValueError(
                f"{self.name} has shapes instead of arrays, which {wanted_by} needs to run the "
                "chain; "
                "a chain that follows other layers can be planned on its own: "
                "Chain.from_layers(layers, x)."
            )
        return jax.tree.map(jnp.asarray, self.state), self.chain.inputs


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


def _cpu() -> jax.Device:
    """Where a sample runs: on a CPU a step of a narrow chain takes no more than a microsecond."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # this process was started without one
        return jax.local_devices()[0]


def _at(x: Any, chosen: np.ndarray | None = None) -> Any:
    """An array on the default device, or some of its entries."""
    if not jnp.issubdtype(x.dtype, jax.dtypes.extended):  # random keys are
        x = np.asarray(x)
    return jax.device_put(x if chosen is None else x[chosen], _cpu())


def _clock(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start
