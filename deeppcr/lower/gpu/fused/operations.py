"""The operations of a kernel on single entries, as expressions of C.

16-bit numbers are computed in float32, and rounded after each operation, as XLA does.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from deeppcr.lower.gpu.fused import limits
from depth.primitives import PRIMITIVES


class CannotFuse(ValueError):
    """A kernel cannot evaluate a program; the message says why."""


class Type(NamedTuple):
    """How C holds numbers of a dtype.

    Attributes:
        memory: the type of an array of them.
        register: the type of a variable.
        load: an expression of a variable, by what the array has.
        store: the inverse.
    """

    memory: str
    register: str
    load: str = "{}"
    store: str = "{}"


TYPES = {
    "bool": Type("bool", "bool"),
    "float64": Type("double", "double"),  # is read, compared and rounded, not computed
    "float32": Type("float", "float"),
    "bfloat16": Type("unsigned short", "float", "from_bfloat16({})", "to_bfloat16({})"),
    "float16": Type("unsigned short", "float", "from_float16({})", "to_float16({})"),
    "int8": Type("signed char", "signed char"),
    "int16": Type("signed short", "signed short"),
    "int32": Type("signed int", "signed int"),
    "int64": Type("signed long long", "signed long long"),
    "uint8": Type("unsigned char", "unsigned char"),
    "uint16": Type("unsigned short", "unsigned short"),
    "uint32": Type("unsigned int", "unsigned int"),
    "uint64": Type("unsigned long long", "unsigned long long"),
}


@cache
def type_of(dtype: Any) -> Type:
    """How C holds numbers of a dtype.

    Raises:
        CannotFuse: it does not.
    """
    if str(dtype) not in TYPES:
        raise CannotFuse(f"a kernel does not compute in {dtype}")
    return TYPES[str(dtype)]


class Operation(NamedTuple):
    """A function of entries.

    Attributes:
        text: an expression of C, with ``{0}``, ``{1}`` and so on in place of the operands.
        dtype: of the result.
        latency: the number of instructions in it that wait for each other.
        instructions: of a thread.
    """

    text: str
    dtype: Any
    latency: int = 1
    instructions: int = 1


def _table(text: str) -> dict[str, str]:
    """Operations of the lines of a text, ``name: expression``, three spaces apart."""
    entries = re.split(r"   +|\n", text.strip())
    return dict(entry.split(": ", 1) for entry in entries if entry)


ANY = _table("""
    eq: {0} == {1}   ne: {0} != {1}   lt: {0} < {1}   le: {0} <= {1}   gt: {0} > {1}
    ge: {0} >= {1}   and: {0} & {1}   or: {0} | {1}   xor: {0} ^ {1}
""")
FLOATS = _table("""
    add: {0} + {1}   sub: {0} - {1}   mul: {0} * {1}   square: {0} * {0}   abs: fabsf({0})
    neg: -{0}   div: {0} / {1}   add_any: {0} + {1}
    max: lax_max({0}, {1})   min: lax_min({0}, {1})   is_finite: fabsf({0}) < INFINITE
    one_minus_square: (1.0f - {0}) * (1.0f + {0})
    logistic: lax_logistic({0})   tanh: lax_tanh({0})   sign: lax_sign({0})
    rem: fmodf({0}, {1})   atan2: atan2f({0}, {1})   pow: powf({0}, {1})
""")
OF_C = """
    acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor log log1p
    rsqrt sin sinh sqrt tan
"""
FLOATS |= {name: f"{name}f({{0}})" for name in OF_C.split()}
# What C leaves undefined is defined as in XLA: sums and products without a sign, as those with one
# may overflow; quotients by 0 and of the smallest number by -1; shifts by the width and more.
# BITS and WORD are those of the type.
INTEGERS = _table("""
    add: {0} + 0ull + {1}   sub: {0} - 0ull - {1}   mul: {0} * 1ull * {1}
    square: {0} * 1ull * {0}   neg: 0ull - {0}   add_any: {0} + 0ull + {1}   not: ~{0}
    max: {0} > {1} ? {0} : {1}   min: {0} < {1} ? {0} : {1}
    shift_left: {1} + 0ull < BITS ? {0} * 1ull << {1} : 0
    shift_right_logical: {1} + 0ull < BITS ? (unsigned WORD){0} >> {1} : 0
    shift_right_arithmetic: (signed WORD){0} >> ({1} + 0ull < BITS ? {1} : BITS - 1)
