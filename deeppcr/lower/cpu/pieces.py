"""Arrays joined to one and split again: where a CPU compiles or writes one faster than many.

XLA compiles equal computations once. The gradient of `jnp.stack` takes row 0, row 1, ... of one
array: slices at different offsets, which are different computations, each compiled for about 10 ms.
So layers in a list are stacked by a primitive whose transpose takes rows at offsets that are the
results of a branch that XLA cannot evaluate: then all slices of one size are equal.
`jax.custom_vjp` would do for gradients, but it has no forward mode.

A loop writes every array by a kernel of its own, and XLA hands the kernels of a trip to its threads
if they are more than eight. So the loop of a derivative writes its small results as one array for
each shape and dtype, which is split after the loop.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, mlir

from deeppcr.arrays.avals import abstract_avals
from deeppcr.arrays.state import Leaves
from deeppcr.lower.cpu import limits
from deeppcr.lower.steps import Loop, Operands
from deeppcr.programs.calls import Call, is_jit_disabled
from depth.jaxprs import bind, interpret

Sizes = tuple[int, ...]  # of the pieces


# jax 0.10.2, 2 cores: 64 layers of 6 arrays, 0.4 s of compiling instead of 7.3 s.
def stack_rows(rows: Sequence[Any]) -> Array:
    """`jnp.stack` on axis 0, of rows of one shape and dtype; its gradient compiles faster."""
    shape = jnp.shape(rows[0])
    joined = join(rows if shape else [jnp.reshape(row, 1) for row in rows])
    return joined.reshape(len(rows), *shape)


def join(pieces: Sequence[Any]) -> Array:
    """`jnp.concatenate` on axis 0, of pieces ``[n, ...]`` of one dtype."""
    return _bind(pieces, tuple(map(len, pieces)), joins=True)[0]


def split(array: Any, sizes: Sequence[int]) -> list[Array]:
    """`jax.lax.split` on axis 0."""
    return _bind([array], tuple(sizes), joins=False)


@partial(jax.jit, static_argnames="sizes")
def _join(*pieces: Any, sizes: Sizes) -> list[Array]:
    return [jnp.concatenate(pieces)]


@partial(jax.jit, static_argnames="sizes")
def _split(array: Any, *, sizes: Sizes) -> list[Array]:
    return list(lax.split(array, sizes))


def _split_equally(array: Any, sizes: Sizes) -> list[Array]:
    """`_split`, by equal computations."""

    def offsets() -> list[Any]:
        return [np.int32(n) for n in accumulate(sizes[:-1], initial=0)]

    starts = lax.cond(lax.optimization_barrier(False), offsets, offsets)
    return [
        lax.dynamic_slice_in_dim(array, start, size, allow_negative_indices=False)
        for start, size in zip(starts, sizes, strict=True)
    ]


def _bind(operands: Sequence[Any], sizes: Sizes, joins: bool) -> list[Array]:
    """The equation, with the program that it stands for, by which others read it."""
    program = _join if joins else _split
    jaxpr = program.trace(*operands, sizes=sizes).jaxpr
    return pieces_p.bind(*operands, sizes=sizes, joins=joins, call_jaxpr=jaxpr)


_run = jax.jit(_bind, static_argnums=(1, 2))


class _Pieces(Call):
    """See `Call`: joins pieces, or cuts them out again; the one is the transpose of the other.

    Parameters are the ``sizes`` of the pieces, and whether it ``joins`` them.
    """

    def __init__(self) -> None:
        super().__init__("pieces")
        self.def_impl(self._eagerly)
        mlir.register_lowering(self, mlir.lower_fun(self._on_a_cpu, multiple_results=True), "cpu")

    def _on_a_cpu(self, *operands: Any, sizes: Sizes, joins: bool, **_: Any) -> list[Array]:
        return _join(*operands, sizes=sizes) if joins else _split_equally(operands[0], sizes)

    def _eagerly(self, *operands: Any, sizes: Sizes, joins: bool, call_jaxpr: Any) -> list[Array]:
        if is_jit_disabled():  # `_run` would call this
            return self.run(*operands, call_jaxpr=call_jaxpr)
        return _run(list(operands), sizes, joins)

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        sizes, joins = params["sizes"], params["joins"]
        values = _bind(primals, sizes, joins)
        if all(isinstance(t, ad.Zero) for t in tangents):
            return values, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in values]
        return values, _bind(list(map(ad.instantiate_zeros, tangents)), sizes, joins)

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        """See `Call`; the examples are on axis 1: axis 0 is that of the pieces."""
        mapped = jax.vmap(lambda *arrays: arrays, axes, 1, **names)(*operands)
        results = _bind(mapped, params["sizes"], params["joins"])
        return results, [1] * len(results)

    def _transpose(self, cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
        cotangents = list(map(ad.instantiate_zeros, cotangents))
        pulled = _bind(cotangents, params["sizes"], not params["joins"])
        pairs = zip(pulled, operands, strict=True)
        return [x if ad.is_undefined_primal(operand) else None for x, operand in pairs]


pieces_p = _Pieces()


# jax 0.10.2, 2 cores, a step of the adjoint of an LSTM: 0.4 of the time for states of 8 to 64
# entries, 0.8 for 128, no gain from 256 entries on.
def results_stacked(loop: Loop, operands: Operands) -> tuple[Loop, Operands]:
    """The loop of a derivative, whose small results are one array of each shape and dtype."""
    ys = abstract_avals(loop.outputs)
    if not loop.kind.linear or len(_group_by_type(ys)) == len(ys):
        return loop, operands

    def step(values: Leaves) -> Leaves:
        results = interpret(
            loop.program, loop.program.environment(values), loop.program.outvars, bind
        )
        return [*results[: loop.states], *stack_equal(results[loop.states :], ys)]

    new, operands = loop.retraced(operands, step)
    return new._replace(after=lambda arrays: loop.after(from_split(arrays, ys, 1))), operands


def stack_equal(arrays: Sequence[Array], like: Sequence[Any], axis: int = 0) -> list[Array]:
    """Those whose ``like`` are of one shape and dtype stacked on a new ``axis``, and all others."""
    # On axis 0 first: XLA takes 3 times as long to compile a concatenation of 420 columns as one of
    # rows and its transpose (jax 0.10.2).
    stacked = []
    for group in _group_by_type(like):
        members = [arrays[i] for i in group]
        is_one = len(members) == 1
        stacked.append(members[0] if is_one else jnp.moveaxis(jnp.stack(members), 0, axis))
    return stacked


def from_split(arrays: Sequence[Array], like: Sequence[Any], axis: int = 0) -> list[Array]:
    """What `stack_equal` has stacked."""
    separate = dict[int, Array]()
    for array, group in zip(arrays, _group_by_type(like), strict=True):
        if len(group) > 1:
            rows = lax.split(array, [1] * len(group), axis)
            separate |= zip(group, [lax.squeeze(row, [axis]) for row in rows], strict=True)
        else:
            separate[group[0]] = array
    return [separate[i] for i in range(len(like))]


def _group_by_type(arrays: Sequence[Any]) -> list[list[int]]:
    """The indices of arrays that belong together."""
    groups: dict[object, list[int]] = {}
    for i, x in enumerate(arrays):
        is_small = math.prod(x.shape) <= limits.MAX_STACKED
        groups.setdefault((x.shape, x.dtype) if is_small else i, []).append(i)
    return list(groups.values())
