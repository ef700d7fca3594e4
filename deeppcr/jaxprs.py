"""Evaluating parts of a jaxpr: what some outputs need and no more, in the order that compiles best."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxprs_in_params

from depth.jaxprs import is_literal, is_reference, without_constants


class Program(NamedTuple):
    """A jaxpr without the values of its constants, which may be tracers that must not be kept."""

    constvars: list[Any]
    invars: list[Any]
    eqns: list[Any]
    outvars: list[Any]

    @classmethod
    def of(cls, closed: Any) -> Self:
        """From what `jax.make_jaxpr` returns: a ClosedJaxpr up to jax 0.10, a Jaxpr since."""
        jaxpr = without_constants(closed)
        return cls(list(jaxpr.constvars), list(jaxpr.invars), list(jaxpr.eqns), list(jaxpr.outvars))


def called(equation: Any) -> Any | None:
    """The program that an equation calls with its operands as they are, closed; None if it is no such call.

    It has the values of the call. Those of its derivatives are another matter: see `rewritten`.
    """
    if equation.primitive.name not in CALLS | DERIVATIVE_RULES:
        return None
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return next((equation.params[name] for name in names if name in equation.params), None)


def has_custom_vjp(jaxpr: Any) -> bool:
    """Whether a function with a `jax.custom_vjp` is called, at any depth."""
    return any(
        equation.primitive.name.startswith("custom_vjp")
        or any(
            has_custom_vjp(without_constants(inner)) for inner in jaxprs_in_params(equation.params)
        )
        for equation in jaxpr.eqns
    )


def has_users_rule(jaxpr: Any) -> bool:
    """Whether a derivative rule is used that is not jax's own, and so need not be that of the function it stands for."""
    return any(
        (equation.primitive.name in DERIVATIVE_RULES and not is_rule_of_jax(equation))
        or any(
            has_users_rule(without_constants(inner)) for inner in jaxprs_in_params(equation.params)
        )
        for equation in jaxpr.eqns
    )


def is_rule_of_jax(equation: Any) -> bool:
    """Whether the function that brings a derivative rule is one of jax's library, as `jax.nn.relu` is."""
    program = without_constants(called(equation))
    return str(getattr(getattr(program, "debug_info", None), "func_filename", "")).startswith(
        LIBRARY
    )


def side_effects(closed: Any) -> tuple[str, ...]:
    """What acts on more than its results, by name: printing, callbacks, checks, mutable references.

    What devices exchange is no side effect.
    """
    if not _outward(closed.effects):
        return ()
    return tuple(
        dict.fromkeys(_acting(e) for e in without_constants(closed).eqns if _outward(e.effects))
    )


def _acting(equation: Any) -> str:
    refers = any(map(is_reference, (*equation.invars, *equation.outvars)))
    return "a mutable reference (jax.new_ref)" if refers else str(equation.primitive.name)


def _outward(effects: Iterable[Any]) -> bool:
    """Whether one of these effects is a side effect."""
    return any(
        type(effect).__name__ != "NamedAxisEffect" for effect in effects
    )  # a class of jax that is not public


def needed(jaxpr: Any, known: Mapping[Any, Any], wanted: Sequence[Any]) -> list[Any]:
    """The equations that lead from the variables in ``known`` to those in ``wanted``, in order."""
    missing = {atom for atom in wanted if not is_literal(atom) and atom not in known}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if any(out in missing for out in equation.outvars) or equation.effects:
            kept.append(equation)
            missing |= {
                atom for atom in equation.invars if not is_literal(atom) and atom not in known
            }
    return kept[::-1]


def only_cut(equations: Sequence[Any], wanted: Sequence[Any]) -> dict[Any, Any]:
    """Elementwise results that are used in pieces only, cut by `CUTS`, with the equations that make them."""
    whole = {atom for atom in wanted if not is_literal(atom)}
    for equation in equations:
        if equation.primitive.name not in CUTS:
            whole |= {atom for atom in equation.invars if not is_literal(atom)}
    return {
        equation.outvars[0]: equation
        for equation in equations
        if equation.primitive.name in ELEMENTWISE and equation.outvars[0] not in whole
    }


Replacement = Callable[[Any, list[Any]], list[Any] | None]


