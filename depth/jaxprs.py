"""Reading jaxprs.

Programs and their variables, dependences, inner programs, and evaluation.

`interpret` is the one interpreter of programs. Its values may be anything: arrays, integers that
are known, labels of the entries that an element depends on. The reader defines the result of an
equation by a function, mostly a table by kind of primitive (`depth.primitives`).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, filterfalse
from operator import attrgetter
from typing import Any, NamedTuple, Self

import jax
from jax.extend.core import Literal, jaxprs_in_params

from depth.primitives import primitive

# -- variables and programs -----------------------------------------------------------------------


# Whether an operand is a constant written into the equation. It is asked of every operand of every
# program that is traced, so it is no function of Python.
is_literal: Callable[[Any], bool] = Literal.__instancecheck__


def is_reference(atom: Any) -> bool:
    """Whether an operand is a mutable reference, which holds an array."""
    return hasattr(atom.aval, "inner_aval")


def without_constants(jaxpr: Any) -> Any:
    """The jaxpr proper of a ClosedJaxpr, which `jax.make_jaxpr` returns up to jax 0.10.

    A Jaxpr is one already.
    """
    return getattr(jaxpr, "jaxpr", jaxpr)


class Program(NamedTuple):
    """A jaxpr without the values of its constants, which may be tracers."""

    constvars: list[Any]
    invars: list[Any]
    eqns: list[Any]
    outvars: list[Any]

    @classmethod
    def of(cls, closed: Any) -> Self:
        """From the result of `jax.make_jaxpr`: a ClosedJaxpr up to jax 0.10, a Jaxpr since."""
        jaxpr = without_constants(closed)
        return cls(list(jaxpr.constvars), list(jaxpr.invars), list(jaxpr.eqns), list(jaxpr.outvars))

    def environment(self, values: Sequence[Any]) -> dict[Any, Any]:
        """The values of its constants and of its inputs, in this order, by variable."""
        return dict(zip([*self.constvars, *self.invars], values, strict=True))


class HoldsProgram(ABC):
    """A parameter with a ``program`` that the equation stands for, besides the one that it runs.

    That one may be rewritten, and then has no derivative rules.
    """

    @property
    @abstractmethod
    def program(self) -> Program:
        """The program that tells of derivative rules."""

    @abstractmethod
    def converted(self, convert: Callable[[Program], Program]) -> Self:
        """The same of converted programs, which have the same variables."""


def inside(*equations: Any) -> list[Any]:
    """All jaxprs in the parameters of equations."""
    programs: list[Any] = []
    for equation in equations:
        programs.extend(jaxprs_in_params(equation.params))
        for value in equation.params.values():
            if isinstance(value, HoldsProgram):
                programs.append(value.program)
    return programs


def equations(jaxpr: Any) -> list[Any]:
    """All equations of a program and of those inside it."""
    found = list(jaxpr.eqns)
    for program in reversed(inside(*found)):
        found += equations(program)
    return found


def names(jaxpr: Any) -> set[str]:
    """The names of all primitives of a program and of those inside it."""
    return set(map(attrgetter("primitive.name"), equations(jaxpr)))


def scan_parts(equation: Any) -> tuple[int, int, int]:
    """The numbers of constants, of carried values, and of scanned inputs of a scan."""
    params = equation.params
    if "num_consts" in params:
        consts, carry = params["num_consts"], params["num_carry"]
    else:  # since jax 0.12, as trees
        consts, carry, _ = (len(tree) for tree in params["ft_in"].unpack())
    return consts, carry, len(equation.invars) - consts - carry


CALLS = ("call", "derivative rule")  # kinds of primitives
_CALLED = ("jaxpr", "call_jaxpr", "call", "callee", "fun_jaxpr", "fwd_jaxpr")


def called(equation: Any) -> Any | None:
    """The program that a call runs, with the operands and the results of the equation.

    None if it is not such a call.

    It has the values of the call. A "derivative rule" has other derivatives than its program.
    """
    params = equation.params
    if params.keys().isdisjoint(_CALLED) or primitive(equation).kind not in CALLS:
        return None
    for program in map(params.get, filter(params.__contains__, _CALLED)):
        jaxpr = without_constants(program)
        if hasattr(jaxpr, "eqns"):
            sizes = len(jaxpr.invars), len(jaxpr.outvars)
            if sizes == (len(equation.invars), len(equation.outvars)):
                return program
    return None


# -- walking --------------------------------------------------------------------------------------


def has_side_effects(program: Any) -> bool:
    """Whether an equation or a closed program acts: on the outside, or on a mutable reference.

    A sum over a named axis does not, though jax lists the axis among its effects.
    """
    if not program.effects:  # most often
        return False
    names = {type(effect).__name__ for effect in program.effects}
    return names != {"NamedAxisEffect"}  # a class of jax that is not public


def needed(
    jaxpr: Any,
    known: Collection[Any],
    wanted: Sequence[Any],
    acts: Callable[[Any], Any] = has_side_effects,
) -> list[Any]:
    """The equations from ``known`` variables to ``wanted`` ones, and those that ``act``.

    That is asked of equations with effects.
    """
    kept, is_known = [], known.__contains__
    missing = set(filterfalse(is_known, filterfalse(is_literal, wanted)))
    for equation in reversed(jaxpr.eqns):
        if not missing.isdisjoint(equation.outvars) or (equation.effects and acts(equation)):
            kept.append(equation)
            missing.update(filterfalse(is_known, filterfalse(is_literal, equation.invars)))
    return kept[::-1]


def read_by(equations: Iterable[Any], results: Iterable[Any] = ()) -> dict[Any, None]:
    """The variables that equations read, and then those among ``results``; each once, in order."""
    operands = map(attrgetter("invars"), equations)
    return dict.fromkeys(filterfalse(is_literal, chain(*operands, results)))


def producers(jaxpr: Any) -> dict[Any, Any]:
    """The equation that each variable is a result of."""
    equation_of: dict[Any, Any] = {}
    for equation in jaxpr.eqns:
        equation_of.update(dict.fromkeys(equation.outvars, equation))
    return equation_of


def live_equations(jaxpr: Any) -> list[Any]:
    """The equations that a result depends on, or that have an effect."""
    return needed(jaxpr, (), jaxpr.outvars)


def moved_by(jaxpr: Any, given: Iterable[Any]) -> set[Any]:
    """The variables that depend on ``given`` ones."""
    moved = set(given)
    for equation in jaxpr.eqns:
        if not moved.isdisjoint(filterfalse(is_literal, equation.invars)):
            moved.update(equation.outvars)
    return moved


Rule = Callable[[Any, list[Any]], Sequence[Any]]


def interpret(
    jaxpr: Any,
    known: Mapping[Any, Any],
    wanted: Sequence[Any],
    rule: Rule,
    literal: Callable[[Any], Any] = attrgetter("val"),
    equations: Sequence[Any] | None = None,
) -> list[Any]:
    """The values of ``wanted``, given those of the variables in ``known``.

    A variable in ``known`` is not computed, wherever in the program it is defined, so a program can
    be evaluated from any point on.

    Args:
        rule: ``(equation, operands) -> results``.
        literal: the value of an operand that is written into the equation.
        equations: those to follow, if they are known; else those that are `needed`.
    """
    values = dict(known)
    for equation in needed(jaxpr, known, wanted) if equations is None else equations:
        operands = [literal(x) if hasattr(x, "val") else values[x] for x in equation.invars]
        for variable, value in zip(equation.outvars, rule(equation, operands), strict=True):
            values.setdefault(variable, value)
    return [literal(x) if hasattr(x, "val") else values[x] for x in wanted]


def constants_of(closed: Any) -> list[Any]:
    """The values of the constants of a program: none of one that has them as variables."""
    return list(getattr(closed, "consts", ()))


def entered(closed: Any, operands: Sequence[Any]) -> tuple[Program, dict[Any, Any]]:
    """A closed program, and its known variables when called with ``operands``."""
    program = Program.of(closed)
    return program, program.environment([*constants_of(closed), *operands])


def run(closed: Any, operands: Sequence[Any], rule: Rule) -> list[Any]:
    """The results of a closed program, by `interpret`."""
    program, known = entered(closed, operands)
    return interpret(program, known, program.outvars, rule)


# -- evaluating and rewriting ---------------------------------------------------------------------

# Computes the results of an equation, or returns None to evaluate it as usual.
Replacement = Callable[[Any, list[Any]], list[Any] | None]


def bind(equation: Any, operands: Sequence[Any], replace: Replacement | None = None) -> list[Any]:
    """The results of an equation, of arrays."""
    # On the current mesh: the program may have been traced on another one, or outside of
    # `jax.shard_map`.
    mesh = jax.sharding.get_abstract_mesh()
    with equation.ctx.manager, jax.sharding.use_abstract_mesh(mesh):
        if mesh.manual_axes:
            operands = _varying(equation, operands)
            if equation.primitive.name == "pvary":  # jax refuses what varies already
                return [vary(x, frozenset(equation.params["axes"])) for x in operands]
        results = replace(equation, list(operands)) if replace else None
        if results is None:
            results = equation.primitive.bind(
                *operands, **equation.primitive.get_bind_params(equation.params)
            )
            results = results if equation.primitive.multiple_results else [results]
    return list(results)


def varying_axes(x: Any) -> frozenset[str]:
    """The axes of `jax.shard_map` over which an array varies, or the type of one."""
    aval: Any = x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x)
    aval = getattr(aval, "inner_aval", aval)  # of a mutable reference
    return frozenset(aval.manual_axis_type.varying)


def vary(x: Any, axes: frozenset[str]) -> Any:
    """An array that varies over these axes of `jax.shard_map`, too."""
    missing = tuple(sorted(axes - varying_axes(x))) if axes else ()
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _varying(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The operands, varying over the same axes, as functions of jax make them before they bind.

    Those of inner programs vary as they did in the trace.
    """
    each = [varying_axes(atom.aval) for atom in equation.invars]
    if not inside(equation):
        each = [frozenset[str]().union(*each, *map(varying_axes, operands))] * len(each)
    return [vary(x, axes) if axes else x for x, axes in zip(operands, each, strict=True)]


