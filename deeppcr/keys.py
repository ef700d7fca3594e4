"""Random bits that are others if they are drawn for many steps at once.

`jax.vmap` draws for each key what it draws for the key alone only if keys are those of threefry,
jax's default. Keys of "rbg" and "unsafe_rbg" give other bits side by side.
"""

from typing import Any

import jax
import jax.numpy as jnp

from depth.jaxprs import equations, inside, is_literal, moved_by
from depth.primitives import primitive

THREEFRY = "key<fry>"


def is_of_threefry(equation: Any) -> bool:
    """Whether an equation, of kind "random", draws with keys of threefry."""
    return str(equation.invars[0].aval.dtype) == THREEFRY


def drawn_alone(jaxpr: Any) -> str:
    """The keys by which a program draws bits that differ side by side; "" if it has none.

    Keys that are the same in all steps do not.
    """
    moved = moved_by(jaxpr, jaxpr.invars)
    for equation in jaxpr.eqns:
        if moved.intersection(x for x in equation.invars if not is_literal(x)):
            within = [each for program in inside(equation) for each in equations(program)]
            found = next(filter(_draws_alone, [equation, *within]), None)
            if found is not None:
                return str(found.invars[0].aval.dtype)
    return ""


def _draws_alone(equation: Any) -> bool:
    if equation.primitive.name == "rng_bit_generator":  # of a state, not of a key
        return True
    is_key = equation.invars and jnp.issubdtype(equation.invars[0].aval.dtype, jax.dtypes.prng_key)
    draws = primitive(equation).kind == "random" or equation.primitive.name == "random_gamma"
    return bool(draws and is_key and not is_of_threefry(equation))
