"""Retrace a program, with all programs and derivative rules inside it.

For arrays of another type: on another mesh, or varying over more of its axes.

If the axes of a mesh are of the type `Explicit`, the type of every variable of a jaxpr contains its
sharding, and jax rejects combinations with arrays on `Auto` axes, whose sharding the compiler
chooses. Inside `jax.shard_map` the type contains the axes over which an array varies: solvers have
loops and linear solves, whose arrays have to vary alike. The types include the arrays that a user's
function closes over, which cannot be replaced. So the traced function is retraced, equation by
equation, including the functions that it calls and their derivative rules (`jax.custom_jvp`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
from jax.extend import linear_util
from jax.extend.core import Literal

from deeppcr.arrays.avals import abstract
from depth.jaxprs import Program, bind, interpret, is_literal, vary, without_constants

SHARDINGS = ("sharding", "out_sharding")
NO_MESH = jax.sharding.AbstractMesh((), ())


def retyped(program: Program) -> tuple[Program, list[Any]]:
    """The same program for arrays of which jax knows the shapes and nothing else.

    Its ``constvars`` are those of ``program`` and then the constants, which are returned, too.
    """
    return _Meshless().program(program)


def varying_alike(program: Program, axes: frozenset[str]) -> tuple[Program, list[Any]]:
    """The same program for arrays that all vary over these axes of `jax.shard_map`.

    See `retyped` for what is returned.
    """
    return _Varying(axes).program(program)


class Retrace:
    """Retracing with other types, or with other equations."""

    def type(self, aval: Any) -> Any:
        """The type of a variable."""
        return abstract(aval)

    def cast(self, values: Sequence[Any]) -> list[Any]:
        """Values as programs inside of the program take and return them."""
        return list(values)

    def changed(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters that change besides programs."""
        return {}

    def mesh(self) -> AbstractContextManager[Any]:
        """The mesh to trace on."""
        return nullcontext()

    def replace(self, equation: Any, operands: list[Any]) -> list[Any] | None:
        """The results of an equation, by its programs retraced; None to evaluate it as it is."""
        params = {
            key: value if key == "bwd" else self._convert(value)  # which runs on other types
            for key, value in equation.params.items()
        }
        has_programs = any(params[key] is not value for key, value in equation.params.items())
        operands = self.cast(operands) if has_programs else operands
        params |= self.changed(params)
        results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(params))
        return list(results) if equation.primitive.multiple_results else [results]

    def program(self, program: Program) -> tuple[Program, list[Any]]:
        """See `retyped`."""
        closed = self._trace(program, [*program.constvars, *program.invars])
        new, count = Program.of(closed), len(program.constvars)
        return new._replace(
            constvars=[*new.invars[:count], *new.constvars], invars=new.invars[count:]
        ), list(getattr(closed, "consts", ()))

    def _trace(
        self, program: Program, variables: Sequence[Any], constants: Sequence[Any] = ()
    ) -> Any:
        """The program as a jaxpr of ``variables``, which come after given ``constants``."""
        inputs = [*program.constvars, *program.invars]

        def rule(equation: Any, operands: list[Any]) -> list[Any]:
            return bind(equation, operands, self.replace)

        def run(*arrays: Any) -> list[Any]:
            known = dict(zip(inputs, [*self.cast(constants), *arrays], strict=True))
            return self.cast(interpret(program, known, program.outvars, rule))

        with self.mesh():
            return jax.make_jaxpr(run)(*(self.type(x.aval) for x in variables))

    def _convert(self, value: Any) -> Any:
        return converted(value, self._inner, self._derivative)

    def _inner(self, jaxpr: Any) -> Any:
        program, constants = Program.of(jaxpr), list(getattr(jaxpr, "consts", ()))
        closed = self._trace(program, program.invars, constants)
        own = list(getattr(closed, "consts", ()))
        if hasattr(jaxpr, "jaxpr") or not hasattr(closed, "jaxpr"):
            return closed
        program = with_literals(Program.of(closed), own)
        return closed.jaxpr.replace(**program._asdict())

    def _derivative(self, rule: Any, *zeros: bool) -> tuple[Any, ...]:
        """The jaxpr of a derivative rule, given which tangents are zero, retraced.

        Of a `jax.custom_jvp`, or forwards of a `jax.custom_vjp`.
        """
        with self.mesh():
            jaxpr, constants, *without_tangent = rule.call_wrapped(*zeros)
        closed = self._trace(Program.of(jaxpr), jaxpr.invars, constants)
        return without_constants(closed), list(getattr(closed, "consts", ())), *without_tangent


class _Meshless(Retrace):
    """See `retyped`."""

    def type(self, aval: Any) -> Any:
        """See `Retrace`."""
        weak = getattr(aval, "weak_type", False)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)

    def changed(self, params: dict[str, Any]) -> dict[str, Any]:
        """See `Retrace`: there are no shardings."""
        return {key: None for key in SHARDINGS if params.get(key) is not None}

    def mesh(self) -> AbstractContextManager[Any]:
        """See `Retrace`."""
        return jax.sharding.use_abstract_mesh(NO_MESH)


@dataclasses.dataclass(frozen=True)
class _Varying(Retrace):
    """See `varying_alike`."""

    axes: frozenset[str]

    def type(self, aval: Any) -> Any:
        """See `Retrace`."""
        return abstract(aval, axes=self.axes)

    def cast(self, values: Sequence[Any]) -> list[Any]:
        """See `Retrace`."""
        return [vary(x, self.axes) for x in values]


def converted(parameter: Any, program: Callable[[Any], Any], rule: Callable[..., Any]) -> Any:
    """A parameter of an equation, with its programs and its derivative rules converted.

    The same object if these are. ``program`` converts a program. ``rule(theirs, *arguments)`` runs
    instead of a derivative rule, ``theirs``.
    """
    if isinstance(parameter, tuple | list):
        new = [converted(each, program, rule) for each in parameter]
        if all(a is b for a, b in zip(new, parameter, strict=True)):
            return parameter
        has_names = hasattr(parameter, "_fields")
        return type(parameter)(*new) if has_names else type(parameter)(new)
    if hasattr(parameter, "call_wrapped"):
        run = partial(rule, parameter)
        return linear_util.wrap_init(run, debug_info=parameter.debug_info)
    return program(parameter) if hasattr(parameter, "eqns") else parameter


def with_literals(program: Program, constants: Sequence[Any]) -> Program:
    """The program with its last constants, of these values, as literals."""
    kept = len(program.constvars) - len(constants)
    pairs = zip(program.constvars[kept:], constants, strict=True)
    literals = {variable: Literal(value, variable.aval) for variable, value in pairs}

    def put(atoms: Sequence[Any]) -> list[Any]:
        return [atom if is_literal(atom) else literals.get(atom, atom) for atom in atoms]

    equations = [each.replace(invars=put(each.invars)) for each in program.eqns]
    return Program(program.constvars[:kept], program.invars, equations, put(program.outvars))