def rewritten(
    equation: Any,
    operands: Sequence[Any],
    run: Callable[[Any, Sequence[Any]], list[Any]],
    wanted: Callable[[Any], bool],
) -> list[Any] | None:
    """The results of a call, its program run by ``run``.

    None if it contains no ``wanted`` equation, or must not be replaced.

    A function with its own derivative rule (`jax.custom_jvp`, `jax.custom_vjp`) is not replaced:
    its program would be differentiated by jax, without the rule. The values that `jax.checkpoint`
    stores and recomputes do not change.
    """
    if not _calls_for(equation, wanted):
        return None
    inner = called(equation)
    if "prevent_cse" not in equation.params:  # of `jax.checkpoint` alone
        return run(inner, operands)
    if equation.params.get("differentiated"):
        return None
    keeps = {name: equation.params[name] for name in ("prevent_cse", "policy")}
    return list(jax.checkpoint(lambda *operands: run(inner, operands), **keeps)(*operands))


def _calls_for(equation: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a call that may be rewritten contains a ``wanted`` equation, at any depth."""
    if (inner := called(equation)) is None or not primitive(equation).inlines:
        return False
    return any(wanted(each) or _calls_for(each, wanted) for each in without_constants(inner).eqns)


# -- source lines ---------------------------------------------------------------------------------

_JAX = os.path.dirname(jax.__file__) + os.sep
_HERE = os.path.dirname(__file__)
_OURS = tuple(os.path.join(_HERE, name) for name in ("analysis.py", "inner.py", "__main__.py"))


class Location(NamedTuple):
    """The source line of an equation in the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        name = f"{os.path.basename(self.file)}:{self.line} ({self.function})"
        return name if self.line else "(no line known)"


NOWHERE = Location("", 0, "")


def location(equation: Any, caller: Location = NOWHERE) -> Location:
    """The innermost line outside jax and this package that led to ``equation``.

    ``caller`` if jax stored none.
    """
    traceback = equation.source_info.traceback
    return (_innermost(traceback) if traceback else None) or caller


@lru_cache(maxsize=1024)  # equations of one line have equal tracebacks
def _innermost(traceback: Any) -> Location | None:
    for frame in traceback.frames:
        if frame.file_name == __file__:  # `bind`: jax has traced a function of its own in there
            return None
        if not frame.file_name.startswith((_JAX, *_OURS, "<frozen")):
            return Location(frame.file_name, frame.line_num, frame.function_name)
    return None
