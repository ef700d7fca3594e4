"""The costs of a chain's parts, of which candidates are sums; `depth` computes each once.

No candidate is traced as a whole, which would be too slow for a planner. A candidate is a sequence
of programs and of loops over them. Each is the code that would run, traced with shapes: one step,
the derivative of a step, the Jacobian blocks of all steps, a linear recurrence.
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
from jax import Array

from deeppcr.axis import LOCAL
from deeppcr.chain import TracedChain
from deeppcr.linear import Blocks, LinearSolver
from deeppcr.linearize import Linearization
from deeppcr.platforms import compiled_for
from deeppcr.rewrites.small_products import write_out
from deeppcr.sequential import run_sequentially
from deeppcr.signature import signature
from deeppcr.state import Leaves, add
from depth import Cost
from depth.analysis import analyze_body, analyze_jaxpr
from depth.jaxprs import Replacement
from depth.kernels import Kernel, Program

ADDRESS = re.compile(" at 0x[0-9a-f]+")  # of a function; one of the same name may be equal


def shapes_of(chain: TracedChain, shards: int = 1) -> TracedChain:
    """A chain of shapes, or one of ``shards`` equal shards of it, on one device."""
    shapes, length = chain.abstract, chain.length // shards
    inputs = [jax.ShapeDtypeStruct((length, *x.shape[1:]), x.dtype) for x in shapes.inputs]
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
        return cls(shapes_of(chain, shards), shards)

    def shared_by(self, shards: int) -> "ChainCosts":
        """The same chain in equal shards, on as many devices."""
        return self if shards == 1 else ChainCosts.of(self.chain, shards)

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
        program = self.chain.step

        def step(c: Leaves, z: Leaves, x: Leaves) -> Any:
            state, outputs = program.with_outputs(z, x, c, self._replace)
            own = zip(outputs, program.outputs_in_state, strict=True)
            return state, [y for y, leaf in own if leaf is None]

        return self._every_step(step)

    @property
    def _replace(self) -> Replacement | None:
        return write_out if self.on_cpu else None

    @cached_property
    def autodiff(self) -> tuple[Cost, int]:
        """The sequential program and its gradient by jax, and the bytes stored in between.

        For a step with forward mode only: the program and its tangents.
        """
        kept, chain = 0, self.chain

        def program(z: Leaves, x: Leaves, c: Leaves) -> Any:
            return run_sequentially(self._with(x, c), z, self._replace)

        def gradient(z: Leaves, x: Leaves, c: Leaves, g: Any) -> Any:
            nonlocal kept
            _, pull = jax.vjp(program, z, x, c)
            kept = sum(map(_bytes, jax.tree.leaves(pull)))
            return pull(g)

        arguments = chain.initial, chain.inputs, chain.captured
        if chain.step.forwards_only:
            with self.there():
                cost = _read(lambda *moving: jax.jvp(program, moving, moving), *arguments)
            return (cost if self.shards == 1 else cost.repeat(self.shards)), 0
        results = [
            jax.ShapeDtypeStruct((chain.length, *atom.aval.shape), atom.aval.dtype)
            for atom in chain.step.jaxpr.outvars
        ]
        states = chain.step.states
        with self.there():
            cost = _read(gradient, *arguments, (results[:states], results[states:]))
        known = sum(map(_bytes, jax.tree.leaves(arguments)))
        return (cost if self.shards == 1 else cost.repeat(self.shards)), max(0, kept - known)

    @cached_property
    def backpropagation(self) -> Cost:
        """Adjoint states one step after another, at known states."""
        program = self.chain.step

        def pull(c: Leaves, z: Leaves, x: Leaves, g: Leaves, mu: Leaves) -> Any:
            lam = add(g, mu)
            return jax.vjp(lambda z: program(z, x, c), z)[1](lam)[0], lam

        return self._every_step(pull, self.chain.initial, self.chain.initial)

    def _every_step(self, step: Callable[..., Any], *more: Leaves) -> Cost:
        """A loop of ``step(captured, state, input, *more)``, which keeps the states."""
        chain = self.chain
        x = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in chain.inputs]
        with self.there():
            jaxpr = jax.make_jaxpr(step)(chain.captured, chain.initial, x, *more)
        once = analyze_body(jaxpr, len(chain.captured), list(map(_bytes, chain.initial)))
        return once.repeat(chain.length * self.shards)

    # -- all steps at once ------------------------------------------------------------------------

    def _with(self, inputs: Leaves, captured: Leaves) -> TracedChain:
        return dataclasses.replace(self.chain, inputs=inputs, captured=captured)

    @cached_property
    def states(self) -> Any:
        """The shape of all states, ``[L, *batch, w]``."""
        layout = self.chain.layout
        shape = (self.chain.length, *layout.batch_shape, layout.width)
        return jax.ShapeDtypeStruct(shape, layout.dtype)

    @property
    def trajectory_bytes(self) -> int:
        """Of all states."""
        return _bytes(self.states)

    @cached_property
    def evaluate(self) -> Cost:
        """All steps once, in parallel."""

        def evaluate(z: Array, x: Leaves, c: Leaves) -> Array:
            return self._with(x, c).evaluate(z)

        return _read(evaluate, self.states, self.chain.inputs, self.chain.captured)

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

        return _read(pull, self.states, self.chain.inputs, self.chain.captured, self.states)

    def passes(self, count: int) -> Cost:
        """``count`` elementwise passes over all states, in one kernel; no depth is counted."""
        moved, work = 2 * self.trajectory_bytes, count * self.states.size
        kernel = Kernel("elementwise", "float32", (("arithmetic", work),), moved, apart=moved)
        return Cost(work, moved, graph=Program(((kernel, 1),), ()))

    def blocks(self, linearization: Linearization) -> tuple[Cost, Blocks]:
        """Jacobian blocks of all steps, and their shapes."""

        def blocks(z: Array, x: Leaves, c: Leaves) -> Blocks:
            return linearization.blocks(self._with(x, c), z)

        def read() -> tuple[Any, ...]:
            arguments = self.states, self.chain.inputs, self.chain.captured
            jaxpr, shapes = jax.make_jaxpr(blocks, return_shape=True)(*arguments)
            return analyze_jaxpr(jaxpr), shapes

        cost, shapes = self._once((linearization,), read)
        return cost, shapes

    def solve(self, solver: LinearSolver, blocks: Blocks, transposed: bool = False) -> Cost:
        """The linear recurrence of an iteration; transposed: that of the adjoint."""
        solve = solver.solve_transposed_unguarded if transposed else solver.solve_unguarded

        def read() -> Cost:
            with self.there():
                return _read(lambda blocks, b: solve(blocks, b), blocks, self.states)

        leaves, structure = jax.tree.flatten(blocks)
        cost: Cost = self._once((solver, transposed, structure, tuple(leaves)), read)
        return cost

    def _once(self, key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
        """The result of ``read``, called once for each key; arrays are compared by identity."""
        known = tuple(part if is_hashable(part) else id(part) for part in key)
        if known not in self._known:
            self._known[known] = key, read()  # with the key, so that an id stays its own
        return self._known[known][1]

    @cached_property
    def _known(self) -> dict[Any, tuple[Any, Any]]:
        return {}


def _read(f: Callable[..., Any], *arguments: Any) -> Cost:
    return analyze_jaxpr(jax.make_jaxpr(f)(*arguments))


def is_hashable(x: Any) -> bool:
    """Whether a value can be a key; values with arrays cannot."""
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _bytes(x: Any) -> int:
    return int(x.size) * int(x.dtype.itemsize)