""")
SIGNED = INTEGERS | _table("""
    div: {1} == 0 ? -1 : {1} == -1 ? 0ull - {0} : {0} / {1}   sign: ({0} > 0) - ({0} < 0)
    rem: {1} == 0 ? {0} : {1} == -1 ? 0 : {0} % {1}   abs: {0} < 0 ? 0ull - {0} : {0}
""")
UNSIGNED = INTEGERS | _table("""
    div: {1} == 0 ? -1 : {0} / {1}   rem: {1} == 0 ? {0} : {0} % {1}   sign: {0} > 0
""")
BOOLEAN = {"not": "!{0}", "max": INTEGERS["max"], "min": INTEGERS["min"]}
BY_KIND = {"i": SIGNED, "u": UNSIGNED, "b": BOOLEAN}


def operation(name: str, operand: Any, result: Any, count: int = 1) -> Operation:
    """The elementwise operation of a primitive.

    Args:
        name: of the primitive.
        operand: the dtype of the last operand.
        result: that of the result.
        count: the number of operands.

    Raises:
        CannotFuse: kernels have none.
    """
    register = type_of(operand).register
    if name == "convert_element_type":
        return convert(operand, result)
    if name == "select_n":
        text = f"{{{count - 1}}}"
        for k in reversed(range(count - 2)):
            text = f"{{0}} == {k} ? {{{k + 1}}} : {text}"
    else:
        table = FLOATS if jnp.issubdtype(operand, jnp.floating) else BY_KIND[operand.kind]
        text = table.get(name) or ANY.get(name, "")
        bits, word = str(8 * operand.itemsize), register.partition(" ")[2]
        text = text.replace("BITS", bits).replace("WORD", word)
        if register == "double":
            text = text.replace("fabsf", "fabs")
    if not text:
        raise CannotFuse(f"{name} has no counterpart in a kernel")
    if PRIMITIVES[name].transcendental:
        return Operation(text, result, limits.FUNCTION_LATENCY, limits.FUNCTION_INSTRUCTIONS)
    return Operation(text, result)


def convert(operand: Any, result: Any) -> Operation:
    """A cast; from floats to integers to the nearest one that there is, and of NaN to 0."""
    before, register = type_of(operand).register, type_of(result).register
    text = "{0} != 0" if register == "bool" else f"({register}){{0}}"
    if jnp.issubdtype(operand, jnp.floating) and jnp.issubdtype(result, jnp.integer):
        text = _truncated(before, result, text)
    return Operation("{0}" if register == before else text, result, 0, 0)


def _truncated(before: str, result: Any, cast: str) -> str:
    """The integer of a floating number in a register of type ``before``."""
    ends = jnp.iinfo(result)
    least, most = map(spelled, (result.type(ends.min), result.type(ends.max)))
    if ends.bits == 32 and before == "float":
        return "to_int({0})" if ends.min else "to_unsigned({0})"
    if ends.bits < 32 and before == "float":
        return f"clipped(to_int({{0}}), {least}, {most})"
    above, below = map(spelled, (np.float32(ends.max + 1), np.float32(ends.min)))  # exact
    below_all = f"{{0}} == {{0}} ? {least} : 0" if ends.min else "0"
    return f"{{0}} >= {above} ? {most} : {{0}} > {below} ? {cast} : {below_all}"


NEVER = -math.inf  # how long what does not depend on the state waits for it


@dataclasses.dataclass(eq=False)
class Value:
    """An entry of an array: a variable of C, or a constant.

    Attributes:
        number: of the variables that there are before it; -1 of a constant.
        register: its type.
        text: an expression, with ``{0}``, ``{1}`` and so on in place of the operands.
        operands: none of a constant, and of what is read.
        latency: the number of instructions in it that wait for each other.
        instructions: of a thread.
        place: of what is read: the operand, and which of its entries.
        constant: its value, of numpy; None of a variable.
        kind: what values have in common that one statement computes.
        level: how many operations it is away from what is read.
        cost: its instructions, and those of its operands.
        structure: what values have in common that are the same function of what is read.
    """

    number: int
    register: str
    text: str = ""
    operands: "tuple[Value, ...]" = ()
    latency: int = 0
    instructions: int = 0
    place: tuple[int, ...] = ()
    constant: Any = None

    def __post_init__(self) -> None:
        self.kind: tuple[Any, ...] = self.register, self.text, *(x.register for x in self.operands)
        if self.constant is not None:
            self.kind = "constant", self.register
        elif self.place:
            self.kind = "operand", self.place[0]
        variables = [x for x in self.operands if x.constant is None]
        self.level: int = max((1 + x.level for x in variables), default=0)
        self.cost: int = self.instructions + sum(x.cost for x in self.operands)
        self.structure: int = hash((self.kind, *(x.structure for x in self.operands)))


class Code:
    """The statements of a step; to call it adds one, unless there is the same already.

    An entry is the index of its value here, so equal entries are equal numbers.

    Attributes:
        threads: that compute an example.
        batches: the number of batch axes of a state.
        folds: whether products with 0 and 1, and sums with 0, are taken for what they are of finite
            numbers, as in a derivative.
        values: of the statements, and constants.
        instructions: that have been counted.
    """

    def __init__(self, threads: int, batches: int) -> None:
        self.threads = threads
        self.batches = batches
        self.instructions = 0
        self.folds = False
        self.values: list[Value] = []
        self._by_key: dict[Any, int] = {}

    def read(self, place: tuple[int, int], dtype: Any) -> int:
        """A variable with the value of an entry of an operand: see `Value`."""
        return self._add(len(self.values), type_of(dtype).register, place=place)

    def constant(self, number: Any) -> int:
        """A number, of numpy."""
        key = type_of(number.dtype).register, spelled(number)
        if key not in self._by_key:
            self._by_key[key] = self._add(-1, *key, constant=number)
        return self._by_key[key]

    def _add(self, *attributes: Any, **more: Any) -> int:
        self.values.append(Value(*attributes, **more))
        return len(self.values) - 1

    def __call__(self, operation: Operation, entries: Sequence[int]) -> int:
        """The result of an operation."""
        if self.folds and (folded := self._folded(operation, entries)) is not None:
            return folded
        text, operands = _with_numbers(operation, [self.values[k] for k in entries])
        kind = type_of(operation.dtype)
        if kind.store != "{}":
            text = kind.load.format(kind.store.format(text))
        elif text == "{0}":
            return entries[0]
        key = kind.register, text, tuple(operands)
        if key not in self._by_key:
            self.instructions += operation.instructions
            most = limits.MAX_INSTRUCTIONS_OF_ALL if self.threads > 1 else limits.MAX_INSTRUCTIONS
            if self.instructions > most:
                raise CannotFuse(f"a step has more than {most} instructions")
            costs = operation.latency, operation.instructions
            self._by_key[key] = self._add(len(self.values), *key, *costs)
        return self._by_key[key]

    def _folded(self, operation: Operation, entries: Sequence[int]) -> int | None:
        """What an operation on 0 or 1 results in; None if that is not known, as of integers."""
        if not jnp.issubdtype(operation.dtype, jnp.floating):
            return None
        text = operation.text
        numbers = [self.values[k].constant for k in entries]
        is_zero = any(numbers[k] == 0 for k in ZERO.get(text, ()))
        if is_zero or ("?" in text and all(x == 0 for x in numbers[1:])):
            return self.constant(np.zeros((), operation.dtype)[()])
        units = (entries[1 - k] for k, unit in UNIT.get(text, ()) if numbers[k] == unit)
        return next(units, None)


# Of a number that is neither -0 nor NaN: a GPU has an instruction for it (CUDA 13.0, 9.0).
FOLDED = {
    "lax_max({0}, {1})": "{0} <= {1} ? {1} : {0}",
    "lax_min({0}, {1})": "{0} > {1} ? {1} : {0}",
}


def _with_numbers(operation: Operation, entries: Sequence[Value]) -> tuple[str, Sequence[Value]]:
    """The text of an operation on these operands, and their order."""
    text = operation.text
    if text in FOLDED:
        x, y = entries if entries[0].constant is None else entries[::-1]
        if y.constant is not None and y.text not in ("(-0.0f)", "NOT_A_NUMBER"):
            return FOLDED[text], (x, y)
    return text, entries


# Operands of which one that is 0 makes the result 0; and those that leave the other as it is.
ZERO = {"{0} * {1}": (0, 1), "{0} / {1}": (0,), "-{0}": (0,)}
UNIT = {
    "{0} * {1}": ((0, 1), (1, 1)),
    "{0} + {1}": ((0, 0), (1, 0)),
    "{0} - {1}": ((1, 0),),
    "{0} / {1}": ((1, 1),),
}


def spelled(entry: Any) -> str:
    """A number in C."""
    if jnp.issubdtype(entry.dtype, jnp.floating):
        number = float(entry)
        if np.isfinite(number):
            return f"({number!r}{'' if entry.dtype == np.float64 else 'f'})"
        return "NOT_A_NUMBER" if np.isnan(number) else f"({'-' * (number < 0)}INFINITE)"
    integer = int(entry)
    if integer >= 2**63:
        return f"({integer}ull)"
    return f"({integer})" if integer > -(2**63) else f"({integer + 1} - 1)"  # C has no such number
