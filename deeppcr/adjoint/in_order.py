"""Derivatives of a chain by loops: the tangents of its states and outputs as one linear function.

    t_l, o_l = T_l (t_{l-1}, dx_l, dc),   t_0 = dz_0,

in one loop, and its transpose in one loop from the last step to the first. A step is differentiated
once, its outputs included. A `LinearMap` is this function as an equation, whose transpose is ours.
All other derivatives are those of the programs.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.moves import Moves, Tangents
from deeppcr.adjoint.tangents import StepTangents
from deeppcr.arrays.avals import abstract, like, varying_axes
from deeppcr.arrays.state import Leaves, add, combine, floating, partition
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.part import leaves_pulled
from deeppcr.linear.linear_map import LinearMap, solved
from deeppcr.lower import each, kernels_run, scan_in_chunks

Both = tuple[Leaves, Leaves]  # of the states, of the outputs
Given = list[Any]  # cotangents, None for zeros


class Results(NamedTuple):
    """Tangents of a chain, or their cotangents.

    Attributes:
        states: of ``z_1 .. z_L``.
        outputs: of all steps.
        last: of ``z_L``; the cotangents of what is read of it alone.
    """

    states: Given
    outputs: Given
    last: Given


def is_in_order(chain: TracedChain) -> bool:
    """Whether loops run on one device, and no kernels in their place."""
    return chain.axis == LOCAL and not kernels_run()


class InOrder(NamedTuple):
    """The tangent equations of a chain, of its states and its outputs.

    Attributes:
        moves: what is differentiated.
        chain: with its arrays.
        states: ``z_0 .. z_{L-1}``.
        adjoint: how.
    """

    moves: Moves
    chain: TracedChain
    states: Leaves
    adjoint: Backpropagation

    def tangents(self, reached: Sequence[bool], tangents: Tangents) -> Results:
        """Those of all states and outputs; ``reached``: the leaves of a state that have some."""
        step, length = self.chain.step, self.chain.length
        outputs, same = step.jaxpr.outvars[step.states :], step.outputs_in_state
        moving = zip(same, floating(outputs), strict=True)
        own = [leaf is None and is_floating for leaf, is_floating in moving]
        system = self if all(reached) and all(own) else self.of_part(reached, own)
        found = _bound(system, tangents)
        of_own = iter(found.outputs)
        t = combine([jnp.zeros_like(z) for z in self.states], reached, found.states)
        last = combine(self.initial, reached, found.last)

        def of_output(y: Any, leaf: int | None, is_own: bool) -> Any:
            if is_own:
                return next(of_own)
            if leaf is not None:
                return t[leaf]
            return np.zeros((length, *y.aval.shape), jax.dtypes.float0)

        every = [of_output(*each) for each in zip(outputs, same, own, strict=True)]
        return Results(t, every, last)

    def of_part(self, states: Sequence[bool], outputs: Sequence[bool]) -> Self:
        """Those of some leaves of the state, and of some outputs."""
        chain, own, moves = self.moves.part(self.chain, self.states, states, outputs)
        return self._replace(chain=chain, states=own, moves=moves)

    @property
    def initial(self) -> Leaves:
        """Zeros, shaped like the initial state."""
        return [jnp.zeros(z.shape[1:], z.dtype) for z in self.states]

    def pushed(self, tangents: Tangents) -> Results:
        """The tangents of the states and of the outputs."""
        (dz, dx, dc), chain = tangents, self.chain
        program = StepTangents.of(chain.step, self.moves, in_halves=False)

        def body(t: Leaves, at: Any) -> tuple[Leaves, Both]:
            z, inputs, dx = at
            found = program.push(program.known(z, inputs, chain.captured), t, dx, dc)
            return found[0], found

        steps = self.states, chain.inputs, dx
        last, found = self._scan(body, self.moves.enter(self.initial, dz), steps)
        return Results(found[0], found[1], last)

    def pulled(self, given: Results) -> tuple[Leaves, Leaves, Leaves]:
        """The cotangents of the tangents, of the initial state None where it has none."""
        g, last = given.states, given.last
        states = [x is not None or y is not None for x, y in zip(g, last, strict=True)]
        outputs = [x is not None for x in given.outputs]
        if varying_axes((self.chain, self.states)):  # of another mesh, where no part is traced
            return self._pulled(given._replace(outputs=self._with_zeros(given.outputs)))
        reached = [True] * len(states)
        if not (all(states) and all(outputs)):
            reached = leaves_pulled(self.chain.step, states, outputs)
        system = self if all(reached) and all(outputs) else self.of_part(reached, outputs)
        own = partition(given.outputs, outputs)
        dz, dx, dc = system._pulled(Results(partition(g, reached), own, partition(last, reached)))
        of_initial = partition(reached, self.moves.initial)
        return combine([None] * len(of_initial), of_initial, dz), dx, dc

    def _with_zeros(self, outputs: Given) -> Leaves:
        """The cotangents of all outputs, which are none of the next state."""
        step, length = self.chain.step, self.chain.length
        types = (y.aval for y in step.jaxpr.outvars[step.states :])
        zeros = (jnp.zeros((length, *y.shape), y.dtype) for y in types)
        pairs = zip(outputs, zeros, strict=True)
        return like([zero if y is None else y for y, zero in pairs], self.chain, outputs)

    def _pulled(self, given: Results) -> tuple[Leaves, Leaves, Leaves]:
        program = StepTangents.of(self.chain.step, self.moves, self.adjoint.at_once)
        totals = list(map(jnp.zeros_like, self.moves.of(self.chain)[2]))
        zeros = zip(given.last, self.initial, strict=True)
        start = [zero if x is None else x for x, zero in zeros], totals
        run = self._pulled_in_loop if program.between is None else self._pulled_at_once
        mu, dx, dc = run(program, start, given.states, given.outputs)
        return partition(mu, self.moves.initial), dx, dc

    def _pulled_in_loop(
        self, program: StepTangents, start: Both, g: Given, o: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """Of ``z_0``, of inputs and of captured arrays, to which each step adds."""
        chain = self.chain

        def body(carry: Both, at: Any) -> tuple[Both, Leaves]:
            (mu, totals), (z, inputs, g, o) = carry, at
            known = program.known(z, inputs, chain.captured)
            mu, of_x, of_c = program.pull(known, _with_given(mu, g), o)
            return (mu, add(totals, of_c)), of_x

        steps = self.states, chain.inputs, g, o
        (mu, dc), dx = self._scan(body, start, steps, reverse=True)
        return mu, dx, dc

    def _pulled_at_once(
        self, program: StepTangents, start: Both, g: Given, o: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """The same, of captured arrays those of many steps at once, chunk after chunk."""
        length, size = self.chain.length, self.adjoint.chunk(self.chain)

        def chunk(carry: Both, at: Any) -> tuple[Both, Leaves]:
            (enter, totals), (z, inputs, g, o) = carry, at
            chain = dataclasses.replace(self.chain, inputs=inputs, length=len(z[0]))
            here, places = self._replace(chain=chain, states=z), list[int]()

            def body(mu: Leaves, at: Any) -> Both:
                z, inputs, g, o = at
                known = program.known(z, inputs, chain.captured)
                mu, of_u = program.pull_first(known, _with_given(mu, g), o)
                # Terms of one sum have the same cotangent, which may be that of an output.
                once = list({id(x): x for x in (*o, *of_u)}.values())
                places[:] = [next(i for i, y in enumerate(once) if y is x) for x in of_u]
                return mu, once[len(o) :]

            mu, of_u = here._scan(body, enter, (z, inputs, g, o), reverse=True)
            found = [*o, *of_u]
            of_x, of_c = each(program.pull_last(chain, z))([found[i] for i in places])
            return (mu, add(totals, of_c)), of_x

        steps = self.states, self.chain.inputs, g, o
        if size < length:
            chunk = partial(scan_in_chunks, chunk, length=length, size=size, reverse=True)
        (mu, dc), dx = chunk(self._varying(start, steps), steps)
        return mu, dx, dc

    def _varying(self, carry: Any, xs: Any) -> Any:
        """What a loop carries, varying as all that a step reads."""
        return like(carry, carry, xs, self.chain.captured)

    def _scan(self, body: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
        """The loop of a linear step."""
        axis, unroll = self.chain.axis, self.adjoint.unroll
        run = partial((axis.reversed if reverse else axis).scan, linear=True)
        in_one = not self.adjoint.at_once
        start = self._varying(carry, xs)
        return run(body, start, xs, length=self.chain.length, unroll=unroll, in_one=in_one)


def _with_given(mu: Leaves, g: Given) -> Leaves:
    return [m if x is None else m + x for m, x in zip(mu, g, strict=True)]


def _bound(system: InOrder, tangents: Tangents) -> Results:
    """The tangents of the states and the outputs, as one equation."""
    (moves, *arrays), step, length = system, system.chain.step, system.chain.length
    known, tree = jax.tree.flatten(arrays)
    map_ = LinearMap(partial(_pushed, moves, tree), partial(_pulled, moves, tree))
    shapes = None
    if not varying_axes((known, tangents)):
        last = [abstract(y.aval) for y in step.jaxpr.outvars]
        every = [jax.core.ShapedArray((length, *y.shape), y.dtype) for y in last]
        last = [jax.core.ShapedArray(y.shape, y.dtype) for y in last[: step.states]]
        shapes = Results(every[: step.states], every[step.states :], last)
    return solved(map_, known, tangents, shapes=shapes)


def _pushed(moves: Moves, tree: Any, known: Leaves, tangents: Tangents) -> Results:
    return InOrder(moves, *jax.tree.unflatten(tree, known)).pushed(tangents)


def _pulled(
    moves: Moves, tree: Any, known: Leaves, given: Results
) -> tuple[Leaves, Leaves, Leaves]:
    return InOrder(moves, *jax.tree.unflatten(tree, known)).pulled(given)
