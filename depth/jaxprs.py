"""Reading jaxprs through what jax makes public: programs inside equations, literals, references, source lines."""

import os
from functools import lru_cache
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params

_JAX = os.path.dirname(jax.__file__) + os.sep
_OURS = tuple(
    os.path.join(os.path.dirname(__file__), name)
    for name in ("analysis.py", "structures.py", "__main__.py")
)


class Location(NamedTuple):
    """Where the user's program made an equation."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return (
            f"{os.path.basename(self.file)}:{self.line} ({self.function})"
            if self.line
            else "(no line known)"
        )


NOWHERE = Location("", 0, "")


def location(equation: Any, caller: Location = NOWHERE) -> Location:
    """The innermost line outside jax and this package that led to ``equation``; where jax kept none, ``caller``."""
    traceback = equation.source_info.traceback
    return (_innermost(traceback) if traceback else None) or caller


@lru_cache(maxsize=1024)  # equations of one line have equal tracebacks
def _innermost(traceback: Any) -> Location | None:
    for frame in traceback.frames:
        if not frame.file_name.startswith((_JAX, *_OURS, "<frozen")):
            return Location(frame.file_name, frame.line_num, frame.function_name)
    return None


def without_constants(jaxpr: Any) -> Any:
    """The jaxpr proper of a ClosedJaxpr, which `jax.make_jaxpr` returns up to jax 0.10; a Jaxpr is one already."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an operand is a constant written into the equation."""
    return hasattr(atom, "val")


def is_reference(atom: Any) -> bool:
    """Whether an operand is a mutable reference, which holds an array."""
    return hasattr(atom.aval, "inner_aval")


def inside(equation: Any) -> list[Any]:
    """All jaxprs in the parameters of an equation."""
    return [without_constants(jaxpr) for jaxpr in jaxprs_in_params(equation.params)]


def scan_parts(equation: Any) -> tuple[int, int, int]:
    """The numbers of constants, of carried values, and of scanned inputs of a scan."""
    params = equation.params
    if "num_consts" in params:
        consts, carry = params["num_consts"], params["num_carry"]
    else:  # since jax 0.12, as trees
        consts, carry, _ = (len(tree) for tree in params["ft_in"].unpack())
    return consts, carry, len(equation.invars) - consts - carry


def live_equations(jaxpr: Any) -> list[Any]:
    """The equations that a result depends on, or that have an effect."""
    wanted = {id(atom) for atom in jaxpr.outvars}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(id(variable) in wanted for variable in equation.outvars):
            kept.append(equation)
            wanted.update(map(id, equation.invars))
    return kept[::-1]
