"""The parts of a carry: those that are solved for, and the others.

`jax.lax.scan` carries arrays of any dtype. A parallel solve needs a differentiable state. So every
leaf of a carry has a kind:

- "state": real and floating. It is solved for.
- "complex": two leaves of the state, its real and its imaginary part.
- "fixed": every step returns it unchanged. The step captures it, like weights; except in a carry
  without any changing leaf, whose leaves are a state.
- "driven": an integer, a flag, a random key, whose values depend on inputs and on other such
  leaves only: a counter, a key that is split. `jax.lax.scan` computes these first, and their values
  before each step are inputs of the step.
- "coupled": an integer, a flag or a key that depends on the state, such as a mode that switches on
  it. It is unknown before the previous step has run: the chain must run as `jax.lax.scan`.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.arrays import (
    Leaves,
    combine,
    is_weak,
    partition,
    with_weak_type,
    without_first_axis,
)
from deeppcr.chain.eager import compiled_once
from deeppcr.chain.step import Extended, Step
from deeppcr.checks import named_after
from deeppcr.programs.cut_first import evaluate
from depth.dependence import dependence
from depth.jaxprs import called, without_constants
from depth.primitives import primitive

LeafKind = Literal["state", "complex", "fixed", "driven", "coupled"]
SOLVED = ("state", "complex")


@dataclasses.dataclass(frozen=True, eq=False)
class Carry:
    """The leaves of a carry before the first step, and the kind of each.

    Attributes:
        tree: the structure of the carry.
        names: of its leaves.
        kinds: of its leaves.
        returned: whether every step returns a leaf unchanged.
        weak: whether the step returns a leaf weakly typed.
        initial: its leaves before the first step.
        before: the driven leaves before each step, ``[L, ...]``, in the order of the inputs.
        last: the driven leaves after the last step.
    """

    tree: Any
    names: tuple[str, ...]
    kinds: tuple[LeafKind, ...]
    returned: tuple[bool, ...]
    weak: tuple[bool, ...]
    initial: Leaves
    before: Leaves = dataclasses.field(default_factory=list)
    last: Leaves = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, step: Step, initial: Any, name: str) -> Self:
        """The carry of a traced step; ``name`` is its name in messages."""
        paths, tree = jax.tree_util.tree_flatten_with_path(initial)
        names = tuple(name + jax.tree_util.keystr(path) for path, _ in paths)
        leaves = jax.tree.leaves(initial)
        ends = map(partial(_source, step.jaxpr), step.jaxpr.outvars[: step.states])
        returned = tuple(map(operator.is_, step.jaxpr.invars, ends))
        kinds = _kinds(step, leaves, returned)
        return cls(tree, names, kinds, returned, step.weak[: step.states], leaves)

    @property
    def is_state(self) -> bool:
        """Whether every leaf is solved for, unchanged."""
        return set(self.kinds) <= {"state"}

    @property
    def coupled(self) -> list[str]:
        """The coupled leaves, by name and dtype."""
        return [
            f"{name} ({leaf.dtype})"
            for name, leaf, kind in zip(self.names, self.initial, self.kinds, strict=True)
            if kind == "coupled"
        ]

    def ahead(
        self, step: Step, captured: Leaves, inputs: Leaves, length: int, reverse: bool
    ) -> Self:
        """The same, with the driven leaves of all steps, computed by `jax.lax.scan`."""
        moves = tuple(kind == "driven" for kind in self.kinds)
        if not any(moves):
            return self
        arrays = lax.stop_gradient((captured, self.initial, inputs))
        last, before = compiled_once(_run_ahead, (step, moves, length, reverse), *arrays)
        return dataclasses.replace(self, before=before, last=last)

    # -- between the carry and the state ----------------------------------------------------------

    @property
    def state(self) -> Leaves:
        """The initial state."""
        return self.split(self.initial)

    @property
    def state_names(self) -> list[str]:
        """A name for each leaf of the state."""
        parts = {"state": ("",), "complex": (".real", ".imag")}
        names: list[str] = []
        for name, kind in zip(self.names, self.kinds, strict=True):
            names += [name + part for part in parts.get(kind, ())]
        return names

    def split(self, leaves: Sequence[Any]) -> Leaves:
        """The leaves of the state, from a carry or a trajectory of carries."""
        state: Leaves = []
        for leaf, kind in zip(leaves, self.kinds, strict=True):
            if kind == "state":
                state.append(leaf)
            elif kind == "complex":
                state += [jnp.real(leaf), jnp.imag(leaf)]
        return state

    def join(self, state: Sequence[Any], driven: Sequence[Any]) -> Any:
        """A carry from the state and the driven leaves; weakly typed like the initial one."""
        parts = iter(state)
        discrete = iter(driven)
        leaves = []
        for leaf, kind in zip(self.initial, self.kinds, strict=True):
            if kind == "fixed":
                new = leaf
            elif kind == "state":
                new = next(parts)
            elif kind == "complex":
                new = lax.complex(next(parts), next(parts))
            else:
                new = next(discrete)
            leaves.append(with_weak_type(new, is_weak(leaf)))
        return jax.tree.unflatten(self.tree, leaves)

    def step(self, f: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any, Any], Any]:
        """``f`` as a step from state to state, with the driven leaves as additional inputs.

        It calls the user's function, so it can be traced for other dtypes.
        """

        @named_after(f)
        def step(state: Leaves, inputs: Extended) -> tuple[Leaves, Any]:
            x, driven = inputs
            after, outputs = f(self.join(state, driven), x)
            return self.split(jax.tree.leaves(after)), outputs

        return step

    def value(self, last: Leaves) -> Any:
        """The carry after the last step, of the last state."""
        return self._after(last, self.last)

    def trajectory(self, states: Leaves, length: int) -> Any:
        """The carry after each step, of all states."""
        driven = [
            jnp.concatenate([before[1:], last[None]])
            for before, last in zip(self.before, self.last, strict=True)
        ]
        return self._after(states, driven, length)

    def _after(self, state: Leaves, driven: Leaves, *length: int) -> Any:
        """A carry after one step or ``length``, with the leaves that these return unchanged."""
        carry = jax.tree.leaves(self.join(state, driven))
        rows = zip(carry, self.initial, self.returned, self.weak, strict=True)
        leaves = [
            with_weak_type(jnp.broadcast_to(z, (*length, *z.shape)) if same else leaf, weak)
            for leaf, z, same, weak in rows
        ]
        return jax.tree.unflatten(self.tree, leaves)


def _source(program: Any, y: Any) -> Any:
    """The variable that a result is, through calls that return what they take, as `jax.jit`."""
    for equation in reversed(program.eqns):
        if y in equation.outvars and primitive(equation).inlines:
            body = without_constants(called(equation))
            end = _source(body, body.outvars[equation.outvars.index(y)])
            if end in body.invars:
                y = equation.invars[body.invars.index(end)]
    return y


def _kinds(step: Step, leaves: Leaves, returned: Sequence[bool]) -> tuple[LeafKind, ...]:
    """The kinds of the leaves of a carry, from the step's program."""
    kinds = list(map(_kind, leaves))
    changing = {kind for kind, same in zip(kinds, returned, strict=True) if not same}
    has_state = not changing.isdisjoint(SOLVED)
    for i, same in enumerate(returned):
        if same and (has_state or kinds[i] == "driven"):
            kinds[i] = "fixed"
    driven = [i for i, kind in enumerate(kinds) if kind == "driven"]
    if not driven:
        return tuple(kinds)
    program = step.jaxpr._replace(outvars=[step.jaxpr.outvars[i] for i in driven])
    inputs = [frozenset([i]) for i in range(len(program.invars))]
    sources = dict(zip(driven, dependence(program, inputs), strict=True))
    unknown = {i for i, kind in enumerate(kinds) if kind in SOLVED}
    while coupled := [i for i in driven if i not in unknown and unknown & sources[i]]:
        unknown.update(coupled)
    for i in unknown.intersection(driven):
        kinds[i] = "coupled"
    return tuple(kinds)


def _kind(leaf: Any) -> LeafKind:
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        return "complex"
    return "state" if jnp.issubdtype(leaf.dtype, jnp.floating) else "driven"


def _run_ahead(
    static: tuple[Step, tuple[bool, ...], int, bool],
    captured: Leaves,
    initial: Leaves,
    inputs: Leaves,
) -> tuple[Leaves, Leaves]:
    """The leaves that are driven after the last step, and before each.

    ``static``: the step, which leaves these are, L, and whether the first step is the last.
    """
    step, moves, length, reverse = static
    results = partition(step.jaxpr.outvars[: step.states], moves)

    def body(driven: Leaves, xs: Leaves) -> tuple[Leaves, Leaves]:
        # The results are proven not to depend on the other leaves.
        leaves = [*captured, *combine(initial, moves, driven), *xs]
        return evaluate(step.jaxpr, step.jaxpr.environment(leaves), results), driven

    inputs = list(map(without_first_axis, inputs))
    return lax.scan(body, partition(initial, moves), inputs, length, reverse)
