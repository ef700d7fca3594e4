"""Arrays joined to one and split again: where a CPU compiles or writes one faster than many.

XLA compiles equal computations once. The gradient of `jnp.stack` takes row 0, row 1, ... of one
array: slices at different offsets, which are different computations, each compiled for about 10 ms.
So layers in a list are stacked by a primitive whose transpose takes rows at offsets that are the
results of a branch that XLA cannot evaluate: then all slices of one size are equal.
`jax.custom_vjp` would do for gradients, but it has no forward mode.

A loop that is one function reads its many small inputs as one array for each shape and dtype, which
is split in it: see `deeppcr.lower.cpu.limits.MAX_INPUTS`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.interpreters import ad, mlir

from deeppcr.lower.cpu import limits
from deeppcr.lower.variants import is_eager
from deeppcr.programs.calls import Call, with_operands
from depth.jaxprs import bind, run


# jax 0.10.2, 2 cores: 64 layers of 6 arrays, 0.4 s of compiling instead of 7.3 s.
def stack_rows(rows: Sequence[Any]) -> Array:
    """`jnp.stack` on axis 0, of rows of one shape and dtype; its gradient compiles faster."""
    shape = jnp.shape(rows[0])
    pieces = rows if shape else [jnp.reshape(row, 1) for row in rows]
    (joined,) = pieces_p.of(lambda *pieces: [jnp.concatenate(pieces)], *pieces)
    return joined.reshape(len(rows), *shape)


class _Pieces(Call):
    """See `Call`: pieces that are joined, or cut out again; the one is the transpose of the other.

    On a CPU, and where it runs at once, pieces of a size are cut out by equal computations.
    """

    def __init__(self) -> None:
        super().__init__("pieces")
        self.def_impl(self._equally)
        mlir.register_lowering(self, mlir.lower_fun(self._equally, multiple_results=True), "cpu")

    def of(self, f: Callable[..., Any], *operands: Any) -> list[Array]:
        """The equation of a function that joins or cuts."""
        program, constants = with_operands(jax.make_jaxpr(f)(*operands))
        return self.bind(*constants, *operands, call_jaxpr=program)

    def _equally(self, *operands: Any, call_jaxpr: Any) -> list[Array]:
        return run(call_jaxpr, operands, _cut_equally)

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        moving = list(map(ad.instantiate_zeros, tangents))
        return self.bind(*primals, **params), self.bind(*moving, **params)

    _map = Call.map_as_one

    def transposed(self, f: Callable[..., Any], *avals: Any) -> Callable[..., Any]:
        """See `Call`: an equation, too."""
        pull = jax.linear_transpose(f, *avals)
        return lambda cotangents: self.of(lambda *leaves: pull(list(leaves)), *cotangents)


def _cut_equally(equation: Any, operands: list[Any]) -> list[Any]:
    """The results of an equation; the pieces of a split at offsets that XLA does not know."""
    if equation.primitive.name != "split":
        return bind(equation, operands)
    sizes, axis = equation.params["sizes"], equation.params["axis"]

    def offsets() -> list[Any]:
        return list(map(np.int32, accumulate(sizes[:-1], initial=0)))

    is_known = is_eager(operands)
    starts = offsets() if is_known else lax.cond(lax.optimization_barrier(False), offsets, offsets)
    return _cut(operands[0], starts, tuple(sizes), axis)


@partial(jax.jit, static_argnums=(2, 3))
def _cut(array: Array, starts: Sequence[Any], sizes: Sequence[int], axis: int) -> list[Array]:
    cut = partial(lax.dynamic_slice_in_dim, array, axis=axis, allow_negative_indices=False)
    return list(map(cut, starts, sizes))


pieces_p = _Pieces()


def stack_equal(arrays: Sequence[Array], like: Sequence[Any]) -> list[Array]:
    """Arrays ``[L, ...]``, those whose ``like`` are of one type as one ``[L, count, ...]``.

    ``like``: the type of one step of each.
    """
    # On axis 0 first: XLA takes 3 times as long to compile a concatenation of 420 columns as one of
    # rows and its transpose (jax 0.10.2).
    stacked = []
    for group in _group_by_type(like):
        members = [arrays[i] for i in group]
        is_one = len(members) == 1
        stacked.append(members[0] if is_one else jnp.moveaxis(jnp.stack(members), 0, 1))
    return stacked


def from_split(arrays: Sequence[Array], like: Sequence[Any]) -> list[Array]:
    """What `stack_equal` has stacked, of one step."""
    separate = dict[int, Array]()
    for array, group in zip(arrays, _group_by_type(like), strict=True):
        if len(group) > 1:
            rows = lax.split(array, [1] * len(group))
            separate |= zip(group, [lax.squeeze(row, [0]) for row in rows], strict=True)
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
