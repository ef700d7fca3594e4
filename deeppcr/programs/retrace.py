"""Retrace a program, with all programs and derivative rules inside it.

For arrays of another type, on another mesh or varying over more of its axes; and for products in
full precision.

If the axes of a mesh are of the type `Explicit`, the type of every variable of a jaxpr contains its
sharding, and jax rejects combinations with arrays on `Auto` axes, whose sharding the compiler
chooses. Inside `jax.shard_map` the type contains the axes over which an array varies: solvers have
loops and linear solves, whose arrays have to vary alike. The types include the arrays that a user's
function closes over, which cannot be replaced. So the traced function is retraced, equation by
equation, including the functions that it calls and their derivative rules (`jax.custom_jvp`).

Where many steps are evaluated at once, products have full precision. By default a GPU rounds the
operands of large float32 products to TF32, a TPU those of all products to bfloat16. The small
products of a loop are exact on a GPU. All its steps at once are one large product, so their states
would be wrong by 1e-3, with a residual that is as wrong. Programs of all steps, Jacobians and
adjoints therefore compute every product of float32 or wider operands at
`jax.lax.Precision.HIGHEST`, unless the user asked for a precision, by an argument or by
`jax.default_matmul_precision`. The sequential loop keeps the program of the user.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import linear_util
from jax.extend.core import Literal

from deeppcr.arrays import abstract, avals_of
from depth.jaxprs import (
    HoldsProgram,
    Program,
    bind,
    constants_of,
    equations,
    is_literal,
    run,
    vary,
    without_constants,
)
from depth.primitives import primitive

SHARDINGS = ("sharding", "out_sharding")
NO_MESH = jax.sharding.AbstractMesh((), ())


def retraced(
    program: Program,
    run: Callable[[list[Any]], list[Any]],
    type_of: Callable[[Any], Any] = abstract,
) -> tuple[Program, list[Any]]:
    """The program of ``run``, a function of what ``program`` takes: constants, then inputs.

    Its ``constvars`` are those of ``program`` and then the arrays that ``run`` closes over, which
    are returned, too. ``type_of``: the type of an argument, from that of the variable.
    """
    variables, count = [*program.constvars, *program.invars], len(program.constvars)
    closed = jax.make_jaxpr(run)(list(map(type_of, avals_of(variables))))
    new = Program.of(closed)
    constvars = [*new.invars[:count], *new.constvars]
    return new._replace(constvars=constvars, invars=new.invars[count:]), constants_of(closed)


@dataclasses.dataclass(eq=False)
class Retrace:
    """Retracing with other types.

    Attributes:
        axes: of `jax.shard_map`, over which arrays vary, too; None for arrays on no mesh, of which
            jax knows the shapes and nothing else.
    """

    axes: frozenset[str] | None = None

    def type(self, aval: Any) -> Any:
        """The type of a variable."""
        if self.axes is not None:
            return abstract(aval, axes=self.axes)
        weak = getattr(aval, "weak_type", False)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)

    def mesh(self) -> AbstractContextManager[Any]:
        """The mesh to trace on."""
        return jax.sharding.use_abstract_mesh(NO_MESH) if self.axes is None else nullcontext()

    def _replace(self, equation: Any, operands: list[Any]) -> list[Any]:
        """The results of an equation, by its programs retraced."""
        params = {
            key: converted(value, self._inner, self._derivative)
            for key, value in equation.params.items()
            if key != "bwd"  # which runs on other types
        }
        if any(value is not equation.params[key] for key, value in params.items()):
            operands = self._cast(operands)
        if self.axes is None:
            params |= dict.fromkeys(filter(params.__contains__, SHARDINGS))
        return bind(equation.replace(params=equation.params | params), operands)

    def program(self, program: Program) -> tuple[Program, list[Any]]:
        """The program, retraced: see `retraced`."""
        with self.mesh():
            return retraced(program, partial(self._run, program), self.type)

    def _run(self, program: Program, values: Sequence[Any]) -> list[Any]:
        return self._cast(run(program, values, partial(bind, replace=self._replace)))

    def _cast(self, values: Sequence[Any]) -> list[Any]:
        """Values as programs inside of the program take and return them."""
        return [vary(x, self.axes or frozenset()) for x in values]

    def _closed(self, jaxpr: Any, constants: Sequence[Any]) -> Any:
        """A jaxpr with these constants, retraced."""
        program = Program.of(jaxpr)
        types = list(map(self.type, avals_of(program.invars)))
        trace = jax.make_jaxpr(lambda xs: self._run(program, [*self._cast(constants), *xs]))
        return trace(types)

    def _inner(self, jaxpr: Any) -> Any:
        closed = self._closed(jaxpr, constants_of(jaxpr))
        if hasattr(jaxpr, "jaxpr") or not hasattr(closed, "jaxpr"):
            return closed
        program = with_literals(Program.of(closed), constants_of(closed))
        return closed.jaxpr.replace(**program._asdict())

    def _derivative(self, rule: Any, *zeros: bool) -> tuple[Any, ...]:
        """The jaxpr of a derivative rule, given which tangents are zero, retraced.

        Of a `jax.custom_jvp`, or forwards of a `jax.custom_vjp`.
        """
        with self.mesh():
            jaxpr, constants, *without_tangent = rule.call_wrapped(*zeros)
            closed = self._closed(jaxpr, constants)
        return without_constants(closed), constants_of(closed), *without_tangent


def converted(parameter: Any, program: Callable[[Any], Any], rule: Callable[..., Any]) -> Any:
    """A parameter of an equation, with its programs and its derivative rules converted.

    The same object if these are. ``program`` converts a program. ``rule(theirs, *arguments)`` runs
    instead of a derivative rule, ``theirs``.
    """
    if isinstance(parameter, tuple | list):
        new = [converted(value, program, rule) for value in parameter]
        if all(map(operator.is_, new, parameter)):
            return parameter
        has_names = hasattr(parameter, "_fields")
        return type(parameter)(*new) if has_names else type(parameter)(new)
    if hasattr(parameter, "call_wrapped"):
        return linear_util.wrap_init(partial(rule, parameter), debug_info=parameter.debug_info)
    return program(parameter) if hasattr(parameter, "eqns") else parameter


def with_literals(program: Program, constants: Sequence[Any]) -> Program:
    """The program with its last constants, of these values, as literals."""
    if not constants:
        return program
    count = len(program.constvars) - len(constants)
    pairs = zip(program.constvars[count:], constants, strict=True)
    literals = {variable: Literal(value, variable.aval) for variable, value in pairs}

    def put(atoms: Sequence[Any]) -> list[Any]:
        return [atom if is_literal(atom) else literals.get(atom, atom) for atom in atoms]

    equations = [x.replace(invars=put(x.invars)) for x in program.eqns]
    return Program(program.constvars[:count], program.invars, equations, put(program.outvars))


# -- products in full precision --------------------------------------------------------------------

PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})
WITHOUT_PROGRAMS = frozenset({"elementwise", "move", "reduction"})
OWN_KERNELS = frozenset({"pallas_call"})  # written for a device, precision included
TF32 = lax.Precision.HIGH
BOTH_HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
ROUNDOFF = {lax.Precision.DEFAULT: 2.0**-8, TF32: 2.0**-11, lax.Precision.HIGHEST: 0.0}


def in_full_precision(program: Program) -> Program:
    """The same program, its variables included, with such products, also in derivative rules."""

    @cache  # a program that is called twice stays one
    def inner(value: Any) -> Any:
        """A jaxpr, closed or not; the same object if nothing changes."""
        jaxpr = without_constants(value)
        eqns = list(map(converted_equation, jaxpr.eqns))
        if all(map(operator.is_, eqns, jaxpr.eqns)):
            return value
        new = jaxpr.replace(eqns=eqns)
        return new if jaxpr is value else value.replace(jaxpr=new)

    def rule(users: Any, *arguments: Any) -> Any:
        """What a derivative rule, a function of tracers, returns: values, or a program first."""
        asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        with jax.default_matmul_precision(asked or "highest"):
            result = users.call_wrapped(*arguments)
        if isinstance(result, tuple) and result and hasattr(result[0], "eqns"):
            return inner(result[0]), *result[1:]
        return result

    def converted_equation(equation: Any) -> Any:
        """An equation; the same object if nothing changes."""
        name, params = equation.primitive.name, equation.params
        if name in OWN_KERNELS or primitive(equation).kind in WITHOUT_PROGRAMS:
            return equation
        if name in PRODUCTS:
            is_left = params["precision"] is not None or not _is_of_full_operands(equation)
            return (
                equation
                if is_left
                else equation.replace(params=params | {"precision": BOTH_HIGHEST})
            )
        new = {
            key: value.converted(in_full_precision)
            if isinstance(value, HoldsProgram)
            else converted(value, inner, rule)
            for key, value in params.items()
        }
        is_same = all(map(operator.is_, new.values(), params.values()))
        return equation if is_same else equation.replace(params=new)

    return program._replace(eqns=list(map(converted_equation, program.eqns)))


def own_rounding(program: Program) -> float:
    """The unit roundoff of the products for which a user asked less than full precision; else 0."""
    products = filter(_is_of_full_operands, equations(program))
    return max((_roundoff(product.params["precision"]) for product in products), default=0.0)


def _roundoff(precision: Any) -> float:
    """That of one product, as a device may compute it: in bfloat16, or in TF32."""
    if precision is None:  # it is computed in full precision here
        return 0.0
    if isinstance(precision, tuple):
        return max(map(ROUNDOFF.__getitem__, precision))
    return ROUNDOFF[lax.Precision.DEFAULT if str(precision).startswith("BF16") else TF32]


def _is_of_full_operands(equation: Any) -> bool:
    """Whether it is a product of operands of float32 or a wider dtype, complex ones included."""
    if equation.primitive.name not in PRODUCTS:
        return False
    dtypes = [atom.aval.dtype for atom in equation.invars[:2]]
    return all(jnp.issubdtype(x, jnp.inexact) and jnp.finfo(x).bits >= 32 for x in dtypes)
