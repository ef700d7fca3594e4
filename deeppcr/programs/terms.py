"""The work of the products of a program."""

from collections.abc import Set
from typing import Any

from depth.counts import size
from depth.jaxprs import equations, read_by
from depth.primitives import of_kind, primitive


def products_with(program: Any, dependent: Set[Any], least: int) -> int:
    """The operations of products with an array that is not ``dependent``, of ``least`` entries.

    Of the programs inside, those of all products.
    """
    small = [
        x
        for x in of_kind(program.eqns, "product")
        if max(map(size, read_by([x]).keys() - dependent), default=0) < least
    ]
    return products_of(program) - sum(primitive(x).work(x) for x in small)


def products_of(program: Any) -> int:
    """The operations of the products of a program, convolutions included."""
    return sum(primitive(x).work(x) for x in of_kind(equations(program), "product"))
