"""Primitives that stand for a program, which is their parameter ``call_jaxpr``."""

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from depth.jaxprs import without_constants


class Call(Primitive):
    """A primitive; if jax replaces its program, as `jax.experimental.checkify` does, that runs."""

    multiple_results = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.def_impl(self.run)
        mlir.register_lowering(self, mlir.lower_fun(self.run, multiple_results=True))

    def bind(self, *operands: Any, subfuns: Sequence[Any] = (), **params: Any) -> Any:
        if subfuns:
            (program,) = subfuns
            return program.call_wrapped(*operands)
        return super().bind(*operands, **params)

    def to_lojax(self, *operands: Any, **params: Any) -> Any:
        """Since jax 0.12, before compiling, if the program contains `jax.lax.custom_root`."""
        return self.run(*operands, **params)

    def run(self, *operands: Any, call_jaxpr: Any, **others: Any) -> list[Any]:
        """The results of the program."""
        return list(jaxpr_as_fun(call_jaxpr)(*operands))


def without_unused(
    call_jaxpr: Any, used: Sequence[bool], instantiate: bool = False
) -> tuple[Any, list[bool]]:
    """A program without the results that are not used, and which of its operands it then reads.

    ``instantiate``: whether it keeps all operands.
    """
    program, reads = pe.dce_jaxpr(without_constants(call_jaxpr), list(used), instantiate)
    is_closed = hasattr(call_jaxpr, "jaxpr")  # up to jax 0.10
    return call_jaxpr.replace(jaxpr=program) if is_closed else program, reads
