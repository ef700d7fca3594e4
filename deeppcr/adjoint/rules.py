"""Derivatives of a chain: its tangent equations as one linear system, and backpropagation as the transpose of its solution.

A chain ``z_l = f(z_{l-1}, x_l; c)`` moved by ``dz_0``, ``dx``, ``dc`` moves by the solution of the linear recurrence

    t_l = A_l t_{l-1} + B_l dx_l + C_l dc,    t_0 = dz_0,      A = df/dz,  B = df/dx,  C = df/dc,

whichever way its states were found. Write ``v = (dz_0, dx, dc)``; then ``(t, v)`` solves the square linear system

    [ M  -D ] [ t ]   [ 0 ]
    [ 0   I ] [ v ] = [ v ],    M = I - (A_l below the diagonal),  D v = what the second and third term say.

Its transpose, for cotangents ``g`` of the states, is the adjoint chain and then one batched vector-Jacobian product,

    lam_l = g_l + A_{l+1}^T lam_{l+1},      D^T lam = (A_1^T lam_1, (B_l^T lam_l)_l, sum_l C_l^T lam_l),

which is backpropagation: no Newton, one solve, and all parameter gradients at once. `jax.lax.custom_linear_solve` is told just
this, so forward mode, reverse mode and every mixture of them are one rule; what it keeps from the forward pass is the trajectory,
and no Jacobian.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from deeppcr.across import Across
from deeppcr.adjoint.step_by_step import Propagation
from deeppcr.chain import Steps
from deeppcr.platforms import DEFAULT, by_platform
from deeppcr.rewrites.plain_sums import with_plain_sums
from deeppcr.rewrites.small_products import write_out
from deeppcr.sequential import every_step
from deeppcr.solution import Result, Run, Solve, Stats
from deeppcr.state import Leaves, StateLayout, add
from deeppcr.step import Step


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Autodiff:
    """jax's own derivatives of the sequential program, which is run again for them.

    The one way for steps with a `jax.custom_vjp` in them: such a rule need not be linear (clipping of gradients is the example in
    jax's documentation), and then it has to be applied as the sequential program applies it.

    Attributes:
        with_states: whether the states, too, are taken from that run, so that there is no other. A rule that is not linear needs
            it: in second derivatives, cotangents of the states and of their tangents have to meet in one run, to be clipped as
            one sum.
        with_stats: whether the method runs, too, to say how it went.
    """

    with_states: bool = False
    with_stats: bool = False

    def push(
        self, steps: Steps, initial: Leaves, moved: "_Moved"
    ) -> tuple[tuple[Leaves, Leaves], tuple[Leaves, Leaves]]:
        """The states and the outputs, and their tangents."""

        def program(z: Leaves, x: Leaves, c: Leaves) -> tuple[Leaves, Leaves]:
            return every_step(moved.put(steps, x, c), moved.initial.put(initial, z), write_out)

        primals = (
            moved.initial.of(initial),
            moved.inputs.of(steps.inputs),
            moved.captured.of(steps.captured),
        )
        pushed: tuple[tuple[Leaves, Leaves], tuple[Leaves, Leaves]] = jax.jvp(
            program, primals, moved.tangents
        )
        return pushed


Way = Propagation | Autodiff
"""How derivatives are found."""

Choose = Callable[[], Mapping[str, Way]]
"""What to do on which platform, as `by_platform` takes it: asked only once a derivative is wanted."""


def differentiable(
    run: Solve, step: Step, layout: StateLayout, length: int, across: Across, choose: Choose
) -> Callable[[Leaves, Leaves, Leaves, Any, Way | None], Run]:
    """Give ``run(steps, initial, operands)`` the derivatives of the chain that it solves.

    Returns:
        ``(initial, inputs, captured, operands, adjoint) -> Run``, differentiable in the first three, to every order. ``adjoint``
        None: as ``choose`` says.
    """

    def steps_of(inputs: Leaves, captured: Leaves) -> Steps:
        return Steps(step, layout, inputs, captured, length, across=across)

    @jax.custom_jvp
    def solve(
        initial: Leaves, inputs: Leaves, captured: Leaves, operands: Any, _: Way | None
    ) -> Run:
        return run(steps_of(inputs, captured), initial, operands)

    def rule(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Run, Run]:
        initial, inputs, captured, operands, adjoint = primals
        moved = _Moved(*map(_split, primals[:3], tangents[:3]))

        def push(
            way: Way,
            initial: Leaves,
            inputs: Leaves,
            captured: Leaves,
            tangents: tuple[Leaves, Leaves, Leaves],
        ) -> tuple[Run, Leaves, Leaves]:
            steps, here = steps_of(inputs, captured), moved.with_tangents(tangents)
            if isinstance(way, Autodiff):
                (states, outputs), (t, by_outputs) = way.push(steps, initial, here)
                if not way.with_states:
                    return solve(*primals), t, by_outputs
                if way.with_stats:
                    return (
                        dataclasses.replace(solve(*primals), trajectory=states, outputs=outputs),
                        t,
                        by_outputs,
                    )
                stats = Stats.of_sequential(length, layout.dtype)
                return Run(states, outputs, stats, jnp.int32(Result.CONVERGED)), t, by_outputs
            result = solve(initial, inputs, captured, operands, adjoint)
            return result, *_push(steps, initial, here, result.trajectory, way)

        ways = choose() if adjoint is None else {DEFAULT: adjoint}
        pushes = {platform: partial(push, way) for platform, way in ways.items()}
        result, t, by_outputs = by_platform(pushes, initial, inputs, captured, moved.tangents)
        fixed = jax.tree.map(_zero_tangent, (result.stats, result.result))
        return result, Run(t, by_outputs, *fixed)

    solve.defjvp(rule, symbolic_zeros=True)
    return solve


def _push(
    steps: Steps, initial: Leaves, moved: "_Moved", trajectory: Leaves, adjoint: Propagation
) -> tuple[Leaves, Leaves]:
    """The tangents of the states and of the outputs, at a known trajectory."""
    states = steps.before(initial, trajectory)
    t = _tangents(steps, states, moved, adjoint)

    def outputs(z: Leaves, x: Leaves, c: Leaves, after: Leaves) -> Leaves:
        return moved.put(steps, x, c).outputs(z, after)

    starts = steps.before(moved.enter(initial, moved.initial.tangents), t)
    _, by_outputs = jax.jvp(
        outputs,
        (states, moved.inputs.of(steps.inputs), moved.captured.of(steps.captured), trajectory),
        (starts, moved.inputs.tangents, moved.captured.tangents, t),
    )
    return t, by_outputs


@dataclasses.dataclass(frozen=True)
class _Part:
    """Which leaves of a list are differentiated, and their tangents."""

    mask: tuple[bool, ...]
    tangents: Leaves

    def of(self, leaves: Leaves) -> Leaves:
        """Those among ``leaves``."""
        return [leaf for leaf, moves in zip(leaves, self.mask, strict=True) if moves]

    def put(self, leaves: Leaves, moving: Leaves) -> Leaves:
        """``leaves`` with ``moving`` in their places."""
        rest = iter(moving)
        return [
            next(rest) if moves else leaf for leaf, moves in zip(leaves, self.mask, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class _Moved:
    """What of a chain is differentiated: the ``v`` of the linear system."""

    initial: _Part
    inputs: _Part
    captured: _Part

    @property
    def tangents(self) -> tuple[Leaves, Leaves, Leaves]:
        """``(dz_0, dx, dc)``."""
        return self.initial.tangents, self.inputs.tangents, self.captured.tangents

    def with_tangents(self, tangents: tuple[Leaves, Leaves, Leaves]) -> "_Moved":
        """The same parts, moved otherwise."""
        parts = zip((self.initial, self.inputs, self.captured), tangents, strict=True)
        return _Moved(*(_Part(part.mask, t) for part, t in parts))

    def put(self, steps: Steps, x: Leaves, c: Leaves) -> Steps:
        """The steps with ``x`` and ``c`` in the place of what moves in them."""
        inputs, captured = self.inputs.put(steps.inputs, x), self.captured.put(steps.captured, c)
        return dataclasses.replace(steps, inputs=inputs, captured=captured)

    def enter(self, like: Leaves, dz: Leaves) -> Leaves:
        """The tangent of the initial state: ``dz``, and zero where it does not move."""
        return self.initial.put([jnp.zeros_like(z) for z in like], dz)


def _tangents(steps: Steps, states: Leaves, moved: _Moved, adjoint: Propagation) -> Leaves:
    """The tangents ``t_1 .. t_L`` of the trajectory, as the solution of the linear system above."""
    length, size = steps.length, adjoint.stretch(steps)
    initial = [jnp.zeros(z.shape[1:], z.dtype) for z in states]
    places = jnp.arange(length, dtype=jnp.int32)

    def part_of(
        places: Array, inputs: Leaves
    ) -> tuple[Steps, Callable[..., Leaves], Leaves, Leaves]:
        here = dataclasses.replace(steps, inputs=inputs, length=len(places), first=places[0])
        return (
            here,
            lambda z, x, c: moved.put(here, x, c)(z),
            moved.inputs.of(inputs),
            moved.captured.of(here.captured),
        )

    def system(unknown: Any) -> Any:
        t, v = unknown
        dz, dx, dc = v
        _, f, x, c = part_of(places, steps.inputs)
        pushed = jax.jvp(f, (states, x, c), (steps.before(moved.enter(initial, dz), t), dx, dc))[1]
        one = 1 + lax.pad(_nothing_of((states, x, c)), np.float32(0), [(0, 1, 0)])[0]
        left = [a - b for a, b in zip(t, pushed, strict=True)], v
        return jax.tree.map(lambda leaf: leaf * one.astype(leaf.dtype), left)

    def solve(_: Any, right: Any) -> Any:
        b, (dz, dx, dc) = right

        def stretch(enter: Leaves, part: Any) -> tuple[Leaves, Leaves]:
            places, z, inputs, b, dx = part
            here, f, x, c = part_of(places, inputs)
            pushed = jax.jvp(lambda x, c: f(z, x, c), (x, c), (dx, dc))[1]
            t = adjoint.forward(here, z, add(b, pushed), enter)
            return [leaf[-1] for leaf in t], t

        _, t = _in_stretches(
            stretch, moved.enter(initial, dz), (places, states, steps.inputs, b, dx), length, size
        )
        return t, (dz, dx, dc)

    def transpose_solve(_: Any, right: Any) -> Any:
        g, (by_initial, by_inputs, by_captured) = right

        def stretch(
            carry: tuple[Leaves, Leaves], part: Any
        ) -> tuple[tuple[Leaves, Leaves], tuple[Leaves, Leaves]]:
            enter, totals = carry
            places, z, inputs, g = part
            here, f, x, c = part_of(places, inputs)
            lam, leave = adjoint.backward(here, z, g, enter)
            _, pull = jax.vjp(lambda x, c: f(z, x, c), x, c)
            from_x, from_c = with_plain_sums(pull)(lam)
            return (leave, add(totals, from_c)), (lam, from_x)

        begin = ([jnp.zeros_like(z) for z in initial], by_captured)
        parts = (places, states, steps.inputs, g)
        (leave, by_captured), (lam, from_x) = _in_stretches(
            stretch, begin, parts, length, size, reverse=True
        )
        return lam, (add(by_initial, moved.initial.of(leave)), add(by_inputs, from_x), by_captured)

    nothing = _nothing_of(moved.tangents)
    zeros = [_zeros_of(nothing, z) for z in states]
    v = jax.tree.map(lambda leaf: leaf + _zeros_of(nothing, leaf), moved.tangents)
    t: Leaves
    t, _ = lax.custom_linear_solve(system, (zeros, v), solve, transpose_solve)
    return t


def _in_stretches(
    f: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    parts: Any,
    length: int,
    size: int,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan` over stretches of ``size`` steps; ``f`` takes a whole stretch, and a shorter one at the end if need be."""
    if size >= length:
        return f(carry, parts)
    count, rest = divmod(length, size)
    whole = jax.tree.map(lambda x: x[: count * size].reshape((count, size, *x.shape[1:])), parts)
    tail = jax.tree.map(lambda x: x[count * size :], parts)
    results = []
    if rest and reverse:
        carry, result = f(carry, tail)
        results.append(result)
    carry, result = lax.scan(f, carry, whole, reverse=reverse)
    results.insert(0, jax.tree.map(lambda y: y.reshape((count * size, *y.shape[2:])), result))
    if rest and not reverse:
        carry, result = f(carry, tail)
        results.append(result)
    return carry, jax.tree.map(lambda *ys: jnp.concatenate(ys), *results)


def _split(leaves: Sequence[Any], tangents: Sequence[Any]) -> _Part:
    moves = tuple(
        not isinstance(t, SymbolicZero) and getattr(t, "dtype", None) != jax.dtypes.float0
        for t in tangents
    )
    moving = [(z, t) for z, t, is_moved in zip(leaves, tangents, moves, strict=True) if is_moved]
    return _Part(
        moves, [jnp.asarray(t, z.dtype) for z, t in moving]
    )  # under jit a tangent may be a number, or weakly typed


def _zero_tangent(x: Array) -> Any:
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return jnp.zeros_like(x)
    return np.zeros(x.shape, jax.dtypes.float0)


def _nothing_of(tree: Any) -> Array:
    """An array of no entries that depends on every floating leaf.

    Transposing `jax.lax.custom_linear_solve` wants all of its right-hand side to depend on what is transposed, none of it to be
    constant. Where a part does not, it is made to depend on nothing of it, which costs nothing.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.concatenate([leaf.reshape(-1)[:0].astype(np.float32) for leaf in leaves])


def _zeros_of(nothing: Array, like: Array) -> Array:
    """Zeros, shaped like ``like``, that depend on ``nothing``."""
    return lax.pad(
        nothing.astype(like.dtype), jnp.zeros((), like.dtype), [(0, like.size, 0)]
    ).reshape(like.shape)