def evaluate(
    jaxpr: Any, known: Mapping[Any, Any], wanted: Sequence[Any], replace: Replacement | None = None
) -> list[Any]:
    """The values of ``wanted``, given those of the variables in ``known``.

    A variable in ``known`` is taken as it is, wherever in the jaxpr it is computed, so a program can be entered midway.
    ``replace(equation, operands)`` may compute the results of an equation in its own way, or return None.

    What is computed elementwise and then cut into pieces, as the gates of a recurrent cell are, is cut first and computed
    afterwards. It is the same arithmetic, but XLA's CPU kernels for the pieces of a sum are scalar code, those for the sum of
    pieces vector code: a GRU step of 8 units and 8 examples takes 0.3 us instead of 1.2.
    """
    values = dict(known)
    equations = needed(jaxpr, known, wanted)
    in_pieces = {
        variable: made
        for variable, made in only_cut(equations, wanted).items()
        if variable not in known
    }

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    def cut(knife: Any, atom: Any) -> list[Any]:
        """What the equation ``knife`` makes of ``atom``."""
        made = in_pieces.get(atom) if not is_literal(atom) else None
        if made is None:
            return _cut(knife, read(atom))
        parts = [cut(knife, operand) for operand in made.invars]
        return [bind(made, operands, replace)[0] for operands in zip(*parts, strict=True)]

    for equation in equations:
        if equation.outvars and all(variable in in_pieces for variable in equation.outvars):
            continue
        is_cut = equation.primitive.name in CUTS and equation.invars[0] in in_pieces
        results = (
            cut(equation, equation.invars[0])
            if is_cut
            else bind(equation, [read(atom) for atom in equation.invars], replace)
        )
        for variable, value in zip(equation.outvars, results, strict=True):
            values.setdefault(variable, value)
    return [read(atom) for atom in wanted]


def entered(closed: Any, operands: Sequence[Any]) -> tuple[Program, dict[Any, Any]]:
    """A closed program, and what is known once it is called with ``operands``."""
    program = Program.of(closed)
    return program, dict(
        zip(
            [*program.constvars, *program.invars],
            [*getattr(closed, "consts", ()), *operands],
            strict=True,
        )
    )


def apply(closed: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of a closed program, as `evaluate` has them."""
    program, known = entered(closed, operands)
    return evaluate(program, known, program.outvars, replace)


def rewritten(
    equation: Any, operands: Sequence[Any], replace: Replacement, wanted: Callable[[Any], bool]
) -> list[Any] | None:
    """The results of a call with ``replace`` inside it; None if it holds no ``wanted`` equation, or has to stay as it is.

    A function with a derivative rule of its own (`jax.custom_jvp`, `jax.custom_vjp`) stays: its program in its place would be
    differentiated by jax, without the rule. What `jax.checkpoint` keeps and recomputes stays what the user asked for.
    """
    if not _calls_for(equation, wanted):
        return None
    inner = called(equation)
    if equation.primitive.name not in CHECKPOINTS:
        return apply(inner, operands, replace)
    if equation.params.get("differentiated"):
        return None
    keeps = {name: equation.params[name] for name in ("prevent_cse", "policy")}
    return list(
        jax.checkpoint(lambda *operands: apply(inner, operands, replace), **keeps)(*operands)
    )


def _calls_for(equation: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether an equation is a call of a program that holds a ``wanted`` equation."""
    if equation.primitive.name not in CALLS:
        return False
    return any(
        wanted(inner) or _calls_for(inner, wanted)
        for inner in without_constants(called(equation)).eqns
    )


def bind(equation: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of an equation; ``replace`` as in `evaluate`."""
    # On the mesh of today: the program may have been traced on another, or outside of `jax.shard_map`.
    with equation.ctx.manager, jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
        results = replace(equation, list(operands)) if replace else None
        if results is None:
            results = equation.primitive.bind(
                *operands, **equation.primitive.get_bind_params(equation.params)
            )
            results = results if equation.primitive.multiple_results else [results]
    return list(results)


def _cut(knife: Any, value: Any) -> list[Any]:
    """The pieces of ``value``, which may be a number or have axes of size 1 where what the knife is made for has more."""
    shape = knife.invars[0].aval.shape
    if jnp.ndim(value) != len(shape):
        return [value] * len(knife.outvars)
    spread = [size != full for size, full in zip(value.shape, shape, strict=True)]
    if knife.primitive.name == "split":
        sizes, axis = knife.params["sizes"], knife.params["axis"]
        return [value] * len(sizes) if spread[axis] else list(lax.split(value, sizes, axis))
    starts = [
        0 if wide else start
        for wide, start in zip(spread, knife.params["start_indices"], strict=True)
    ]
    limits = [
        1 if wide else limit
        for wide, limit in zip(spread, knife.params["limit_indices"], strict=True)
    ]
    strides = knife.params["strides"] or [1] * len(shape)
    return [
        lax.slice(
            value,
            starts,
            limits,
            [1 if wide else k for wide, k in zip(spread, strides, strict=True)],
        )
    ]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LIBRARY = tuple(
    os.path.join(os.path.dirname(jax.__file__), "_src", room) + os.sep
    for room in ("nn", "numpy", "scipy")
)
CUTS = _words("slice split")
CHECKPOINTS = _words("checkpoint remat remat2")
CALLS = _words("jit pjit closed_call core_call") | CHECKPOINTS
DERIVATIVE_RULES = _words("custom_jvp_call custom_vjp_call")
# One result, each entry of it from the same entries of the operands.
ELEMENTWISE = _words(
    """
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type copy copy_p cos cosh
    digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log log1p logistic lt
    max min mul ne neg nextafter not one_minus_square or pow real reduce_precision rem round rsqrt select_n sign sin sinh
    sqrt square stop_gradient sub tan tanh xor
    """
)
