"""Steps in order and steps at once, each as an equation, which a platform lowers in its way.

`loop` and `each` are what solvers call. Both bind `steps`, an equation that stands for a program of
many steps. A platform registers what it runs instead; its rules read and rewrite a `Loop`.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, Self

import jax
from jax import lax
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from deeppcr.arrays import Leaves, abstract_avals
from deeppcr.lower.variants import target
from deeppcr.programs.calls import Call, with_operands, without_unused
from deeppcr.programs.retrace import retraced
from depth.jaxprs import (
    Program,
    Rule,
    bind,
    constants_of,
    entered,
    interpret,
    is_literal,
    producers,
    scan_parts,
)


class Kind(NamedTuple):
    """What is known of steps in order; see `loop`."""

    linear: bool
    in_one: bool


def _without_unused(used: list[bool], *arguments: Any) -> tuple[list[bool], Any]:
    """The equation without the results that nobody reads."""
    equation = arguments[-1]  # since jax 0.12 after others
    if not any(used):
        return [False] * len(equation.invars), None
    program, reads = without_unused(equation.params["call_jaxpr"], used)
    return reads, equation.replace(
        invars=list(compress(equation.invars, reads)),
        outvars=list(compress(equation.outvars, used)),
        params={**equation.params, "call_jaxpr": program},
    )


class _Steps(Call):
    """See `Call`; what is registered for a platform runs there instead of the program.

    Its parameter ``loop`` is the kind of a program that is one `jax.lax.scan`, but for what
    `jax.vmap` adds around it; None for a program of all steps at once.
    """

    def __init__(self) -> None:
        super().__init__("steps")
        self.programs: dict[str, Callable[..., Leaves]] = {}
        pe.dce_rules[self] = _without_unused

    def register(
        self,
        platform: str,
        program: Callable[..., Leaves],
        of_several: Callable[..., Leaves] | None = None,
    ) -> None:
        """What runs on a platform, of the operands and of the parameters by name.

        ``of_several``: where a program is one of several devices.
        """
        self.programs[platform] = program

        def rule(context: Any, *operands: Any, **params: Any) -> Any:
            count = getattr(context.module_context.axis_context, "num_devices", None)
            f = program if count == 1 else of_several or program
            f = self.run if count is None else f  # of `jax.shard_map`
            return mlir.lower_fun(f, multiple_results=True)(context, *operands, **params)

        mlir.register_lowering(self, rule, platform)

    _map = Call.map_as_one

    def lowered(self, platform: str, equation: Any) -> Any:
        """The program that a platform runs: for `depth`."""
        f = partial(self.programs.get(platform, self.run), **equation.params)
        return jax.make_jaxpr(f)(*abstract_avals(equation.invars))


steps_p = _Steps()


class Operands(NamedTuple):
    """Leaves that a loop takes: the same in all steps, carried, and one of each step."""

    constants: Leaves
    carry: Leaves
    xs: Leaves


class Loop(NamedTuple):
    """A loop, as the rules of a platform read and rewrite it.

    Attributes:
        program: of a step, ``(*carry, *x) -> (*carry, *y)``; its constants are those of the loop.
        states: the number of leaves that are carried.
        length: the number of steps.
        reverse: whether the first step takes the last of the inputs.
        unroll: steps per trip.
        kind: see `loop`.
        before: the ``x`` of ``size`` steps at once, from the inputs of the loop.
        size: of a chunk of the loop; None for all of it.
        run: runs a chunk, from its ``x``; None for `scan`.
    """

    program: Program
    states: int
    length: int
    reverse: bool
    unroll: int
    kind: Kind
    before: Callable[[Leaves], Leaves] = list
    size: int | None = None
    run: "RunLoop | None" = None

    @classmethod
    def of(cls, equation: Any, kind: Kind) -> Self:
        """The loop of a `jax.lax.scan`."""
        params, (consts, carry, _) = equation.params, scan_parts(equation)
        program = Program.of(params["jaxpr"])
        constants = [*program.invars[:consts], *program.constvars]
        step = program._replace(constvars=constants, invars=program.invars[consts:])
        trips = params["length"], params["reverse"], params["unroll"]
        return cls(step, carry, *trips, kind)

    @property
    def inputs(self) -> list[Any]:
        """The variables of the ``x`` of a step."""
        return self.program.invars[self.states :]

    def retraced(
        self,
        operands: Operands,
        step: Callable[[Leaves], Leaves],
    ) -> tuple[Self, Operands]:
        """The loop of ``step([*constants, *carry, *x])``, carry and ``y``, and its operands."""
        program, constants = retraced(self.program, step)
        operands = operands._replace(constants=[*operands.constants, *constants])
        return self._replace(program=program), operands

    def scan(
        self,
        operands: Operands,
        rule: Rule = bind,
        of_one: Callable[[Leaves], Leaves] = list,
    ) -> tuple[Leaves, Leaves]:
        """The last carry and the ``y`` of all steps, by `jax.lax.scan`.

        ``rule``: as in `interpret`. ``of_one``: the ``x`` of a step, from those of ``operands``.
        """

        def step(carry: Leaves, x: Leaves) -> tuple[Leaves, Leaves]:
            environment = self.program.environment([*operands.constants, *carry, *of_one(x)])
            results = interpret(self.program, environment, self.program.outvars, rule)
            return results[: self.states], results[self.states :]

        return lax.scan(step, operands.carry, operands.xs, self.length, self.reverse, self.unroll)


RunLoop = Callable[[Loop, Operands], tuple[Leaves, Leaves]]


def lowered_by(
    at_once: Callable[[Any, Sequence[Any]], Leaves],
    lower: Callable[[Loop, Operands], Leaves | None],
    *operands: Any,
    call_jaxpr: Any,
    loop: Kind | None,
) -> Leaves:
    """The results of `steps`: of all steps by ``at_once``, a loop by ``lower``.

    That is as it is written if ``lower`` returns None.
    """
    if loop is None:
        return at_once(call_jaxpr, operands)

    program, values = entered(call_jaxpr, operands)
    for equation in program.eqns:
        inputs = [x.val if is_literal(x) else values[x] for x in equation.invars]
        results = None
        if equation.primitive.name == "scan":  # others stand around it
            consts, carry, _ = scan_parts(equation)
            constants = [*inputs[:consts], *constants_of(equation.params["jaxpr"])]
            parts = Operands(constants, inputs[consts : consts + carry], inputs[consts + carry :])
            results = lower(Loop.of(equation, loop), parts)
        results = bind(equation, inputs) if results is None else results
        values |= zip(equation.outvars, results, strict=True)
    return [x.val if is_literal(x) else values[x] for x in program.outvars]


def loop(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    length: int | None = None,
    reverse: bool = False,
    unroll: int = 1,
    linear: bool = False,
    in_one: bool = False,
) -> tuple[Any, Any]:
    """`jax.lax.scan`; the results are the same up to rounding.

    ``linear``: whether the next carry is linear in the carry, as in the loop of a derivative.
    ``in_one``: whether it stays one program, with nothing before the loop: that compiles faster.
    """
    step = written_apart(body) if unroll > 1 and target().waits else body
    scan = partial(lax.scan, step, length=length, reverse=reverse, unroll=unroll)
    # Of a new function each time, so that jax caches nothing for it.
    traced = jax.make_jaxpr(partial(scan), return_shape=True)(carry, xs)
    if traced[0].effects:  # of steps in order, or of devices that communicate
        return scan(carry, xs)
    loops = (each for each in traced[0].eqns if each.primitive.name == "scan")
    real = set[int]().union(*map(_real_parts, loops))
    if not real:
        return _bound(*traced, (carry, xs), Kind(linear, in_one))
    leaves, tree = jax.tree.flatten(carry)

    def joined(carry: Leaves, x: Any) -> tuple[Leaves, Any]:
        after, y = body(jax.tree.unflatten(tree, _split(carry, real)), x)
        return _joined(jax.tree.leaves(after), real), y

    start = _joined(leaves, real)
    last, ys = loop(joined, start, xs, length, reverse, unroll, linear, in_one)
    return jax.tree.unflatten(tree, _split(last, real)), ys


# A complex number of a state is two leaves. XLA compiles a loop that carries both to more kernels:
# recurrences of 1 to 256 complex numbers take 1.0 to 1.7 times as long, and up to 4.3 times with
# jax 0.10.2; with one leaf as long as those of `jax.lax.scan` (jax 0.12.0, 2 cores).
def _real_parts(equation: Any) -> set[int]:
    """The leaves of the carry of a scan which are real parts; the imaginary one is the next."""
    program, states = Program.of(equation.params["jaxpr"]), scan_parts(equation)[1]
    made, ends = producers(program), program.outvars[:states]
    names = [not is_literal(y) and y in made and made[y].primitive.name for y in ends]
    of_next = zip(names, names[1:], ends, ends[1:], strict=False)
    are_parts = [pair == ["real", "imag"] and a.aval == b.aval for *pair, a, b in of_next]
    return set(compress(range(states), are_parts))


def _joined(leaves: Leaves, real: Collection[int]) -> Leaves:
    """The leaves, with complex numbers in place of their parts."""
    rest = iter(enumerate(leaves))
    return [lax.complex(x, next(rest)[1]) if index in real else x for index, x in rest]


def _split(leaves: Leaves, real: Collection[int]) -> Leaves:
    """The leaves that `_joined` has joined."""
    parts: Leaves = []
    for x in leaves:
        parts += [lax.real(x), lax.imag(x)] if len(parts) in real else [x]
    return parts


def written_apart(body: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any, Any], Any]:
    """The body of a scan, whose results are written by kernels of a GPU that do not compute them.

    XLA writes the results of all steps of a trip by one kernel, and computes them in it from the
    state before the trip. A step that joins the entries of its state reads each of them for each of
    its own, so the steps before it are computed again and again: exponentially in their number.
    Behind an optimisation barrier, results are only written.
    """
    # jax 0.10.2, compiled for an H200, 16 layers of 4 tanh units in a trip: at most 2 steps in a
    # kernel for 15 of them; 16 steps of a GRU of 1 unit, which joins no entries, stay one kernel.

    def apart(carry: Any, x: Any) -> tuple[Any, Any]:
        carry, results = body(carry, x)
        return carry, lax.optimization_barrier(results)

    return apart


def each(f: Callable[..., Any]) -> Callable[..., Any]:
    """``f``, a function of arrays of all steps; the results are the same up to rounding.

    Its derivatives are those of ``f``; their programs are lowered as others are, unless they are
    passed to `each`, too.
    """

    def at_once(*arguments: Any) -> Any:
        # Of a new function each time, so that jax caches nothing for it.
        traced = jax.make_jaxpr(partial(f), return_shape=True)(*arguments)
        if traced[0].effects:  # of devices that communicate
            return f(*arguments)
        return _bound(*traced, arguments)

    return at_once


def _bound(closed: Any, shapes: Any, arguments: Any, loop: Kind | None = None) -> Any:
    """The results of a traced program, of the structure of ``shapes``, by `steps_p`."""
    program, constants = with_operands(closed)
    leaves = jax.tree.leaves(arguments)
    results = steps_p.bind(*constants, *leaves, call_jaxpr=program, loop=loop)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)
