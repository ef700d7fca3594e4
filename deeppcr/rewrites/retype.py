"""Retrace a step for arrays on a mesh of another type.

If the axes of a mesh are of the type `Explicit`, the type of every variable of a jaxpr contains its
sharding, and jax rejects combinations with arrays on `Auto` axes, whose sharding the compiler
chooses. This includes the arrays that a user's function closes over, which cannot be replaced. So
the traced function is retraced, equation by equation, on arrays of which jax knows the shapes and
nothing else, including the functions that it calls and their derivative rules (`jax.custom_jvp`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from depth.jaxprs import Program, bind, interpret, without_constants

SHARDINGS = ("sharding", "out_sharding")
NO_MESH = jax.sharding.AbstractMesh((), ())


def retyped(program: Program) -> tuple[Program, list[Any]]:
    """The same program, and its additional constants.

    Its ``constvars`` are those of ``program`` and then the constants.
    """
    closed, count = _trace(program, [*program.constvars, *program.invars]), len(program.constvars)
    new, constants = Program.of(closed), list(getattr(closed, "consts", ()))
    return new._replace(
        constvars=[*new.invars[:count], *new.constvars], invars=new.invars[count:]
    ), constants


def _trace(program: Program, variables: Sequence[Any], constants: Sequence[Any] = ()) -> Any:
    """The program as a jaxpr of ``variables``, which come after given ``constants``."""

    def run(*arrays: Any) -> list[Any]:
        known = dict(zip([*program.constvars, *program.invars], [*constants, *arrays], strict=True))
        return interpret(program, known, program.outvars, _rule)

    with jax.sharding.use_abstract_mesh(NO_MESH):
        return jax.make_jaxpr(run)(*map(_shape, variables))


def _rule(equation: Any, operands: list[Any]) -> list[Any]:
    return bind(equation, operands, _anew)


def _anew(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The results of an equation whose parameters contain programs or shardings.

    None for any other.
    """
    params = {key: _convert(value) for key, value in equation.params.items()}
    params |= {key: None for key in SHARDINGS if params.get(key) is not None}
    if all(params[key] is value for key, value in equation.params.items()):
        return None
    results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(params))
    return list(results) if equation.primitive.multiple_results else [results]


def _convert(value: Any) -> Any:
    """A parameter with its programs retraced."""
    if isinstance(value, tuple | list) and any(map(_is_jaxpr, value)):
        return type(value)(map(_convert, value))
    if hasattr(value, "call_wrapped"):
        return _Derivative(value)
    if not _is_jaxpr(value):
        return value
    program, constants = Program.of(value), list(getattr(value, "consts", ()))
    closed = _trace(program, program.invars, constants)
    is_open = not hasattr(value, "jaxpr")
    return without_constants(closed) if is_open and not getattr(closed, "consts", ()) else closed


class _Derivative:
    """A function that returns the jaxpr of a `jax.custom_jvp` rule, given which tangents are zero.

    The jaxpr is retraced.
    """

    def __init__(self, rule: Any) -> None:
        self._rule = rule
        self.debug_info = rule.debug_info

    @property
    def call_wrapped(self) -> Callable[..., tuple[Any, list[Any], list[bool]]]:
        """As jax calls it."""

        def call(*zeros: bool) -> tuple[Any, list[Any], list[bool]]:
            with jax.sharding.use_abstract_mesh(NO_MESH):
                jaxpr, constants, without_tangent = self._rule.call_wrapped(*zeros)
            closed = _trace(Program.of(jaxpr), jaxpr.invars, constants)
            return without_constants(closed), list(getattr(closed, "consts", ())), without_tangent

        return call


def _is_jaxpr(value: Any) -> bool:
    jaxpr = getattr(value, "jaxpr", value)
    return hasattr(jaxpr, "eqns") and hasattr(jaxpr, "invars")


def _shape(variable: Any) -> Any:
    aval = variable.aval
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
