"""Linear functions with a transpose of their own: the solutions of linear systems.

``y = A y + D v + b`` has the solution ``y``, linear in ``(b, v)``. Its transpose is another
solution, for cotangents ``g``: ``lam = g + A^T lam``, and ``(lam, D^T lam)``. The derivatives of
both with respect to what A and D are made of take one more solution each,

    y' = A y' + D v' + b' + (A' y + D' v),
    lam' = g' + A^T lam' + A'^T lam,    (D^T lam)' = D^T lam' + D'^T lam,

so they are differentiable to every order. `jax.lax.custom_linear_solve` would do, but it traces the
system, its transpose and both solutions at once, whatever of them is used.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from deeppcr.arrays.avals import like
from deeppcr.arrays.partition import combine
from deeppcr.arrays.state import Leaves, add
from deeppcr.programs.calls import Call

Function = Callable[[Leaves, Any], Any]  # of ``known`` arrays and a pytree; it closes over none


@dataclasses.dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear function, which depends on ``known`` arrays.

    Attributes:
        apply: ``(known, (b, v)) -> y``, the solution of ``y = A y + D v + b``; ``b`` is like ``y``.
        transpose: ``(known, g) -> (lam, D^T lam)``.
        product: ``(known, (y, v)) -> A y + D v``.
        precision: jax's default for products, wherever these functions are traced.
    """

    apply: Function
    transpose: Function
    product: Function
    precision: Any = dataclasses.field(
        default_factory=lambda: jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    )

    def mapped(self, axes: Sequence[int | None], **names: Any) -> "LinearMap":
        """That of examples, on these axes of ``known``, and on axis 0 of all else."""

        def each(f: Function) -> Function:
            return lambda known, x: jax.vmap(f, (list(axes), 0), **names)(known, x)

        functions = {name: each(getattr(self, name)) for name in ("apply", "transpose", "product")}
        return dataclasses.replace(self, **functions)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Role:
    """The map of an equation or its transpose, and the structures of its operand and its result."""

    map: LinearMap
    is_transposed: bool
    known: int
    x: Any
    y: Any

    def __repr__(self) -> str:
        return "transposed" if self.is_transposed else "direct"

    def changes(self, along: Callable[..., Any], x: Any, y: Any) -> tuple[Any, Any]:
        """What derivatives in ``known`` add to the operand, and to the result.

        ``along(f)``: the tangent of ``f(known)``.
        """
        product, zeros = self.map.product, jax.tree.map(jnp.zeros_like, (x, y))
        if not self.is_transposed:
            (_, v), ((_, none), of_y) = x, zeros
            return (along(lambda known: product(known, (y, v))), none), of_y
        lam, (none, _) = y[0], zeros[1]
        pull = lambda known: jax.linear_transpose(partial(product, known), zeros[1])  # noqa: E731
        of_g, of_v = along(lambda known: pull(known)(lam)[0])
        return of_g, (none, of_v)


def solved(map_: LinearMap, known: Leaves, x: Any, is_transposed: bool = False) -> Any:
    """``map_.apply(known, x)``, or its transpose, differentiable in both."""
    x = like(x, known, x)  # as the loop of a solution makes them vary
    f = map_.transpose if is_transposed else map_.apply
    # Of a new function each time, so that jax caches nothing for it.
    with jax.default_matmul_precision(map_.precision):
        closed, y = jax.make_jaxpr(partial(f), return_shape=True)(known, x)
    role = _Role(map_, is_transposed, len(known), *map(jax.tree.structure, (x, y)))
    leaves = linear_map_p.bind(*known, *jax.tree.leaves(x), call_jaxpr=closed, role=role)
    return jax.tree.unflatten(role.y, leaves)


class _Primitive(Call):
    """See `Call`; its derivatives are those of the linear map."""

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        role: _Role = params["role"]
        results, count = self.bind(*primals, **params), role.known
        known, of_x = list(primals[:count]), list(map(ad.instantiate_zeros, tangents[count:]))
        moves = [not isinstance(t, ad.Zero) for t in tangents[:count]]
        if not any(moves):
            return results, self.bind(*known, *of_x, **params)

        def along(f: Callable[[Leaves], Any]) -> Any:
            moved = lambda *leaves: f(combine(known, moves, leaves))  # noqa: E731
            both = tuple(compress(known, moves)), tuple(compress(tangents, moves))
            return jax.jvp(moved, *both)[1]

        x, y = jax.tree.unflatten(role.x, primals[count:]), jax.tree.unflatten(role.y, results)
        with jax.default_matmul_precision(role.map.precision):
            more_x, more_y = map(jax.tree.leaves, role.changes(along, x, y))
        of_y = self.bind(*known, *add(of_x, more_x), **params)
        return results, add(of_y, more_y)

    def _transpose(self, cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
        role: _Role = params["role"]
        g = jax.tree.unflatten(role.y, list(map(ad.instantiate_zeros, cotangents)))
        found = solved(role.map, list(operands[: role.known]), g, not role.is_transposed)
        moves = map(ad.is_undefined_primal, operands[role.known :])
        pairs = zip(jax.tree.leaves(found), moves, strict=True)
        return [None] * role.known + [x if moving else None for x, moving in pairs]

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        role: _Role = params["role"]
        known, x = list(operands[: role.known]), list(operands[role.known :])
        x = list(jax.vmap(lambda *leaves: leaves, axes[role.known :], **names)(*x))
        mapped = role.map.mapped(axes[: role.known], **names)
        y = solved(mapped, known, jax.tree.unflatten(role.x, x), role.is_transposed)
        leaves = jax.tree.leaves(y)
        return leaves, [0] * len(leaves)


linear_map_p = _Primitive("linear_map")
