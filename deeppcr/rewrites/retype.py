"""Retrace a step for arrays of another type: on another mesh, or varying over more of its axes.

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
from typing import Any

import jax

from deeppcr.avals import abstract
from depth.jaxprs import Program, bind, interpret, vary, without_constants

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


class _Retype:
    """Retracing with other types."""

    def type(self, aval: Any) -> Any:
        """The type of a variable."""
        raise NotImplementedError

    def cast(self, values: Sequence[Any]) -> list[Any]:
        """Values as programs inside of the program take and return them."""
        return list(values)

    def changed(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters that change besides programs."""
        return {}

    def mesh(self) -> AbstractContextManager[Any]:
        """The mesh to trace on."""
        return nullcontext()

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

        def run(*arrays: Any) -> list[Any]:
            known = dict(zip(inputs, [*self.cast(constants), *arrays], strict=True))
            return self.cast(interpret(program, known, program.outvars, self._rule))

        with self.mesh():
            return jax.make_jaxpr(run)(*(self.type(x.aval) for x in variables))

    def _rule(self, equation: Any, operands: list[Any]) -> list[Any]:
        return bind(equation, operands, self._anew)

    def _anew(self, equation: Any, operands: list[Any]) -> list[Any]:
        """The results of an equation."""
        params = {
            key: value if key == "bwd" else self._convert(value)  # which runs on other types
            for key, value in equation.params.items()
        }
        has_programs = any(params[key] is not value for key, value in equation.params.items())
        operands = self.cast(operands) if has_programs else operands
        params |= self.changed(params)
        results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(params))
        return list(results) if equation.primitive.multiple_results else [results]

    def _convert(self, value: Any) -> Any:
        """A parameter with its programs retraced."""
        if isinstance(value, tuple | list) and any(map(_is_jaxpr, value)):
            parts = map(self._convert, value)
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if hasattr(value, "call_wrapped"):
            return _Derivative(self, value)
        if not _is_jaxpr(value):
            return value
        program, constants = Program.of(value), list(getattr(value, "consts", ()))
        closed = self._trace(program, program.invars, constants)
        own: Any = getattr(closed, "consts", ())
        if hasattr(value, "jaxpr") or own:
            return closed
        return without_constants(closed)


class _Meshless(_Retype):
    """See `retyped`."""

    def type(self, aval: Any) -> Any:
        """See `_Retype`."""
        weak = getattr(aval, "weak_type", False)
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)

    def changed(self, params: dict[str, Any]) -> dict[str, Any]:
        """See `_Retype`: there are no shardings."""
        return {key: None for key in SHARDINGS if params.get(key) is not None}

    def mesh(self) -> AbstractContextManager[Any]:
        """See `_Retype`."""
        return jax.sharding.use_abstract_mesh(NO_MESH)


@dataclasses.dataclass(frozen=True)
class _Varying(_Retype):
    """See `varying_alike`."""

    axes: frozenset[str]

    def type(self, aval: Any) -> Any:
        """See `_Retype`."""
        return abstract(aval, axes=self.axes)

    def cast(self, values: Sequence[Any]) -> list[Any]:
        """See `_Retype`."""
        return [vary(x, self.axes) for x in values]


class _Derivative:
    """A function that returns the jaxpr of a derivative rule, given which tangents are zero.

    Of a `jax.custom_jvp`, or forwards of a `jax.custom_vjp`. The jaxpr is retraced.
    """

    def __init__(self, retype: _Retype, rule: Any) -> None:
        self._retype = retype
        self._rule = rule
        self.debug_info = rule.debug_info

    @property
    def call_wrapped(self) -> Callable[..., tuple[Any, ...]]:
        """As jax calls it."""

        def call(*zeros: bool) -> tuple[Any, ...]:
            with self._retype.mesh():
                jaxpr, constants, *without_tangent = self._rule.call_wrapped(*zeros)
            closed = self._retype._trace(Program.of(jaxpr), jaxpr.invars, constants)
            return without_constants(closed), list(getattr(closed, "consts", ())), *without_tangent

        return call


def _is_jaxpr(value: Any) -> bool:
    jaxpr = getattr(value, "jaxpr", value)
    return hasattr(jaxpr, "eqns") and hasattr(jaxpr, "invars")
