"""What keeps a step from being one of many side by side, or from having a derivative."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad
from jax.sharding import AxisType, NamedSharding

from deeppcr.arrays import (
    abstract_avals,
    avals_of,
    combine,
    floating,
    partition,
    varying_axes,
)
from deeppcr.programs.dependence import defining
from deeppcr.programs.signature import DerivativeRule, rule_of
from depth.counts import named_axes
from depth.jaxprs import (
    bind,
    called,
    equations,
    has_side_effects,
    interpret,
    is_reference,
    moved_by,
    names,
    needed,
    read_by,
    without_constants,
)
from depth.primitives import of_kind, primitive

CUSTOM_VJP = ("custom_vjp_call", "custom_vjp_call_jaxpr")
DIFFERENTIABLE = ("elementwise", "move", "product", "reduction")
# jax has no derivative with respect to some of their operands.
PARTIAL = {"igamma", "igamma_grad_a", "igammac", "polygamma", "regularized_incomplete_beta", "zeta"}
CUSTOM_VMAP = "custom_vmap_call"
PUSHED = ("while", CUSTOM_VMAP)  # their derivatives have forward mode only
ONLY_NAMES = ("axis_index", "pvary", "reduced_vary_cast")  # they name axes, and do not communicate
THREEFRY = "key<fry>"
MAPPED = ("all_gather", "pmax", "pmin", "ppermute", "psum")  # what `jax.vmap` maps, named or not


def users_rules(jaxpr: Any) -> list[DerivativeRule]:
    """The derivative rules of users, which need not be the derivatives."""
    rules = map(rule_of, of_kind(equations(jaxpr), "derivative rule"))
    return [rule for rule in rules if rule.is_users]


def why_forwards_only(jaxpr: Any) -> str:
    """The error of jax for the reverse mode of a program; "" if it has a reverse mode.

    Whether a program can be transposed is not visible in it, because derivative rules create
    programs of their own. So it is tried, if the program contains anything but jax's own
    derivatives.
    """
    if not any(map(_may_be_forwards_only, equations(jaxpr))):
        return ""
    moves = floating([*jaxpr.constvars, *jaxpr.invars])
    return _error_of_derivative(jaxpr, jaxpr.outvars, moves, backwards=True)


def why_not_differentiable(jaxpr: Any, states: int) -> str:
    """The error of jax for the derivative with respect to the state; "" if it has one.

    ``states``: the number of leading operands that are leaves of the state.
    """
    if all(map(_has_derivative, equations(jaxpr))):  # most often; to try it takes a trace
        return ""
    state = jaxpr.invars[:states]
    moves = [x in state for x in (*jaxpr.constvars, *jaxpr.invars)]
    has_custom_vjp = not names(jaxpr).isdisjoint(CUSTOM_VJP)
    return _error_of_derivative(jaxpr, jaxpr.outvars[:states], moves, has_custom_vjp)


def _has_derivative(equation: Any) -> bool:
    """Whether an equation is sure to have a derivative, or is a call of such equations."""
    kind, name = primitive(equation).kind, equation.primitive.name
    if kind == "derivative rule":
        return not rule_of(equation).is_users
    if kind == "call":  # of a `jax.custom_batching.custom_vmap`, but not as a linear function
        return called(equation) is not None and name != CUSTOM_VMAP
    return (
        kind in DIFFERENTIABLE and equation.primitive in ad.primitive_jvps and (name not in PARTIAL)
    )


def _error_of_derivative(
    jaxpr: Any, outvars: Sequence[Any], moves: Sequence[bool], backwards: bool
) -> str:
    """The first line of the error that the derivative of a program raises; "" if it raises none.

    Of ``outvars`` with respect to the constants and inputs that move.
    """
    followed = needed(jaxpr, {*jaxpr.constvars, *jaxpr.invars}, outvars)

    def derivative(values: list[Any]) -> Any:
        def f(moving: list[Any]) -> list[Any]:
            environment = jaxpr.environment(combine(values, moves, moving))
            results = interpret(jaxpr, environment, outvars, bind, equations=followed)
            return partition(results, floating(results))

        if not backwards:
            return jax.linearize(f, partition(values, moves))[0]
        results, pull = jax.vjp(f, partition(values, moves))
        return pull(results)

    try:
        jax.eval_shape(derivative, abstract_avals((*jaxpr.constvars, *jaxpr.invars)))
    except Exception as error:  # whatever a rule raises
        if CUSTOM_VMAP in names(jaxpr):
            return "a jax.custom_batching.custom_vmap has forward mode only."
        return str(error).partition("\n")[0]
    return ""


def couples_devices(jaxpr: Any, varied: frozenset[str]) -> str:
    """The collectives between devices whose states differ, in words; "" if there is none.

    ``varied``: the axes of `jax.shard_map` over which the state is known to vary. If nothing in it
    is known to vary, as with ``check_vma=False``, any may.
    """
    manual = frozenset(jax.sharding.get_abstract_mesh().manual_axes)
    if not manual:
        return ""
    inner = equations(jaxpr)
    is_known = varying_axes(avals_of(read_by(inner)))
    axes = varied if is_known else manual
    return _collectives(
        x for x in inner if x.primitive.name not in ONLY_NAMES and named_axes(x) & axes
    )


def without_steps(jaxpr: Any) -> str:
    """The collectives over an axis of a `jax.vmap` that another one does not map, in words.

    "" if there is none. That of the steps is another one. jax 0.10 to 0.12 raise errors, or mix up
    axes.
    """
    manual = frozenset(jax.sharding.get_abstract_mesh().manual_axes)
    mapped = (x for x in equations(jaxpr) if named_axes(x) - manual)
    return _collectives(x for x in mapped if x.primitive.name not in (*ONLY_NAMES, *MAPPED))


def named_shardings(jaxpr: Any) -> str:
    """The operations that name the sharding of an array of one step; "" if there is none.

    `jax.lax.with_sharding_constraint` over axes of the type `Auto` may: any program has those.
    """
    return ", ".join(dict.fromkeys(x.primitive.name for x in equations(jaxpr) if _names_one(x)))


def _names_one(equation: Any) -> bool:
    params, is_constraint = equation.params, equation.primitive.name == "sharding_constraint"
    # The "sharding" of other equations is that of new arrays, which jax takes from the others.
    named = params["sharding"] if is_constraint else params.get("dst_sharding")
    named = params.get("out_sharding") if named is None else named
    if not isinstance(named, NamedSharding):
        return False
    kinds = set(named.mesh.axis_types)
    if is_constraint:
        return AxisType.Explicit in kinds
    return any(named.spec) or kinds == {AxisType.Auto}  # derivatives name those that are replicated


def _collectives(inner: Iterable[Any]) -> str:
    """Equations in words, each once."""
    words = (f"{x.primitive.name} over {', '.join(map(repr, named_axes(x)))}" for x in inner)
    return ", ".join(dict.fromkeys(words))


def without_vmap(jaxpr: Any) -> str:
    """The name of a primitive that `jax.vmap` refuses; "" if there is none.

    Callbacks say how they are mapped, or that they are not (``vmap_method=None``).
    """
    refusing = (x for x in equations(jaxpr) if x.params.get("vmap_method", "") is None)
    return next((x.primitive.name for x in refusing), "")


def _may_be_forwards_only(equation: Any) -> bool:
    kind = primitive(equation).kind
    if kind == "derivative rule":
        return rule_of(equation).is_users
    # An unknown primitive, or a program that is run by a primitive of its own.
    return equation.primitive.name in PUSHED or kind in ("unknown", "opaque", "program")


def side_effects(closed: Any) -> tuple[str, ...]:
    """The side effects of a program, by name: printing, callbacks, checks, mutable references.

    Communication between devices is not a side effect.
    """
    if not has_side_effects(closed):
        return ()
    acting = filter(has_side_effects, without_constants(closed).eqns)
    reference = "a mutable reference (jax.new_ref)"
    effects = (reference if has_references(x) else str(x.primitive.name) for x in acting)
    return tuple(dict.fromkeys(effects))


def has_references(equation: Any) -> bool:
    """Whether an equation works on mutable arrays."""
    return any(map(is_reference, (*equation.invars, *equation.outvars)))


def is_of_threefry(equation: Any) -> bool:
    """Whether an equation, of kind "random", draws with keys of threefry."""
    return str(equation.invars[0].aval.dtype) == THREEFRY


def drawn_alone(jaxpr: Any) -> str:
    """The keys by which a program draws bits that differ side by side; "" if it has none.

    `jax.vmap` draws for each key what it draws for the key alone only if keys are those of
    threefry, jax's default. Keys that are the same in all steps do no harm.
    """
    dependent = moved_by(jaxpr, jaxpr.invars)
    moving = jaxpr._replace(eqns=defining(jaxpr, dependent))
    drawing = of_kind(equations(moving), "random", "opaque")
    return next((str(x.invars[0].aval.dtype) for x in drawing if _draws_alone(x)), "")


def _draws_alone(equation: Any) -> bool:
    if equation.primitive.name == "rng_bit_generator":  # of a state, not of a key
        return True
    is_key = equation.invars and jnp.issubdtype(equation.invars[0].aval.dtype, jax.dtypes.prng_key)
    draws = primitive(equation).kind == "random" or equation.primitive.name == "random_gamma"
    return bool(draws and is_key and not is_of_threefry(equation))
