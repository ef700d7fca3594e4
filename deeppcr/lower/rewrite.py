"""Equations of a kind replaced wherever they are, in calls, too."""

from collections.abc import Callable
from functools import partial
from typing import Any

from deeppcr.programs.cut_first import apply
from depth.jaxprs import Replacement, rewritten


def replacing(is_of_kind: Callable[[Any], bool], write: Callable[..., Any]) -> Replacement:
    """For `evaluate`: a result ``write(equation, *operands)`` in place of each such equation."""

    def replace(equation: Any, operands: list[Any]) -> list[Any] | None:
        if is_of_kind(equation):
            return [write(equation, *operands)]
        return rewritten(equation, operands, partial(apply, replace=replace), is_of_kind)

    return replace
