"""The costs of a chain's parts, of which candidates are sums; `depth` computes each once.

A forward pass is the program that would run, traced with shapes. A gradient is too large to trace
for every candidate: it is the forward pass, and then programs, one after another: the Jacobian
blocks of all steps, a linear recurrence, the gradients of inputs and parameters.
"""

import dataclasses
import hashlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from deeppcr._plan.iterations import program_of
from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.avals import abstract
from deeppcr.axis import LOCAL
from deeppcr.chain import TracedChain
from deeppcr.fused import CannotFuse, fused_scan
from deeppcr.linear import Blocks, LinearSolver
from deeppcr.linearize import Linearization
from deeppcr.loops import ITERATION
from deeppcr.newton import Newton
from deeppcr.platforms import compiled_for
from deeppcr.rewrites.small_products import MOST_DIFFERENTIATED, has_small_products
from deeppcr.sequential import fused_step, run_differentiated, run_loop
from deeppcr.signature import signature
from deeppcr.state import Leaves
from depth import Cost
from depth.analysis import analyze_jaxpr
from depth.counts import matrices
from depth.jaxprs import equations

BACKPROPAGATION = Backpropagation()
MATRIX = 16  # the rows and columns from which on a product is as fast as predicted
ADDRESS = re.compile(" at 0x[0-9a-f]+")  # of a function; one of the same name may be equal


def shapes_of(chain: TracedChain, length: int) -> TracedChain:
    """The shapes of ``length`` steps of a chain, on one device."""
    shapes = chain.abstract
    inputs = [abstract(x, (length, *x.shape[1:])) for x in shapes.inputs]
    return dataclasses.replace(shapes, length=length, inputs=inputs, axis=LOCAL, offset=None)


