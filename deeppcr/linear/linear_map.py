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
from itertools import chain, compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe

from deeppcr.arrays.avals import like, varying_axes
from deeppcr.arrays.state import Leaves, add, combine, partition
from deeppcr.programs.calls import Call, Later
from depth.jaxprs import without_constants

Function = Callable[[Leaves, Any], Any]  # of ``known`` arrays and a pytree; it closes over none


class Part(NamedTuple):
    """The linear map of some of the unknowns, which depend on no others.

    Attributes:
        map: of these.
        known: the indices of the arrays that it depends on.
        y: which leaves of ``y``, and of ``b``, are left.
        v: which leaves of ``v`` are left, for each of its lists of leaves.
    """

    map: "LinearMap"
    known: Sequence[int]
    y: Sequence[bool]
    v: Sequence[Sequence[bool]]

    @property
    def operands(self) -> list[bool]:
        """Which leaves of ``(b, v)`` are left."""
        return [*self.y, *chain.from_iterable(self.v)]


@dataclasses.dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear function, which depends on ``known`` arrays.

    Attributes:
        apply: ``(known, (b, v)) -> y``, the solution of ``y = A y + D v + b``; ``b`` is like ``y``.
        transpose: ``(known, g) -> (lam, D^T lam)``.
        product: ``(known, (y, v)) -> A y + D v``. None: all derivatives but the transpose are those
            of the program ``apply``, of any operand and result. The transpose, too, is no equation,
            but a program; it takes None for cotangents that are zero, and may return None for such.
        part: the map of what the cotangents of some leaves of ``y`` reach; None if that is all of
            it. Other cotangents are zero: an array of zeros may meet an infinite derivative.
        precision: jax's default for products, wherever these functions are traced.
    """

    apply: Function
    transpose: Function
    product: Function | None = None
    part: Callable[[Sequence[bool]], Part | None] = lambda _: None
    precision: Any = dataclasses.field(
        default_factory=lambda: jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    )

    def mapped(self, axes: Sequence[int | None], **names: Any) -> "LinearMap":
        """That of examples, on these axes of ``known``, and on axis 0 of all else."""

        def each(f: Function) -> Function:
            return lambda known, x: jax.vmap(f, (list(axes), 0), **names)(known, x)

        def part(given: Sequence[bool]) -> Part | None:
            found = self.part(given)
            return found and found._replace(
                map=found.map.mapped([axes[i] for i in found.known], **names)
            )

        functions = {name: each(getattr(self, name)) for name in ("apply", "transpose", "product")}
        return dataclasses.replace(self, part=part, **functions)


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

    def part(self, read: Sequence[bool]) -> Part | None:
        """See `LinearMap`; ``read``: the results of an equation, of which there may be all."""
        return None if self.is_transposed or all(read) else self.map.part(read)

    def changes(self, along: Callable[..., Any], x: Any, y: Any) -> tuple[Any, Any]:
        """What derivatives in ``known`` add to the operand, and to the result.

        ``along(f)``: the tangent of ``f(known)``.
        """
        product, zeros = self.map.product, jax.tree.map(jnp.zeros_like, (x, y))
        assert product is not None
        if not self.is_transposed:
            (_, v), ((_, none), of_y) = x, zeros
            return (along(lambda known: product(known, (y, v))), none), of_y
        lam, (none, _) = y[0], zeros[1]
        pull = lambda known: jax.linear_transpose(partial(product, known), zeros[1])  # noqa: E731
        of_g, of_v = along(lambda known: pull(known)(lam)[0])
        return of_g, (none, of_v)


def solved(
    map_: LinearMap, known: Leaves, x: Any, is_transposed: bool = False, shapes: Any = None
) -> Any:
    """``map_.apply(known, x)``, or its transpose, differentiable in both.

    ``shapes``: the types of the results, if they are known. Then the program is traced when it is
    read: most derivatives are only transposed.
    """
    x = like(x, known, x)  # as the loop of a solution makes them vary
    f = map_.transpose if is_transposed else map_.apply
    # Of a new function each time, so that jax caches nothing for it.
    trace: Any = jax.make_jaxpr(partial(f), return_shape=True)
    types = jax.tree.map(jax.typeof, (known, x))

    def later() -> Any:
        with jax.default_matmul_precision(map_.precision):
            return trace(*types)[0]

    if shapes is None:
        with jax.default_matmul_precision(map_.precision):
            program, shapes = trace(*types)
    else:
        program = Later(later, jax.tree.leaves(shapes))
    role = _Role(map_, is_transposed, len(known), *map(jax.tree.structure, (x, shapes)))
    leaves = linear_map_p.bind(*known, *jax.tree.leaves(x), call_jaxpr=program, role=role)
    return jax.tree.unflatten(role.y, leaves)


class _Primitive(Call):
    """See `Call`; its derivatives are those of the linear map."""

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        role: _Role = params["role"]
        count = role.known
        moves = [not isinstance(t, ad.Zero) for t in tangents[:count]]
        if any(moves) and role.map.product is None:
            return super()._push(primals, tangents, **params)
        results = self.bind(*primals, **params)
        known, of_x = list(primals[:count]), list(map(ad.instantiate_zeros, tangents[count:]))
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
        known, g = list(operands[: role.known]), list(map(ad.instantiate_zeros, cotangents))
        given = [not isinstance(cotangent, ad.Zero) for cotangent in cotangents]
        if role.map.product is None:
            g = combine([None] * len(g), given, partition(cotangents, given))
            with jax.default_matmul_precision(role.map.precision):
                found = role.map.transpose(known, jax.tree.unflatten(role.y, g))
            pulled = list(chain.from_iterable(found))
        elif part := role.part(given):
            reached, left = [known[i] for i in part.known], part.operands
            found = solved(part.map, reached, partition(g, part.y), is_transposed=True)
            pulled = combine([None] * len(left), left, jax.tree.leaves(found))
        else:
            tree = jax.tree.unflatten(role.y, g)
            pulled = jax.tree.leaves(solved(role.map, known, tree, not role.is_transposed))
        moves = map(ad.is_undefined_primal, operands[role.known :])
        pairs = zip(pulled, moves, strict=True)
        return [None] * role.known + [x if moving else None for x, moving in pairs]

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        role: _Role = params["role"]
        if role.map.product is None:
            return super()._map(operands, axes, names, params)
        known, x = list(operands[: role.known]), list(operands[role.known :])
        x = list(jax.vmap(lambda *leaves: leaves, axes[role.known :], **names)(*x))
        mapped = role.map.mapped(axes[: role.known], **names)
        y = solved(mapped, known, jax.tree.unflatten(role.x, x), role.is_transposed)
        leaves = jax.tree.leaves(y)
        return leaves, [0] * len(leaves)


def _without_unused(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
    """The equation without the results that nobody reads, as in the body of a loop."""
    equation = given[-1]  # since jax 0.12 after others
    role: _Role = equation.params["role"]
    count = role.known
    if not any(used):
        return [False] * len(equation.invars), None
    part = role.part(used)
    if part is None or varying_axes([x.aval for x in equation.invars]):  # of another mesh
        return [True] * len(equation.invars), equation
    b, v = jax.tree.unflatten(role.x, equation.invars[count:])
    known = [equation.invars[i] for i in part.known]
    x = partition(b, part.y), tuple(map(partition, v, part.v))
    avals = jax.tree.map(lambda atom: atom.aval, (known, x))
    program = without_constants(jax.make_jaxpr(partial(solved, part.map))(*avals))
    own = equation.replace(
        invars=[*known, *jax.tree.leaves(x)],
        outvars=partition(equation.outvars, part.y),
        params=program.eqns[-1].params,
    )
    return [*(i in part.known for i in range(count)), *part.operands], own


linear_map_p = _Primitive("linear_map")
pe.dce_rules[linear_map_p] = _without_unused
