"""Derivatives of a chain by loops: the tangents of its states and outputs as one linear function.

    t_l, o_l = T_l (t_{l-1}, dx_l, dc),   t_0 = dz_0,

in one loop, and its transpose, backpropagation, in one loop from the last step to the first. A step
is differentiated once, its outputs included. A `LinearMap` is this function as an equation, whose
transpose is ours. All other derivatives are those of the programs.

`Backpropagation` as an option multiplies the step's derivative with a vector, one step after
another; the gradients of arrays follow at once.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.adjoint.one_kernel import by_kernel, by_steps
from deeppcr.adjoint.tangents import Moves, StepTangents, TangentEquations, Tangents, pullback
from deeppcr.arrays import (
    Leaves,
    add,
    avals_of,
    combine,
    floating,
    like,
    partition,
    varying_axes,
)
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.part import leaves_reached, variables_pulled
from deeppcr.linear.linear_map import LinearMap, Part, solved
from deeppcr.lower import each, even_chunk, kernels_run, scan_in_chunks, steps_in_cache
from depth.counts import nbytes

Pair = tuple[Leaves, Leaves]  # of the states, of the outputs
Cotangents = list[Any]  # cotangents, None for zeros


class Results(NamedTuple):
    """Tangents of a chain, or their cotangents.

    Attributes:
        states: of ``z_1 .. z_L``.
        outputs: of all steps.
        last: of ``z_L``; the cotangents of what is read of it alone.
    """

    states: Cotangents
    outputs: Cotangents
    last: Cotangents


def is_in_order(chain: TracedChain) -> bool:
    """Whether loops run on one device, and no kernels in their place."""
    return chain.axis == LOCAL and not kernels_run()


class InOrder(TangentEquations):
    """The equations of states and outputs, solved by loops; ``adjoint``: a `Backpropagation`."""

    def tangents(self, reached: Sequence[bool], tangents: Tangents) -> Results:
        """Those of all states and outputs; ``reached``: the leaves of a state that have some."""
        step, length = self.chain.step, self.chain.length
        outputs = step.jaxpr.outvars[step.states :]
        leaves, moving = step.outputs_in_state, floating(outputs)
        outside = [leaf is None and moves for leaf, moves in zip(leaves, moving, strict=True)]
        system = self if all(reached) and all(outside) else self.part(reached, outside)
        results = _bound(system, tangents)
        of_outside = iter(results.outputs)
        t = combine(list(map(jnp.zeros_like, self.states)), reached, results.states)
        last = combine(self.initial, reached, results.last)

        def of_output(y: Any, leaf: int | None, moves: bool) -> Any:
            if leaf is not None:
                return t[leaf]
            shape = length, *y.aval.shape
            return next(of_outside) if moves else np.zeros(shape, jax.dtypes.float0)

        return Results(t, list(map(of_output, outputs, leaves, moving)), last)

    def pushed(self, tangents: Tangents) -> Results:
        """The tangents of the states and of the outputs."""
        dz, dx, dc = tangents
        program = StepTangents.of(self.chain.step, self.moves, in_halves=False)

        def body(t: Leaves, at: Any) -> tuple[Leaves, Pair]:
            z, inputs, dx = at
            t, o = program.push(program.primals(z, inputs, self.chain.captured), t, dx, dc)
            return t, (t, o)

        steps = self.states, self.chain.inputs, dx
        last, (t, o) = self._scan(body, self.moves.enter(self.initial, dz), steps)
        return Results(t, o, last)

    def pulled(self, cotangents: Results) -> tuple[Leaves, Leaves, Leaves]:
        """The cotangents of the tangents, of the initial state None where it has none."""
        g, last = cotangents.states, cotangents.last
        states = [x is not None or y is not None for x, y in zip(g, last, strict=True)]
        outputs = [x is not None for x in cotangents.outputs]
        if varying_axes((self.chain, self.states)):  # of another mesh, where no part is traced
            return self._pulled(cotangents._replace(outputs=self._with_zeros(cotangents.outputs)))
        reached = [True] * len(states)
        if not (all(states) and all(outputs)):
            reached = leaves_reached(self.chain.step, states, outputs, variables_pulled)
        system = self if all(reached) and all(outputs) else self.part(reached, outputs)
        o = partition(cotangents.outputs, outputs)
        dz, dx, dc = system._pulled(Results(partition(g, reached), o, partition(last, reached)))
        of_initial = partition(reached, self.moves.initial)
        return combine([None] * len(of_initial), of_initial, dz), dx, dc

    def linear_map(self) -> tuple[LinearMap, Leaves]:
        """Its tangents as one function, and the arrays that it depends on."""
        moves, *rest = self
        arrays, tree = jax.tree.flatten(rest)

        def of(arrays: Leaves) -> InOrder:
            return InOrder(moves, *jax.tree.unflatten(tree, arrays))

        map_ = LinearMap(
            lambda arrays, v: of(arrays).pushed(v),
            lambda arrays, g: of(arrays).pulled(g),
            part=partial(_part, moves, tree),
        )
        return map_, arrays

    def _with_zeros(self, outputs: Cotangents) -> Leaves:
        """The cotangents of all outputs, which are none of the next state."""
        step, length = self.chain.step, self.chain.length
        types = avals_of(step.jaxpr.outvars[step.states :])
        zeros = [jnp.zeros((length, *y.shape), y.dtype) for y in types]
        return like(_filled(outputs, zeros), self.chain, outputs)

    def _pulled(self, cotangents: Results) -> tuple[Leaves, Leaves, Leaves]:
        program = StepTangents.of(self.chain.step, self.moves, self.adjoint.at_once)
        totals = list(map(jnp.zeros_like, self.moves.of(self.chain)[2]))
        start = _filled(cotangents.last, self.initial), totals
        run = self._pulled_in_loop if program.between is None else self._pulled_at_once
        mu, dx, dc = run(program, start, cotangents.states, cotangents.outputs)
        return partition(mu, self.moves.initial), dx, dc

    def _pulled_in_loop(
        self, program: StepTangents, start: Pair, g: Cotangents, o: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """Of ``z_0``, of inputs and of captured arrays, to which each step adds."""
        chain = self.chain

        def body(carry: Pair, at: Any) -> tuple[Pair, Leaves]:
            (mu, totals), (z, inputs, g, o) = carry, at
            primals = program.primals(z, inputs, chain.captured)
            mu, of_x, of_c = program.pull(primals, _added(mu, g), o)
            return (mu, add(totals, of_c)), of_x

        steps = self.states, chain.inputs, g, o
        (mu, dc), dx = self._scan(body, start, steps, reverse=True)
        return mu, dx, dc

    def _pulled_at_once(
        self, program: StepTangents, start: Pair, g: Cotangents, o: Leaves
    ) -> tuple[Leaves, Leaves, Leaves]:
        """The same, of captured arrays those of many steps at once, chunk after chunk."""
        length, size = self.chain.length, self.adjoint.chunk(self.chain)

        def chunk(carry: Pair, at: Any) -> tuple[Pair, Leaves]:
            (enter, totals), (z, inputs, g, o) = carry, at
            chain = dataclasses.replace(self.chain, inputs=inputs, length=len(z[0]))
            part = self._replace(chain=chain, states=z)
            places = list[int]()

            def body(mu: Leaves, at: Any) -> Pair:
                z, inputs, g, o = at
                primals = program.primals(z, inputs, chain.captured)
                mu, of_u = program.pull_first(primals, _added(mu, g), o)
                # Terms of one sum have the same cotangent, which may be that of an output.
                distinct = {id(x): x for x in (*o, *of_u)}
                places[:] = map(list(distinct).index, map(id, of_u))
                return mu, list(distinct.values())[len(o) :]

            mu, of_u = part._scan(body, enter, (z, inputs, g, o), reverse=True)
            distinct = [*o, *of_u]
            of_x, of_c = each(program.pull_last(chain, z))(list(map(distinct.__getitem__, places)))
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
        axis = self.chain.axis.reversed if reverse else self.chain.axis
        return axis.scan(
            body,
            self._varying(carry, xs),
            xs,
            length=self.chain.length,
            unroll=self.adjoint.unroll,
            linear=True,
            in_one=not self.adjoint.at_once,
        )


def _filled(cotangents: Cotangents, zeros: Leaves) -> Leaves:
    return [zero if x is None else x for x, zero in zip(cotangents, zeros, strict=True)]


def _added(mu: Leaves, g: Cotangents) -> Leaves:
    return [m if x is None else m + x for m, x in zip(mu, g, strict=True)]


def _part(moves: Moves, tree: Any, used: Sequence[bool]) -> Part | None:
    """The equations of the states and outputs that cotangents of the ``used`` leaves reach."""
    system = InOrder(moves, *jax.tree.unflatten(tree, range(tree.num_leaves)))
    step, count = system.chain.step, system.chain.step.states
    outputs = list(used[count:-count])
    states = list(map(operator.or_, used[:count], used[-count:]))  # of all steps, or the last alone
    reached = leaves_reached(step, states, outputs, variables_pulled)
    if all(reached) and all(outputs):
        return None
    map_, arrays = system.part(reached, outputs).linear_map()
    return Part(map_, arrays, [*reached, *outputs, *reached], moves.left(reached))


def _bound(system: InOrder, tangents: Tangents) -> Results:
    """The tangents of the states and the outputs, as one equation."""
    map_, arrays = system.linear_map()
    shapes = None
    if not varying_axes((arrays, tangents)):
        step, length = system.chain.step, system.chain.length
        last = [jax.core.ShapedArray(y.shape, y.dtype) for y in avals_of(step.jaxpr.outvars)]
        steps = [y.update(shape=(length, *y.shape)) for y in last]
        shapes = Results(steps[: step.states], steps[step.states :], last[: step.states])
    return solved(map_, arrays, tangents, shapes=shapes)


# -- the option ------------------------------------------------------------------------------------

FEW_CHUNKS = 8  # chunks that gain less than a loop in a loop takes to compile
WRITTEN = 2  # of so many results of a step, one is an array of a chunk; others are kept, or fused


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Backpropagation:
    """An `AdjointSolver` that needs no Jacobian blocks: `deeppcr.lower.loop` of linear steps.

    Attributes:
        at_once: whether the gradients of arrays are those of many steps at once, which takes less
            time where products are large; else each step adds to them, which compiles faster.
        keeps: whether the loop of the states keeps what the derivative reads.
        unroll: the number of steps per trip of its loops, an integer >= 1.
    """

    at_once: bool = True
    keeps: bool = False
    unroll: int = 1

    def of_part(self, chain: TracedChain) -> "Backpropagation":
        """See `AdjointSolver`."""
        return self

    def chunk(self, chain: TracedChain) -> int:
        """See `AdjointSolver`: on a CPU the steps whose values fit into the cache, else all.

        All, too, if the inputs of a step are larger than its values, as weights of its own are: a
        chunk is a copy of its inputs.
        """
        results = chain.step.bytes_of_results // WRITTEN
        inputs = sum(map(nbytes, chain.step.jaxpr.invars[chain.step.states :]))
        most = steps_in_cache(results, chain.captured)
        if inputs >= results or chain.length <= FEW_CHUNKS * most:
            return chain.length
        return even_chunk(chain.length, most)

    def forward(self, chain: TracedChain, states: Leaves, b: Leaves, enter: Leaves) -> Leaves:
        """See `AdjointSolver`."""

        def body(t: Leaves, at: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, b_l = at
            step = partial(chain.step, inputs=inputs, captured=chain.captured)
            pushed = jax.jvp(step, (state,), (t,))[1]
            t = add(b_l, pushed)
            return t, t

        steps = states, chain.inputs, b
        return chain.axis.scan(body, enter, steps, unroll=self.unroll, linear=True)[1]

    def backward(
        self, chain: TracedChain, states: Leaves, g: Leaves, enter: Leaves
    ) -> tuple[Leaves, Leaves]:
        """See `AdjointSolver`."""
        if pulled := by_kernel(by_steps, chain, states, g, enter):
            return pulled

        def body(mu: Leaves, at: tuple[Leaves, Leaves, Leaves]) -> tuple[Leaves, Leaves]:
            state, inputs, g_l = at
            lam = add(g_l, mu)
            step = partial(chain.step, inputs=inputs, captured=chain.captured)
            return pullback(step, state)(lam)[0], lam

        scan = chain.axis.reversed.scan
        steps = states, chain.inputs, g
        mu, lam = scan(body, enter, steps, unroll=self.unroll, linear=True)
        return lam, mu