@dataclasses.dataclass(frozen=True, eq=False)
class ChainCosts:
    """The costs of the parts of all methods and adjoints for a chain.

    Attributes:
        chain: of shapes, as `shapes_of` returns it, with the steps of one device.
        shards: the number of devices that share the chain; sequential work takes the time of all of
            them.
        on_cpu: whether it is compiled for a CPU; some programs differ on accelerators.
    """

    chain: TracedChain
    shards: int = 1
    on_cpu: bool = True

    @classmethod
    def of(cls, chain: TracedChain, shards: int = 1) -> "ChainCosts":
        """The costs of a chain, or of one of its equal shards on as many devices."""
        return cls(shapes_of(chain, chain.length // shards), shards)

    def shared_by(self, shards: int) -> "ChainCosts":
        """The same chain in equal shards, on as many devices."""
        return self if shards == 1 else ChainCosts.of(self.chain, shards)

    def in_chunks(self, size: int, parts: Callable[["ChainCosts"], Cost]) -> Cost:
        """Chunks of ``size`` steps, one after another, each the sum of ``parts`` of its costs.

        So the arrays of a chunk may stay in the cache of a CPU. Its states, inputs and cotangents
        are copied out of those of the chain, and adjoint states as large into it.
        """
        length = self.chain.length
        if size >= length:
            return parts(self)
        chunk: ChainCosts = self._once(
            ("chunk", size), lambda: dataclasses.replace(self, chain=shapes_of(self.chain, size))
        )
        count = -(-length // size)

        def copy(arrays: Leaves) -> Leaves:
            copied: Leaves = lax.scan(lambda _, each: (None, each), None, arrays)[1]
            return copied

        arrays = [chunk.states, chunk.states, *chunk.chain.inputs]
        whole = [abstract(x, (count, *x.shape)) for x in arrays]
        moved: Cost = self._once(("moved", size), lambda: self._read(copy, whole))
        return parts(chunk).repeat(count) + moved

    def on(self, cpu: bool) -> "ChainCosts":
        """The same chain on a CPU, or on an accelerator."""
        return self if cpu == self.on_cpu else self._elsewhere

    def there(self) -> AbstractContextManager[None]:
        """A context in which programs are traced for that platform."""
        return compiled_for("cpu" if self.on_cpu else "cuda")

    @cached_property
    def _elsewhere(self) -> "ChainCosts":
        return dataclasses.replace(self, on_cpu=not self.on_cpu)

    @cached_property
    def signature(self) -> str:
        """A hash of the program and shapes of the chain."""
        chain = self.chain
        text = repr((signature(chain.step.jaxpr), chain.layout, chain.length, self.shards))
        return hashlib.sha256(ADDRESS.sub("", text).encode()).hexdigest()

    # -- sequential -------------------------------------------------------------------------------

    @cached_property
    def sequential(self) -> Cost:
        """The sequential program."""
        return self._sequential(1)

    def unrolled(self, unroll: int) -> Cost:
        """The sequential program with so many steps in a trip."""
        cost: Cost = self._once(("unroll", unroll), lambda: self._sequential(unroll))
        return cost

    def _sequential(self, unroll: int) -> Cost:
        chain = self.chain

        def program(z: Leaves, x: Leaves, c: Leaves) -> Any:
            return run_loop(self._with(x, c), z, unroll)

        cost = self._read(program, chain.initial, chain.inputs, chain.captured)
        return self._shard_after_shard(cost)

    @cached_property
    def fused(self) -> Cost:
        """The sequential program as one kernel of a GPU.

        Raises:
            CannotFuse: there is no such kernel.
        """
        chain = self.chain
        if self.shards > 1:
            raise CannotFuse("the chain is sharded over a mesh")
        step = fused_step(chain)

        def program(z: Leaves, x: Leaves, c: Leaves) -> Any:
            return fused_scan(step, z, x, c, False, chain.length)

        return self._read(program, chain.initial, chain.inputs, chain.captured)

    def _shard_after_shard(self, cost: Cost) -> Cost:
        return cost if self.shards == 1 else cost.repeat(self.shards)

    @property
    def has_small_products(self) -> bool:
        """Whether products are written out in the derivative of the sequential program."""
        return self.on_cpu and has_small_products(self.chain.step.jaxpr, MOST_DIFFERENTIATED)

    @property
    def has_products_of_matrices(self) -> bool:
        """Whether a step has a product of matrices of `MATRIX` rows and columns or more."""
        return any(
            equation.primitive.name == "dot_general" and min(matrices(equation)[1:]) >= MATRIX
            for equation in equations(self.chain.step.jaxpr)
        )

    def autodiff(self, rewritten: bool = True, unroll: int = 1) -> tuple[Cost, int]:
        """The sequential program and its gradient by jax, and the bytes stored in between.

        ``rewritten``: whether small products are written out. ``unroll``: steps in a trip. For a
        step with forward mode only: the program and its tangents. For one without a derivative in
        the state: the program alone.
        """
        found: tuple[Cost, int] = self._once(
            ("autodiff", rewritten, unroll), lambda: self._autodiff(rewritten, unroll)
        )
        return found

    def _autodiff(self, rewritten: bool, unroll: int) -> tuple[Cost, int]:
        kept, chain = 0, self.chain

        def program(z: Leaves, x: Leaves, c: Leaves) -> Any:
            return run_differentiated(self._with(x, c), z, rewritten, unroll)[1:]

        def gradient(z: Leaves, x: Leaves, c: Leaves, g: Any) -> Any:
            nonlocal kept
            _, pull = jax.vjp(program, z, x, c)
            kept = sum(map(_bytes, jax.tree.leaves(pull)))
            return pull(g)

        arguments = chain.initial, chain.inputs, chain.captured
        if chain.step.not_differentiable:  # only outputs can have gradients
            return self.sequential, 0
        if chain.step.forwards_only:
            cost = self._read(lambda *moving: jax.jvp(program, moving, moving), *arguments)
            return self._shard_after_shard(cost), 0
        results = [
            abstract(atom.aval, (chain.length, *atom.aval.shape))
            for atom in chain.step.jaxpr.outvars
        ]
        states = chain.step.states
        cost = self._read(gradient, *arguments, (results[:states], results[states:]))
        known = sum(map(_bytes, jax.tree.leaves(arguments)))
        return self._shard_after_shard(cost), max(0, kept - known)

    @cached_property
    def backpropagation(self) -> Cost:
        """Adjoint states one step after another, at known states."""
        chain, states = self.chain, self._leaves

        def pull(states: Leaves, x: Leaves, c: Leaves, g: Leaves, enter: Leaves) -> Any:
            return BACKPROPAGATION.backward(self._with(x, c), states, g, enter)

        cost = self._read(pull, states, chain.inputs, chain.captured, states, chain.initial)
        return self._shard_after_shard(cost)

    @property
    def _leaves(self) -> Leaves:
        """The shapes of all states, as leaves."""
        length = self.chain.length
        return [abstract(z, (length, *z.shape)) for z in self.chain.initial]

    # -- all steps at once ------------------------------------------------------------------------

    def _with(self, inputs: Leaves, captured: Leaves) -> TracedChain:
        return dataclasses.replace(self.chain, inputs=inputs, captured=captured)

    @cached_property
    def states(self) -> Any:
        """The shape of all states, ``[L, *batch, w]``."""
        layout = self.chain.layout
        shape = (self.chain.length, *layout.batch_shape, layout.width)
        return abstract(self.chain.initial[0], shape, layout.dtype)

    @property
    def trajectory_bytes(self) -> int:
        """Of all states."""
        return _bytes(self.states)

    @cached_property
    def evaluate(self) -> Cost:
        """All steps once, in parallel."""

        def evaluate(z: Array, x: Leaves, c: Leaves) -> Array:
            return self._with(x, c).evaluate(z)

        return self._read(evaluate, self.states, self.chain.inputs, self.chain.captured)

    @cached_property
    def other_gradients(self) -> Cost:
        """Gradients of inputs and captured arrays, from the adjoint states: one batched product."""

        def pull(z: Any, x: Leaves, c: Leaves, g: Any) -> Any:
            floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in [*x, *c]]

            def f(moving: Leaves) -> Array:
                rest = iter(moving)
                both = zip([*x, *c], floating, strict=True)
                leaves = [next(rest) if moves else leaf for leaf, moves in both]
                return self._with(leaves[: len(x)], leaves[len(x) :]).evaluate(z)

            moving = [leaf for leaf, moves in zip([*x, *c], floating, strict=True) if moves]
            # Equals jax.vjp, but traces faster.
            return jax.linear_transpose(lambda t: jax.jvp(f, (moving,), (t,))[1], moving)(g)

        return self._read(pull, self.states, self.chain.inputs, self.chain.captured, self.states)

    def blocks(self, linearization: Linearization) -> tuple[Cost, Blocks]:
        """Jacobian blocks of all steps, and their shapes."""

        def blocks(z: Array, x: Leaves, c: Leaves) -> Blocks:
            return linearization.blocks(self._with(x, c), z)

        def read() -> tuple[Any, ...]:
            arguments = self.states, self.chain.inputs, self.chain.captured
            with self.there():
                jaxpr, shapes = jax.make_jaxpr(blocks, return_shape=True)(*arguments)
            return analyze_jaxpr(jaxpr), shapes

        cost, shapes = self._once((linearization,), read)
        return cost, shapes

    def newton(self, method: Newton, iterations: int | None = None) -> tuple[Cost, int]:
        """A solve by ``method``, and its number of iterations; None for the expected number."""

        def read() -> tuple[Cost, int]:
            jaxpr, expected = self._once((method,), lambda: program_of(method, self.chain))
            if iterations is None:
                return analyze_jaxpr(jaxpr), expected
            return analyze_jaxpr(jaxpr, trip_counts={ITERATION: iterations}), iterations

        with self.there():
            found: tuple[Cost, int] = self._once((method, iterations), read)
        return found

    def solve(self, solver: LinearSolver, blocks: Blocks, transposed: bool = False) -> Cost:
        """The linear recurrence of an iteration; transposed: that of the adjoint."""
        solve = solver.solve_transposed_unguarded if transposed else solver.solve_unguarded

        def read() -> Cost:
            return self._read(lambda blocks, b: solve(blocks, b), blocks, self.states)

        leaves, structure = jax.tree.flatten(blocks)
        cost: Cost = self._once((solver, transposed, structure, tuple(leaves)), read)
        return cost

    def _once(self, key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
        """The result of ``read``, called once for each key; arrays are compared by identity."""
        known = tuple(part if is_hashable(part) else id(part) for part in key)
        if known not in self._known:
            self._known[known] = key, read()  # with the key, so that an id stays its own
        return self._known[known][1]

    def _read(self, f: Callable[..., Any], *arguments: Any) -> Cost:
        with self.there():
            return analyze_jaxpr(jax.make_jaxpr(f)(*arguments))

    @cached_property
    def _known(self) -> dict[Any, tuple[Any, Any]]:
        return {}


def is_hashable(x: Any) -> bool:
    """Whether a value can be a key; values with arrays cannot."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _bytes(x: Any) -> int:
    return int(x.size) * int(x.dtype.itemsize)
