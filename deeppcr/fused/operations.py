"""The operations of a kernel on single entries.

They are composed of what kernels of Pallas compute natively on all GPUs and versions of jax. 16-bit
numbers are computed in float32, and rounded after each operation, as XLA does.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr.arrays.state import float32_or_better
from depth.primitives import primitive

# Instructions of an exponential function and the like: as compiled for an H200, where those of the
# special function unit count as eight, at an eighth of the rate.
WAITS, INSTRUCTIONS = 16, 28


class Operation(NamedTuple):
    """A function of entries.

    Attributes:
        function: of scalars, or of arrays of one shape.
        latency: the number of instructions in it that wait for each other.
        instructions: of a thread.
    """

    function: Callable[..., Any]
    latency: int = 1
    instructions: int = 1


Apply = Callable[[Operation, Sequence[Any]], Any]
"""``(operation, entries) -> entry``."""

NATIVE = {
    *("abs", "add", "and", "atan2", "cos", "div", "eq", "exp", "exp2", "ge", "gt", "integer_pow"),
    *("le", "log", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "rem", "rsqrt"),
    *("select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin"),
    *("square", "sub", "tanh", "xor"),
}


def _sqrt(x: Any) -> Any:
    is_end = (x == 0) | (x == jnp.inf)  # where the reciprocal root is inf or 0
    return lax.select(is_end, x, x * lax.rsqrt(x))


def _log1p(x: Any) -> Any:
    # The error of 1 + x is undone by the quotient (W. Kahan; D. Goldberg, *What every computer
    # scientist should know about floating-point arithmetic*, 1991, theorem 4).
    near = 1 + x
    shift = near - 1
    is_exact = (shift == 0) | (near == jnp.inf)
    far = lax.log(near)
    safe = lax.select(is_exact, jnp.ones_like(x), shift)
    return lax.select(shift == 0, x, lax.select(is_exact, far, far * (x / safe)))


def _expm1(x: Any) -> Any:
    # (e^x - 1) x / log(e^x): the errors of both cancel (W. Kahan).
    grown = lax.exp(x)
    shift = grown - 1
    logarithm = lax.log(grown)
    is_end = (shift == 0) | (shift == -1) | (grown == jnp.inf)
    safe = lax.select(is_end, jnp.ones_like(x), logarithm)
    return lax.select(shift == 0, x, lax.select(is_end, shift, shift * (x / safe)))


COMPOSED: dict[str, Callable[..., Any]] = {
    "add_any": lax.add,
    "clamp": lambda low, x, high: lax.min(lax.max(x, low), high),
    "expm1": _expm1,
    "is_finite": lambda x: lax.abs(x) < jnp.inf,
    "log1p": _log1p,
    "one_minus_square": lambda x: (1 - x) * (1 + x),
    "sqrt": _sqrt,
}


def operation(equation: Any) -> Operation | None:
    """The elementwise operation of an equation; None if kernels have none."""
    name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype
    cost = (WAITS, INSTRUCTIONS) if primitive(equation).transcendental else (1, 1)
    if name == "convert_element_type":
        return convert(dtype)
    if name in COMPOSED:
        return _in_float32(COMPOSED[name], dtype, *cost)
    if name not in NATIVE:
        return None
    params = equation.primitive.get_bind_params(equation.params)
    return _in_float32(_bound(equation.primitive, tuple(sorted(params.items()))), dtype, *cost)


@cache
def _bound(bound: Any, params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """A primitive with its parameters: one function, so that `once` knows it again."""
    return lambda *entries: bound.bind(*entries, **dict(params))


@cache
def convert(dtype: Any) -> Operation:
    """A cast."""
    return Operation(lambda x: lax.convert_element_type(x, dtype), 0, 0)


@cache
def multiplied(dtype: Any) -> Operation:
    """The product of two entries, in the precision of a sum of this dtype."""
    working = float32_or_better(dtype)
    return Operation(lambda a, b: lax.mul(*(lax.convert_element_type(x, working) for x in (a, b))))


@cache
def _in_float32(
    function: Callable[..., Any], dtype: Any, latency: int, instructions: int
) -> Operation:
    """The function, computed in float32 where its operands are shorter."""

    def evaluated(*entries: Any) -> Any:
        if not any(map(_is_half, entries)):
            return function(*entries)
        result = function(*(x.astype(np.float32) if _is_half(x) else x for x in entries))
        return result.astype(dtype) if result.dtype != dtype else result

    return Operation(evaluated, latency, instructions)


def _is_half(entry: Any) -> bool:
    return jnp.issubdtype(entry.dtype, jnp.floating) and jnp.finfo(entry.dtype).bits < 32


def compute(operation: Operation, entries: Sequence[Any]) -> Any:
    """The result of an operation; entries that all examples share are repeated for each."""
    shape = jnp.broadcast_shapes(*(x.shape for x in entries))
    return operation.function(*(repeated(x, shape) for x in entries))


def once(apply: Apply) -> Apply:
    """The same operation on the same entries has one result: see `deeppcr.fused.entries.narrow`."""
    known: dict[Any, tuple[Sequence[Any], Any]] = {}

    def evaluated(operation: Operation, entries: Sequence[Any]) -> Any:
        key = operation, *map(id, entries)
        if key not in known:
            known[key] = entries, apply(operation, entries)  # which keeps their ids from others
        return known[key][1]

    return evaluated


def repeated(entry: Any, shape: tuple[int, ...]) -> Any:
    """An entry of this shape."""
    return entry if entry.shape == shape else lax.full(shape, entry, entry.dtype)


class CannotFuse(ValueError):
    """A kernel cannot evaluate a program; the message says why."""


class Counter:
    """Counts operations instead of computing them: entries are the latencies from the state.

    Attributes:
        most: instructions, of which more are refused.
        instructions: that have been counted.
    """

    def __init__(self, most: int) -> None:
        self.most, self.instructions = most, 0

    def __call__(self, operation: Operation, entries: Sequence[Any]) -> Any:
        """The latency of the result."""
        self.instructions += operation.instructions
        if self.instructions > self.most:
            raise CannotFuse(f"a step has more than {self.most} instructions")
        known = [x.latency for x in entries if isinstance(x, Latency)]
        return Latency(max(known, default=0) + operation.latency)


@dataclasses.dataclass(frozen=True)
class Latency:
    """The number of operations that an entry waits for, one after another."""

    latency: int
