"""Derivatives of a chain by loops: the tangents of its states and outputs as one linear map.

    t_l, o_l = T_l (t_{l-1}, dx_l, dc) + (b_l, d_l),   t_0 = dz_0,

in one loop, and the transpose in one loop from the last step to the first. A step is differentiated
once, its outputs included, whatever is read of them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.moves import Moves, Tangents
from deeppcr.adjoint.tangents import StepTangents
from deeppcr.arrays.partition import combine, floating, partition, zero_tangent
from deeppcr.arrays.state import Leaves, add
from deeppcr.axis import LOCAL
from deeppcr.chain.chain import TracedChain
from deeppcr.chain.part import leaves_pulled, part
from deeppcr.linear.linear_map import LinearMap, Part, solved
from deeppcr.lower import each, kernels_run, scan_in_chunks

Both = tuple[Leaves, Leaves]  # of the states, of the outputs


def is_in_order(adjoint: Any, chain: TracedChain) -> bool:
    """Whether loops on one device, and no kernels, compute the derivatives."""
    return isinstance(adjoint, Backpropagation) and chain.axis == LOCAL and not kernels_run()


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

    def tangents(self, reached: Sequence[bool], tangents: Tangents) -> Both:
        """Those of all states and of all outputs; ``reached``: the leaves that have tangents."""
        step, length = self.chain.step, self.chain.length
        outputs, same = step.jaxpr.outvars[step.states :], step.outputs_in_state
        moving = zip(same, floating(outputs), strict=True)
        own = [leaf is None and is_floating for leaf, is_floating in moving]
        system = self if all(reached) and all(own) else self.of_part(reached, own)
        zeros = [jnp.zeros((length, *y.aval.shape), y.aval.dtype) for y in partition(outputs, own)]
        b = [*(jnp.zeros_like(z) for z in system.states), *zeros]
        found = solved(*system.linear_map(), (b, tangents))
        count, of_own = sum(reached), iter(found[sum(reached) :])
        t = combine([jnp.zeros_like(z) for z in self.states], reached, found[:count])

        def of_output(y: Any, leaf: int | None, is_own: bool) -> Any:
            if is_own:
                return next(of_own)
            if leaf is not None:
                return t[leaf]
            return zero_tangent(jax.ShapeDtypeStruct((length, *y.aval.shape), y.aval.dtype))

        return t, [of_output(*each) for each in zip(outputs, same, own, strict=True)]

    def of_part(self, states: Sequence[bool], outputs: Sequence[bool]) -> Self:
        """Those of some leaves of the state, and of some outputs; arrays may be any objects."""
        chain = part(self.chain, states, outputs, self.states)
        more = len(chain.inputs) - len(self.chain.inputs)
        return self._replace(
            moves=self.moves.of_part(states, more),
            chain=chain,
            states=partition(self.states, states),
        )

    def linear_map(self) -> tuple[LinearMap, Leaves]:
        """The map from ``(b, (dz, dx, dc))``, and the arrays that it depends on."""
        known, tree = jax.tree.flatten((self.chain, self.states))
        of = self.moves, tree, self.adjoint
        functions = (partial(f, *of) for f in (_apply, _transposed, _product, _part))
        return LinearMap(*functions), known

    @classmethod
    def of(cls, moves: Moves, tree: Any, adjoint: Backpropagation, known: Sequence[Any]) -> Self:
        """Of a chain and its states, of this structure and with these arrays."""
        return cls(moves, *jax.tree.unflatten(tree, known), adjoint)

    @property
    def initial(self) -> Leaves:
        """Zeros, shaped like the initial state."""
        return [jnp.zeros(z.shape[1:], z.dtype) for z in self.states]

    def scan(self, body: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False) -> Any:
        """The loop of a linear step."""
        axis, unroll = self.chain.axis, self.adjoint.unroll
        run = (axis.reversed if reverse else axis).scan
        return run(body, carry, xs, length=self.chain.length, unroll=unroll, linear=True)


def _apply(
    moves: Moves, tree: Any, adjoint: Backpropagation, known: Leaves, x: tuple[Leaves, Tangents]
) -> Leaves:
    system, (b, (dz, dx, dc)) = InOrder.of(moves, tree, adjoint, known), x
    chain, count = system.chain, len(system.states)
    tangents = StepTangents.of(chain.step, moves, in_halves=False)

    def body(t: Leaves, at: Any) -> tuple[Leaves, Both]:
        z, inputs, b, dx = at
        primals = tangents.known(z, inputs, chain.captured)
        t, o = map(add, (b[:count], b[count:]), tangents.push(primals, t, dx, dc))
        return t, (t, o)

    steps = system.states, chain.inputs, b, dx
    t, o = system.scan(body, moves.enter(system.initial, dz), steps)[1]
    return [*t, *o]


def _transposed(
    moves: Moves, tree: Any, adjoint: Backpropagation, known: Leaves, g: Leaves
) -> tuple[Leaves, Tangents]:
    system = InOrder.of(moves, tree, adjoint, known)
    tangents = StepTangents.of(system.chain.step, moves, adjoint.at_once)
    pull = _pulled_at_once if tangents.halves else _pulled
    count = len(system.states)
    lam, enter, from_x, from_c = pull(system, tangents, g[:count], g[count:])
    return [*lam, *g[count:]], (partition(enter, moves.initial), from_x, from_c)


def _pulled(
    system: InOrder, tangents: StepTangents, g: Leaves, o: Leaves
) -> tuple[Leaves, Leaves, Leaves, Leaves]:
    """The adjoint states, and the cotangents of what drives the tangents, in one loop."""
    chain = system.chain

    def body(carry: Both, at: Any) -> tuple[Both, Both]:
        (mu, totals), (z, inputs, g, o) = carry, at
        lam, primals = add(g, mu), tangents.known(z, inputs, chain.captured)
        mu, from_x, from_c = tangents.pull(primals, lam, o)
        return (mu, add(totals, from_c)), (lam, from_x)

    totals = list(map(jnp.zeros_like, system.moves.of(chain)[2]))
    steps = system.states, chain.inputs, g, o
    (mu, from_c), (lam, from_x) = system.scan(body, (system.initial, totals), steps, reverse=True)
    return lam, mu, from_x, from_c


def _pulled_at_once(
    system: InOrder, tangents: StepTangents, g: Leaves, o: Leaves
) -> tuple[Leaves, Leaves, Leaves, Leaves]:
    """The same, the cotangents of arrays for many steps at once, chunk after chunk."""
    length, size = system.chain.length, system.adjoint.chunk(system.chain)

    def chunk(carry: Both, at: Any) -> tuple[Both, Both]:
        (enter, totals), (z, inputs, g, o) = carry, at
        chain = dataclasses.replace(system.chain, inputs=inputs, length=len(z[0]))
        places: list[Any] = []

        def body(mu: Leaves, at: Any) -> tuple[Leaves, Both]:
            z, inputs, g, o = at
            lam, primals = add(g, mu), tangents.known(z, inputs, chain.captured)
            mu, of_u = tangents.pull_first(primals, lam, o)
            # Terms of one sum have the same cotangent; and one of an output may be there already.
            there = {id(x): i for i, x in enumerate(o)}
            once = {id(x): x for x in of_u if id(x) not in there}
            count = len(o)
            places[:] = [
                there[id(x)] if id(x) in there else count + list(once).index(id(x)) for x in of_u
            ]
            return mu, (lam, list(once.values()))

        here = system._replace(chain=chain, states=z)
        mu, (lam, of_u) = here.scan(body, enter, (z, inputs, g, o), reverse=True)
        found = [*o, *of_u]
        from_x, from_c = each(tangents.pull_last(chain, z))([found[i] for i in places])
        return (mu, add(totals, from_c)), (lam, from_x)

    start = system.initial, list(map(jnp.zeros_like, system.moves.of(system.chain)[2]))
    steps = system.states, system.chain.inputs, g, o
    if size < length:
        chunk = partial(scan_in_chunks, chunk, length=length, size=size, reverse=True)
    (mu, from_c), (lam, from_x) = chunk(start, steps)
    return lam, mu, from_x, from_c


def _product(
    moves: Moves, tree: Any, adjoint: Backpropagation, known: Leaves, x: tuple[Leaves, Tangents]
) -> Leaves:
    system, (y, (dz, dx, dc)) = InOrder.of(moves, tree, adjoint, known), x
    chain = system.chain
    starts = chain.before(moves.enter(system.initial, dz), y[: len(system.states)])

    def steps(z: Leaves, x: Leaves, c: Leaves) -> Leaves:
        return moves.put(chain, x, c).everything(z)

    primals = system.states, *moves.of(chain)[1:]
    found: Leaves = jax.jvp(steps, primals, (starts, dx, dc))[1]
    return found


def _part(
    moves: Moves, tree: Any, adjoint: Backpropagation, given: Sequence[bool]
) -> Part | None:
    system = InOrder.of(moves, tree, adjoint, range(tree.num_leaves))
    count = len(system.states)
    states, outputs = given[:count], given[count:]
    reached = leaves_pulled(system.chain.step, states, outputs)
    if all(reached) and all(outputs):
        return None
    map_, known = system.of_part(reached, outputs).linear_map()
    of_arrays = ([True] * sum(moving) for moving in (moves.inputs, moves.captured))
    return Part(map_, known, [*reached, *outputs], [partition(reached, moves.initial), *of_arrays])
