"""The work of the products of a program."""

from collections.abc import Set
from typing import Any

from depth.counts import size
from depth.jaxprs import equations, read_by
from depth.primitives import of_kind, primitive


def products_with(program: Any, moved: Set[Any], least: int) -> int:
    """The operations of products with an array that is not ``moved``, of so many entries or more.

    Of the programs inside, those of all products.
    """
    small = [
        each
        for each in of_kind(program.eqns, "product")
        if max(map(size, read_by([each]).keys() - moved), default=0) < least
    ]
    return products_of(program) - sum(primitive(each).work(each) for each in small)


def products_of(program: Any) -> int:
    """The operations of the products of a program, convolutions included."""
    return sum(primitive(each).work(each) for each in of_kind(equations(program), "product"))
