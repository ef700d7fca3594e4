"""`steps`: an equation that stands for a program of many steps, which each platform lowers."""

from collections.abc import Callable
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

import jax
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe

from deeppcr.arrays.avals import abstract
from deeppcr.arrays.state import Leaves
from deeppcr.programs.calls import Call, without_unused

Program = Callable[..., Leaves]  # of the operands, and of the parameters of the equation by name


class Kind(NamedTuple):
    """What is known of steps in order; see `loop`."""

    linear: bool
    in_one: bool


def _without_unused(used: list[bool], *given: Any) -> tuple[list[bool], Any]:
    """The equation without the results that nobody reads."""
    equation = given[-1]  # since jax 0.12 after others
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
        self.programs: dict[str, Program] = {}
        pe.dce_rules[self] = _without_unused

    def register(self, platform: str, program: Program, of_several: Program | None = None) -> None:
        """What runs on a platform; ``of_several``: where a program is one of several devices."""
        self.programs[platform] = program

        def rule(context: Any, *operands: Any, **params: Any) -> Any:
            count = getattr(context.module_context.axis_context, "num_devices", None)
            f = program if count == 1 else of_several or program
            f = self.run if count is None else f  # of `jax.shard_map`
            return mlir.lower_fun(f, multiple_results=True)(context, *operands, **params)

        mlir.register_lowering(self, rule, platform)

    def _map(self, operands: Any, axes: Any, names: dict[str, Any], params: dict[str, Any]) -> Any:
        mapped = jax.vmap(partial(self.run, **params), axes, **names)
        closed = jax.make_jaxpr(mapped)(*operands)
        results = self.bind(*operands, **{**params, "call_jaxpr": closed})
        return results, [0] * len(results)

    def lowered(self, platform: str, equation: Any) -> Any:
        """The program that a platform runs: for `depth`."""
        f = partial(self.programs.get(platform, self.run), **equation.params)
        return jax.make_jaxpr(f)(*(abstract(x.aval) for x in equation.invars))


steps_p = _Steps()
