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

from deeppcr.arrays import Leaves, add, avals_of, combine, like, partition, varying_axes
from deeppcr.programs.calls import Call, Later, nonzero
from depth.jaxprs import without_constants

MapFunction = Callable[[Leaves, Any], Any]  # of arrays and a pytree; it closes over no array


class Part(NamedTuple):
    """The linear map of some of the unknowns, which depend on no others.

    Attributes:
        map: of these.
        arrays: the indices of those that it depends on.
        y: which leaves of ``y`` are left.
        x: which leaves of the operand are left: tuples and lists as there.
    """

    map: "LinearMap"
    arrays: Sequence[int]
    y: Sequence[bool]
    x: Any

    @property
    def operands(self) -> list[bool]:
        """Which leaves of the operand are left."""
        return list(jax.tree.leaves(self.x))


@dataclasses.dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear function, which depends on ``arrays``.

    Attributes:
        apply: ``(arrays, (b, v)) -> y``, the solution of ``y = A y + D v + b``; ``b`` is as ``y``.
        transpose: ``(arrays, g) -> (lam, D^T lam)``.
        product: ``(arrays, (y, v)) -> A y + D v``. None: all derivatives but the transpose are
            those of the program ``apply``, of any operand and result. The transpose, too, is no
            equation, but a program; it takes None for cotangents that are zero, and may return None
            for such.
        part: the map of what the cotangents of some leaves of ``y`` reach; None if that is all of
            it. Other cotangents are zero: an array of zeros may meet an infinite derivative.
        precision: jax's default for products, wherever these functions are traced.
    """

    apply: MapFunction
    transpose: MapFunction
    product: MapFunction | None = None
    part: Callable[[Sequence[bool]], Part | None] = lambda _: None
    precision: Any = dataclasses.field(
        default_factory=lambda: jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    )

    def mapped(self, axes: Sequence[int | None], **names: Any) -> "LinearMap":
        """That of examples, on these axes of ``arrays``, and on axis 0 of all else."""

        def over_examples(f: MapFunction) -> MapFunction:
            return lambda arrays, x: jax.vmap(f, (list(axes), 0), **names)(arrays, x)

        def part(reached: Sequence[bool]) -> Part | None:
            one = self.part(reached)
            return one and one._replace(map=one.map.mapped([axes[i] for i in one.arrays], **names))

        return dataclasses.replace(
            self,
            apply=over_examples(self.apply),
            transpose=over_examples(self.transpose),
            product=self.product and over_examples(self.product),
            part=part,
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Role:
    """The map of an equation or its transpose, and the structures of its operand and its result."""

    map: LinearMap
    is_transposed: bool
    count: int  # of the arrays
    x: Any
    y: Any

    def __repr__(self) -> str:
        return "transposed" if self.is_transposed else "direct"

    def part(self, used: Sequence[bool]) -> Part | None:
        """See `LinearMap`; ``used``: the results of an equation, of which there may be all."""
        return None if self.is_transposed or all(used) else self.map.part(used)

    def changes(self, along: Callable[..., Any], x: Any, y: Any) -> tuple[Any, Any]:
        """What derivatives in ``arrays`` add to the operand, and to the result.

        ``along(f)``: the tangent of ``f(arrays)``.
        """
        product = self.map.product
        assert product is not None
        zeros = jax.tree.map(jnp.zeros_like, (x, y))
        if not self.is_transposed:
            (_, v), ((_, none), of_y) = x, zeros
            return (along(lambda arrays: product(arrays, (y, v))), none), of_y
        lam, (none, _) = y[0], zeros[1]
        pull = lambda arrays: jax.linear_transpose(partial(product, arrays), zeros[1])  # noqa: E731
        of_g, of_v = along(lambda arrays: pull(arrays)(lam)[0])
        return of_g, (none, of_v)


def solved(
    map_: LinearMap, arrays: Leaves, x: Any, is_transposed: bool = False, shapes: Any = None
) -> Any:
    """``map_.apply(arrays, x)``, or its transpose, differentiable in both.

    ``shapes``: the types of the results, if they are known. Then the program is traced when it is
    read: most derivatives are only transposed.
    """
    x = like(x, arrays, x)  # as the loop of a solution makes them vary
    f = map_.transpose if is_transposed else map_.apply
    # Of a new function each time, so that jax caches nothing for it.
    trace: Any = jax.make_jaxpr(partial(f), return_shape=True)
    types = jax.tree.map(jax.typeof, (arrays, x))

    def later() -> Any:
        with jax.default_matmul_precision(map_.precision):
            return trace(*types)[0]

    if shapes is None:
        with jax.default_matmul_precision(map_.precision):
            program, shapes = trace(*types)
    else:
        program = Later(later, jax.tree.leaves(shapes))
    role = _Role(map_, is_transposed, len(arrays), *map(jax.tree.structure, (x, shapes)))
    leaves = linear_map_p.bind(*arrays, *jax.tree.leaves(x), call_jaxpr=program, role=role)
    return jax.tree.unflatten(role.y, leaves)


class _LinearMapPrimitive(Call):
    """See `Call`; its derivatives are those of the linear map."""

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        role: _Role = params["role"]
        count = role.count
        moves = nonzero(tangents[:count])
        if any(moves) and role.map.product is None:
            return super()._push(primals, tangents, **params)
        results = self.bind(*primals, **params)
        arrays, of_x = list(primals[:count]), list(map(ad.instantiate_zeros, tangents[count:]))
        if not any(moves):
            return results, self.bind(*arrays, *of_x, **params)

        def along(f: Callable[[Leaves], Any]) -> Any:
            of_moving = lambda *leaves: f(combine(arrays, moves, leaves))  # noqa: E731
            primals, pushed = tuple(compress(arrays, moves)), tuple(compress(tangents, moves))
            return jax.jvp(of_moving, primals, pushed)[1]

        x, y = jax.tree.unflatten(role.x, primals[count:]), jax.tree.unflatten(role.y, results)
        with jax.default_matmul_precision(role.map.precision):
            more_x, more_y = map(jax.tree.leaves, role.changes(along, x, y))
        of_y = self.bind(*arrays, *add(of_x, more_x), **params)
        return results, add(of_y, more_y)

    def _transpose(self, cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
        role: _Role = params["role"]
        arrays, g = list(operands[: role.count]), list(map(ad.instantiate_zeros, cotangents))
        reached = nonzero(cotangents)
        if role.map.product is None:
            g = combine([None] * len(g), reached, compress(cotangents, reached))
            with jax.default_matmul_precision(role.map.precision):
                pulled = [*chain(*role.map.transpose(arrays, jax.tree.unflatten(role.y, g)))]
        elif part := role.part(reached):
            arrays = [arrays[i] for i in part.arrays]
            results = solved(part.map, arrays, partition(g, part.y), is_transposed=True)
            none = [None] * len(part.operands)
            pulled = combine(none, part.operands, jax.tree.leaves(results))
        else:
            tree = jax.tree.unflatten(role.y, g)
            pulled = jax.tree.leaves(solved(role.map, arrays, tree, not role.is_transposed))
        moves = map(ad.is_undefined_primal, operands)
        pairs = zip([None] * role.count + [*pulled], moves, strict=True)
        return [x if moving else None for x, moving in pairs]

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        role: _Role = params["role"]
        if role.map.product is None:
            return super()._map(operands, axes, names, params)
        count = role.count
        x = jax.vmap(lambda *leaves: leaves, axes[count:], **names)(*operands[count:])
        mapped = role.map.mapped(axes[:count], **names)
        tree = jax.tree.unflatten(role.x, x)
        leaves = jax.tree.leaves(solved(mapped, list(operands[:count]), tree, role.is_transposed))
        return leaves, [0] * len(leaves)


def _without_unused(used: list[bool], *arguments: Any) -> tuple[list[bool], Any]:
    """The equation without the results that nobody reads, as in the body of a loop."""
    equation = arguments[-1]  # since jax 0.12 after another one
    role: _Role = equation.params["role"]
    count = role.count
    if not any(used):
        return [False] * len(equation.invars), None
    part = role.part(used)
    if part is None or varying_axes(avals_of(equation.invars)):  # of another mesh
        return [True] * len(equation.invars), equation
    operands = jax.tree.unflatten(role.x, equation.invars[count:])
    arrays = [equation.invars[i] for i in part.arrays]
    x = jax.tree.map(partition, operands, part.x, is_leaf=lambda leaves: isinstance(leaves, list))
    avals = jax.tree.map(lambda atom: atom.aval, (arrays, x))
    program = without_constants(jax.make_jaxpr(partial(solved, part.map))(*avals))
    smaller = equation.replace(
        invars=[*arrays, *jax.tree.leaves(x)],
        outvars=partition(equation.outvars, part.y),
        params=program.eqns[-1].params,
    )
    return [*(i in part.arrays for i in range(count)), *part.operands], smaller


linear_map_p = _LinearMapPrimitive("linear_map")
pe.dce_rules[linear_map_p] = _without_unused
