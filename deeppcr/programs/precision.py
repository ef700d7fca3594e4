"""Products in full precision, where many steps are evaluated at once.

By default a GPU rounds the operands of large float32 products to TF32, a TPU those of all products
to bfloat16. The small products of a loop are exact on a GPU. All its steps at once are one large
product, so their states would be wrong by 1e-3, with a residual that is as wrong. Programs of all
steps, Jacobians and adjoints therefore compute every product of float32 or wider operands at
`jax.lax.Precision.HIGHEST`, unless the user asked for a precision, by an argument or by
`jax.default_matmul_precision`. The sequential loop keeps the program of the user.
"""

import operator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from deeppcr.programs.retrace import converted
from depth.jaxprs import HoldsProgram, Program, equations, without_constants
from depth.primitives import primitive

PRODUCTS = frozenset({"dot_general", "conv_general_dilated", "ragged_dot_general"})
WITHOUT_PROGRAMS = frozenset({"elementwise", "move", "reduction"})
OWN_KERNELS = frozenset({"pallas_call"})  # written for a device, precision included
TF32 = lax.Precision.HIGH
HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
ROUNDOFF = {lax.Precision.DEFAULT: 2.0**-8, TF32: 2.0**-11, lax.Precision.HIGHEST: 0.0}


def in_full_precision(program: Program) -> Program:
    """The same program, its variables included, with such products, also in derivative rules."""

    @cache  # a program that is called twice stays one
    def inner(value: Any) -> Any:
        """A jaxpr, closed or not; the same object if nothing changes."""
        jaxpr = without_constants(value)
        eqns = list(map(converted_equation, jaxpr.eqns))
        if all(map(operator.is_, eqns, jaxpr.eqns)):
            return value
        new = jaxpr.replace(eqns=eqns)
        return new if jaxpr is value else value.replace(jaxpr=new)

    def rule(users: Any, *arguments: Any) -> Any:
        """What a derivative rule, a function of tracers, returns: values, or a program first."""
        asked = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        with jax.default_matmul_precision(asked or "highest"):
            result = users.call_wrapped(*arguments)
        if isinstance(result, tuple) and result and hasattr(result[0], "eqns"):
            return inner(result[0]), *result[1:]
        return result

    def converted_equation(equation: Any) -> Any:
        """An equation; the same object if nothing changes."""
        name, params = equation.primitive.name, equation.params
        if name in OWN_KERNELS or primitive(equation).kind in WITHOUT_PROGRAMS:
            return equation
        if name in PRODUCTS:
            is_left = params["precision"] is not None or not _is_of_full_operands(equation)
            return equation if is_left else equation.replace(params=params | {"precision": HIGHEST})
        new = {
            key: value.converted(in_full_precision)
            if isinstance(value, HoldsProgram)
            else converted(value, inner, rule)
            for key, value in params.items()
        }
        is_same = all(map(operator.is_, new.values(), params.values()))
        return equation if is_same else equation.replace(params=new)

    return program._replace(eqns=list(map(converted_equation, program.eqns)))


def own_rounding(program: Program) -> float:
    """The unit roundoff of the products for which a user asked less than full precision; else 0."""
    products = filter(_is_of_full_operands, equations(program))
    return max((_roundoff(product.params["precision"]) for product in products), default=0.0)


def _roundoff(precision: Any) -> float:
    """That of one product, as a device may compute it: in bfloat16, or in TF32."""
    if precision is None:  # it is computed in full precision here
        return 0.0
    if isinstance(precision, tuple):
        return max(map(ROUNDOFF.__getitem__, precision))
    return ROUNDOFF[lax.Precision.DEFAULT if str(precision).startswith("BF16") else TF32]


def _is_of_full_operands(equation: Any) -> bool:
    """Whether it is a product of operands of float32 or a wider dtype, complex ones included."""
    if equation.primitive.name not in PRODUCTS:
        return False
    dtypes = [atom.aval.dtype for atom in equation.invars[:2]]
    return all(jnp.issubdtype(x, jnp.inexact) and jnp.finfo(x).bits >= 32 for x in dtypes)
