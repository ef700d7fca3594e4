"""What "auto" takes in a program, as the rule is asked while the program is traced."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax

from deeppcr.planning.candidates import Candidate
from deeppcr.solving import problem
from experiments.bench.engine import Variant
from experiments.bench.table import Row


def chosen(variant: Variant, arguments: Sequence[Any]) -> str:
    """The method and the adjoint that the rule takes first, as a plan names them; "" for none."""
    found: dict[str, Any] = {}

    def noting(name: str) -> Callable[..., Any]:
        choose = getattr(problem, f"choose_{name}")

        def asked(*given: Any) -> Any:
            choice = choose(*given)
            found.setdefault(name, choice.option)
            return choice

        return asked

    with (
        mock.patch.object(problem, "choose_method", noting("method")),
        mock.patch.object(problem, "choose_adjoint", noting("adjoint")),
    ):
        if variant.prepare:
            arguments = jax.eval_shape(variant.prepare, *arguments)
        jax.eval_shape(lambda *given: variant.run(*given), *arguments)
    return Candidate(**found).name if "method" in found else ""


def saying(given: Variant | Callable[..., Any], arguments: Sequence[Any]) -> Variant:
    """The program with a cell of its row, "runs": what the rule takes; none where it is not asked.

    Args:
        given: a program.
        arguments: of it.
    """
    variant = given if isinstance(given, Variant) else Variant(given)

    def statistics(result: Any) -> Row:
        row = variant.statistics(result) if variant.statistics else {}
        runs = chosen(variant, arguments)
        return row | ({"runs": runs} if runs else {})

    return dataclasses.replace(variant, statistics=statistics)
