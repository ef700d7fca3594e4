"""Primitives that stand for a program, which is their parameter ``call_jaxpr``."""

from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cached_property, partial
from itertools import compress
from typing import Any, Self

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters import partial_eval as pe

from deeppcr.arrays import avals_of, combine, partition
from depth.counts import named_axes
from depth.jaxprs import HoldsProgram, Program, constants_of, equations, without_constants


class Later(HoldsProgram):
    """A program that is traced when it is read: most derivatives are only transposed.

    It stands for what `jax.make_jaxpr` returns, as a parameter ``call_jaxpr``.
    """

    effects = frozenset[Any]()

    def __init__(self, trace: Callable[[], Any], out_avals: list[Any]) -> None:
        self._trace, self._context, self.out_avals = trace, copy_context(), out_avals

    def __repr__(self) -> str:
        return f"{len(self.out_avals)} results"

    @cached_property
    def closed(self) -> Any:
        """The program."""
        return self._context.run(self._trace)

    @property
    def program(self) -> Program:
        """See `HoldsProgram`."""
        return Program.of(self.closed)

    def converted(self, convert: Callable[[Program], Program]) -> Self:
        """See `HoldsProgram`: it is traced from what is converted."""
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.closed, name)


class Call(Primitive):
    """A primitive; if jax replaces its program, as `jax.experimental.checkify` does, that runs.

    Its derivatives and its `jax.vmap` are those of the program.
    """

    multiple_results = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.def_impl(self.run)
        mlir.register_lowering(self, mlir.lower_fun(self.run, multiple_results=True))
        ad.primitive_jvps[self] = self._push
        ad.primitive_transposes[self] = self._transpose
        batching.fancy_primitive_batchers[self] = self._map_on
        self.def_effectful_abstract_eval(
            lambda *_, call_jaxpr, **params: (list(call_jaxpr.out_avals), call_jaxpr.effects)
        )

    def bind(self, *operands: Any, subfuns: Sequence[Any] = (), **params: Any) -> Any:
        if subfuns:
            (program,) = subfuns
            return program.call_wrapped(*operands)
        return super().bind(*operands, **params)

    def to_lojax(self, *operands: Any, **params: Any) -> Any:
        """Since jax 0.12, before compiling, if the program contains `jax.lax.custom_root`."""
        return self.run(*operands, **params)

    def _push(self, primals: Any, tangents: Any, **params: Any) -> Any:
        """Derivatives are those of the program, which may be lowered as another kind of program."""
        moves = nonzero(tangents)
        return jax.jvp(
            lambda *moving: self.run(*combine(primals, moves, moving), **params),
            tuple(compress(primals, moves)),
            tuple(compress(tangents, moves)),
        )

    def _transpose(self, cotangents: Any, *operands: Any, **params: Any) -> list[Any]:
        moves = list(map(ad.is_undefined_primal, operands))
        reached = nonzero(cotangents)

        def run(*moving: Any) -> list[Any]:
            return partition(self.run(*combine(operands, moves, moving), **params), reached)

        pull = self.transposed(run, *avals_of(compress(operands, moves)))
        return combine([None] * len(moves), moves, pull(list(compress(cotangents, reached))))

    def transposed(self, f: Callable[..., Any], *avals: Any) -> Callable[..., Any]:
        """The transpose of a program that is linear in its operands, of these types."""
        return jax.linear_transpose(f, *avals)

    def _map_on(self, axis: Any, operands: Any, axes: Any, **params: Any) -> Any:
        if set(axes) <= {None} and not communicates(params["call_jaxpr"], axis.name):
            results = self.bind(*operands, **params)
            return results, [None] * len(results)
        names = {"axis_name": axis.name, "spmd_axis_name": axis.spmd_name, "axis_size": axis.size}
        return self._map(operands, tuple(axes), names, params)

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        """The results for examples, and their axes; ``names``: further arguments of `jax.vmap`."""
        results = jax.vmap(partial(self.run, **params), axes, **names)(*operands)
        return results, [0] * len(results)

    def map_as_one(
        self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]
    ) -> Any:
        """The same by one equation, of the program for all examples: for ``_map``."""
        closed = jax.make_jaxpr(jax.vmap(partial(self.run, **params), axes, **names))(*operands)
        results = self.bind(*operands, **{**params, "call_jaxpr": closed})
        return results, [0] * len(results)

    def run(self, *operands: Any, call_jaxpr: Any, **params: Any) -> list[Any]:
        """The results of the program."""
        program = call_jaxpr.closed if isinstance(call_jaxpr, Later) else call_jaxpr
        return list(jaxpr_as_fun(program)(*operands))


def nonzero(tangents: Sequence[Any]) -> list[bool]:
    """Which tangents, or cotangents, are arrays, and not known to be zero."""
    return [not isinstance(t, ad.Zero) for t in tangents]


def is_jit_disabled() -> bool:
    """Whether `jax.jit` calls its function, as under `jax.disable_jit`."""
    return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def without_unused(
    call_jaxpr: Any, used: Sequence[bool], instantiate: bool = False
) -> tuple[Any, list[bool]]:
    """A program without the results that are not used, and which of its operands it then reads.

    ``instantiate``: whether it keeps all operands.
    """
    program, reads = pe.dce_jaxpr(without_constants(call_jaxpr), list(used), instantiate)
    is_closed = hasattr(call_jaxpr, "jaxpr")  # up to jax 0.10
    return call_jaxpr.replace(jaxpr=program) if is_closed else program, reads


def with_operands(closed: Any) -> tuple[Any, list[Any]]:
    """The program that takes its constants as its first operands, and these."""
    jaxpr, consts = without_constants(closed), constants_of(closed)
    invars = [*jaxpr.constvars, *jaxpr.invars]
    if closed is jaxpr:  # since jax 0.11
        return closed.replace(constvars=[], consts=[], invars=invars), consts
    return closed.replace(jaxpr=jaxpr.replace(constvars=[], invars=invars), consts=[]), consts


def communicates(closed: Any, axis: Any) -> bool:
    """Whether examples communicate over their axis."""
    return any(axis in axes for axes in map(named_axes, equations(without_constants(closed))))
