"""The work of the products of a program."""

from collections.abc import Collection
from typing import Any

from depth.counts import size
from depth.jaxprs import equations, is_literal
from depth.primitives import primitive


def products_with(program: Any, moved: Collection[Any], least: int) -> int:
    """The operations of products with an array that is not ``moved``, of so many entries or more.

    Of the programs inside, those of all products.
    """

    def counts(equation: Any) -> bool:
        others = (x for x in equation.invars if not is_literal(x) and x not in moved)
        return primitive(equation).kind != "product" or any(size(x) >= least for x in others)

    return products_of(program._replace(eqns=list(filter(counts, program.eqns))))


def products_of(program: Any) -> int:
    """The operations of the products of a program, convolutions included."""
    products = (each for each in equations(program) if primitive(each).kind == "product")
    return sum(primitive(each).work(each) for each in products)
