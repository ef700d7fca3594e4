"""What a program computes, as expressions: its jaxpr, read symbolically, where the inputs are the leaves of pytrees.

Every array is one of

- `Uniform`: all its entries are one number, which depends on no leaf, or on all of them alike;
- `Constant`: an array that depends on no leaf (a key, a table);
- `Entrywise`: entry j is an expression in the j-th entries of the arrays of leaf i, and in numbers;
- `Partial`: a reduction (sum, max, all, ...) over some leaves;
- `Several`: a vector of the last two, still to be reduced.

An expression is a number that stands for (operation, operands), so that equal expressions have equal numbers, in every program
read with the same `Terms`. What moves entries, draws them, or is not known here cannot be expressed: `Different`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.jaxprs import ELEMENTWISE
from deeppcr.signature import signature
from depth.jaxprs import called, is_literal, without_constants

MERGES = {
    "add": "sum",
    "add_any": "sum",
    "max": "max",
    "min": "min",
    "mul": "prod",
    "and": "and",
    "or": "or",
}
REDUCTIONS = {f"reduce_{op}": op for op in ("sum", "max", "min", "prod", "and", "or")}
ALSO_ELEMENTWISE = {
    "complex",
    "conj",
    "log2",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
}
MOVES = {
    "reshape",
    "squeeze",
    "expand_dims",
    "broadcast_in_dim",
}  # entries stay in order, if none is repeated


class Different(Exception):
    """The programs may differ; the message says where."""


@dataclasses.dataclass(frozen=True)
class Uniform:
    """One number, everywhere."""

    term: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """An array that depends on no leaf."""

    term: int


@dataclasses.dataclass(frozen=True)
class Entrywise:
    """Entry by entry from the arrays of one leaf."""

    leaf: int
    term: int


@dataclasses.dataclass(frozen=True)
class Partial:
    """A reduction by ``op``, over ``(leaf, term, 1)``: each entry of a leaf, and ``(-1, term, n)``: a number, n times."""

    op: str
    parts: tuple[tuple[int, int, int], ...]


@dataclasses.dataclass(frozen=True)
class Several:
    """A vector of numbers, each a `Partial` or of a leaf with one entry."""

    items: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Static:
    """An argument that is no array."""

    value: Any


Value = Uniform | Constant | Entrywise | Partial | Several
Terms = dict[Any, int]  # an expression -> the number that stands for it


def intern(terms: Terms, *expression: Any) -> int:
    """The number of an expression."""
    return terms.setdefault(expression, len(terms))


class Reader:
    """Reads one program: with leaves in several ``groups``, of these sizes, and called so in errors."""

    def __init__(
        self, terms: Terms, groups: Sequence[str], sizes: Sequence[int], names: Sequence[str]
    ) -> None:
        self.terms, self.groups, self.sizes, self.names = terms, groups, sizes, names
        self.zeros: set[int] = set()
        self.origins: dict[
            int, tuple[int, Any]
        ] = {}  # of what has been widened: from which term, of which dtype
        self.members: dict[str, set[int]] = {group: set() for group in groups}
        for leaf, (group, size) in enumerate(zip(groups, sizes, strict=True)):
            self.members[group] |= {leaf} if size else set()
        self.totals = {
            group: sum(sizes[leaf] for leaf in leaves) for group, leaves in self.members.items()
        }

    def outputs(self, function: Callable[..., Any], avals: Any, values: Any) -> tuple[Any, Any]:
        """The values that the function returns, and their shapes."""
        leaves, treedef = jax.tree.flatten(avals)
        dynamic = [place for place, leaf in enumerate(leaves) if not isinstance(leaf, Static)]

        def flat(arrays: list[Any]) -> Any:
            filled = [leaf.value if isinstance(leaf, Static) else None for leaf in leaves]
            for place, array in zip(dynamic, arrays, strict=True):
                filled[place] = array
            return function(*jax.tree.unflatten(treedef, filled))

        closed, shape = jax.make_jaxpr(flat, return_shape=True)(
            [leaves[place] for place in dynamic]
        )
        inputs = jax.tree.leaves(values)
        found = self.walk(closed, [inputs[place] for place in dynamic])
        return jax.tree.unflatten(jax.tree.structure(shape), found), shape

    def term(self, *expression: Any) -> int:
        return intern(self.terms, *expression)

    def walk(self, closed: Any, inputs: list[Value]) -> list[Value]:
        """The values of a program's outputs."""
        jaxpr = without_constants(closed)
        constants = [self.constant(value) for value in getattr(closed, "consts", ())]
        values: dict[Any, Value] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True)
        )

        def read(atom: Any) -> Value:
            return (
                self.constant(np.asarray(atom.val, atom.aval.dtype))
                if is_literal(atom)
                else values[atom]
            )

        for equation in jaxpr.eqns:
            results = self.apply(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def constant(self, value: Any) -> Value:
        term = self.term("constant", signature(value))
        if isinstance(value, np.ndarray) and not value.shape and value == 0:
            self.zeros.add(term)
        return Constant(term) if np.shape(value) else Uniform(term)

    def apply(self, equation: Any, operands: list[Value]) -> list[Value]:
        """The results of one equation."""
        name = equation.primitive.name
        inner = called(equation)
        if inner is not None:
            return self.walk(inner, operands)
        if equation.outvars and not any(_size(atom) for atom in equation.outvars):
            return [Uniform(self.term("no entries"))] * len(equation.outvars)
        if name == "cond":
            return self.cond(equation, operands)
        if equation.effects and equation.outvars:
            raise Different(f"{name} has side effects")
        if name in ELEMENTWISE or name in ALSO_ELEMENTWISE:
            return [self.elementwise(equation, operands)]
        if name in MOVES:
            return [self.move(equation, operands)]
        if name in REDUCTIONS and not isinstance(operands[0], Constant):
            return [self.reduce(equation, REDUCTIONS[name], operands[0])]
        if name == "dot_general" and not _size(equation.invars[0]):
            return [Partial("sum", ())]
        if all(isinstance(value, Uniform | Constant) for value in operands):
            return self.unrelated(equation, operands)
        if name == "dot_general":
            return [self.inner_product(equation, operands)]
        if name == "concatenate" and all(_size(atom) == 1 for atom in equation.invars):
            return [Several(tuple(operands))]
        closed = [
            self.settled(value) if _size(a) == 1 else value
            for a, value in zip(equation.invars, operands, strict=True)
        ]
        if all(isinstance(value, Uniform | Constant) for value in closed):
            return self.unrelated(equation, closed)
        raise Different(
            f"{name} is applied to {self.called(operands)}, which does not act on each entry by itself"
        )

    def called(self, operands: Sequence[Value]) -> str:
        leaves: set[int] = set()
        for value in operands:
            if isinstance(value, Several):
                return "several leaves"
            leaves |= {value.leaf} if isinstance(value, Entrywise) else set()
            leaves |= {leaf for leaf, *_ in value.parts} if isinstance(value, Partial) else set()
        return " and ".join(self.names[leaf] for leaf in sorted(leaves - {-1})[:2]) or "numbers"

    def settled(self, value: Value) -> Value:
        """A number that is final: a reduction is one over all leaves of a dtype, or refused."""
        if (
            isinstance(value, Entrywise)
            and self.sizes[value.leaf] == self.totals[self.groups[value.leaf]] == 1
        ):
            return Uniform(self.term("only", self.groups[value.leaf], (value.term,)))
        if isinstance(value, Several):
            raise Different("it gathers numbers of several leaves in one array")
        if not isinstance(value, Partial):
            return value
        found: dict[str, dict[int, list[int]]] = {}
        numbers: dict[int, int] = {}
        for leaf, term, count in value.parts:
            if leaf < 0:
                numbers[term] = numbers.get(term, 0) + count if value.op in ("sum", "prod") else 1
            else:
                found.setdefault(self.groups[leaf], {}).setdefault(leaf, []).append(term)
        expressions: list[tuple[str, tuple[int, ...]]] = []
        for group, leaves in found.items():
            terms = {tuple(sorted(of_leaf)) for of_leaf in leaves.values()}
            if set(leaves) != self.members[group] or len(terms) > 1:
                some = self.names[min(set(leaves))]
                raise Different(
                    f"{some} is reduced by {value.op}, apart from other leaves, or in another way"
                )
            expressions.append((group, terms.pop()))
        if (
            not numbers
            and len(expressions) == 1
            and self.totals[expressions[0][0]] == len(expressions[0][1]) == 1
        ):
            return Uniform(self.term("only", *expressions[0]))
        return Uniform(
            self.term("all", value.op, tuple(sorted(expressions)), tuple(sorted(numbers.items())))
        )

    def elementwise(self, equation: Any, operands: list[Value]) -> Value:
        name, out = equation.primitive.name, equation.outvars[0].aval
        merge, size = MERGES.get(name), _size(equation.outvars[0])
        if name in ("copy", "copy_p") or (
            name == "convert_element_type" and equation.invars[0].aval.dtype == out.dtype
        ):
            return operands[0]
        if name == "convert_element_type":
            converted = self.converted(operands[0], equation.invars[0].aval.dtype, out.dtype)
            if converted is not None:
                return converted
        if name in ("add", "add_any"):
            kept = [value for value in operands if not self.is_zero(value)]
            if len(kept) == 1:
                return kept[0]
        if merge and size == 1 and (self.partial(operands, merge) or self.two_leaves(operands)):
            return self.merged(merge, operands)
        operands = [
            self.settled(value) if not isinstance(value, Entrywise) else value for value in operands
        ]
        leaves = {value.leaf for value in operands if isinstance(value, Entrywise)}
        if len(leaves) > 1:
            raise Different(f"{name} combines {self.called(operands)}")
        if any(isinstance(value, Constant) for value in operands):
            if leaves:
                raise Different(
                    f"{name} combines {self.called(operands)} with an array that differs from entry to entry"
                )
            return self.unrelated(equation, operands)[0]
        terms = tuple(value.term for value in operands)  # type: ignore[union-attr]
        term = self.term(name, str(out.dtype), signature(equation.params), terms)
        return Entrywise(leaves.pop(), term) if leaves else Uniform(term)

    def converted(self, value: Value, old: Any, new: Any) -> Value | None:
        """In a wider dtype, or back in the one from before; None for other conversions.

        Both are exact, so once is as good as step by step, and a sum may be widened before it is taken, as `jnp.sum` does.
        """
        if not isinstance(value, Uniform | Entrywise | Partial) or not (
            _inexact(old) and _inexact(new)
        ):
            return None
        terms = [term for _, term, _ in value.parts] if isinstance(value, Partial) else [value.term]
        changed = {}
        for term in terms:
            origin, dtype = self.origins.get(term, (term, old))
            if dtype == new:
                changed[term] = origin
            elif jnp.promote_types(old, new) == new:
                changed[term] = self.term("widened", origin, str(new))
                self.origins[changed[term]] = (origin, dtype)
            else:
                return None
        if isinstance(value, Partial):
            return Partial(
                value.op,
                tuple(sorted((leaf, changed[term], count) for leaf, term, count in value.parts)),
            )
        return dataclasses.replace(value, term=changed[value.term])

    def is_zero(self, value: Value) -> bool:
        return isinstance(value, Uniform) and value.term in self.zeros

    def partial(self, operands: Sequence[Value], op: str) -> bool:
        return any(isinstance(value, Partial) and value.op == op for value in operands)

    def two_leaves(self, operands: Sequence[Value]) -> bool:
        return len({value.leaf for value in operands if isinstance(value, Entrywise)}) > 1

    def merged(self, op: str, operands: Sequence[Value]) -> Value:
        """The reduction over all that the operands reduce over."""
        operands = [
            value for value in operands if value != Partial(op, ())
        ]  # over a leaf without entries
        if len(operands) == 1:
            return operands[0]
        parts: list[tuple[int, int, int]] = []
        for value in operands:
            if isinstance(value, Entrywise):
                parts.append((value.leaf, value.term, 1))
            elif isinstance(value, Partial) and value.op == op:
                parts.extend(value.parts)
            else:
                settled = self.settled(value)
                if not isinstance(settled, Uniform):
                    raise Different(f"it gathers {self.called([value])} with other numbers")
                parts.append((-1, settled.term, 1))
        return Partial(op, tuple(sorted(parts)))

    def reduce(self, equation: Any, op: str, value: Value) -> Value:
        size = _size(equation.invars[0])
        if size == 1:
            return value
        if isinstance(value, Several):
            return self.merged(op, value.items)
        if len(equation.params["axes"]) < equation.invars[0].aval.ndim:
            if isinstance(value, Uniform):
                return self.unrelated(equation, [value])[0]
            raise Different(
                f"{equation.primitive.name} reduces some axes of {self.called([value])}"
            )
        if isinstance(value, Uniform):
            return Partial(op, ((-1, value.term, size),) if size else ())
        if not isinstance(value, Entrywise):
            raise Different(f"{equation.primitive.name} reduces {self.called([value])} again")
        return Partial(op, ((value.leaf, value.term, 1),) if size else ())

    def inner_product(self, equation: Any, operands: list[Value]) -> Value:
        (left, right), batch = equation.params["dimension_numbers"]
        axes = tuple(range(equation.invars[0].aval.ndim))
        leaves = {value.leaf for value in operands if isinstance(value, Entrywise)}
        mixed = any(not isinstance(value, Entrywise | Uniform) for value in operands)
        if (
            mixed
            or len(leaves) > 1
            or any(map(len, batch))
            or not tuple(left) == tuple(right) == axes
        ):
            raise Different(f"dot_general multiplies {self.called(operands)} as matrices")
        (leaf,) = leaves
        term = self.term(
            "inner_product",
            str(equation.outvars[0].aval.dtype),
            tuple(value.term for value in operands),
        )  # type: ignore[union-attr]
        if self.sizes[leaf] == 1:
            return Entrywise(leaf, term)
        return Partial("sum", ((leaf, term, 1),))

    def move(self, equation: Any, operands: list[Value]) -> Value:
        value, before, after = operands[0], _size(equation.invars[0]), _size(equation.outvars[0])
        if isinstance(value, Uniform):
            return value
        if isinstance(value, Constant):
            return self.unrelated(equation, operands)[0]
        if before == after:
            return value
        settled = self.settled(value) if before == 1 else value
        if not isinstance(settled, Uniform):
            raise Different(f"{self.called([value])} is spread over other entries")
        return settled

    def cond(self, equation: Any, operands: list[Value]) -> list[Value]:
        index = self.settled(operands[0])
        if not isinstance(index, Uniform):
            raise Different(f"a branch is chosen by {self.called([index])} alone")
        branches = [self.walk(branch, operands[1:]) for branch in equation.params["branches"]]
        results: list[Value] = []
        for values in zip(*branches, strict=True):
            if len(set(values)) == 1:
                results.append(values[0])
                continue
            finals = [self.settled(value) for value in values]
            leaves = {value.leaf for value in finals if isinstance(value, Entrywise)}
            constant = any(isinstance(value, Constant) for value in finals)
            if len(leaves) > 1 or (leaves and constant):
                raise Different(f"branches return {self.called(finals)}")
            term = self.term("cond", index.term, tuple(value.term for value in finals))  # type: ignore[union-attr]
            results.append(
                Entrywise(leaves.pop(), term)
                if leaves
                else (Constant if constant else Uniform)(term)
            )
        return results

    def unrelated(self, equation: Any, operands: Sequence[Value]) -> list[Value]:
        """Of what depends on no leaf, any operation is the same one in both programs if it looks the same."""
        described = tuple(
            (type(value), value.term, atom.aval.shape, str(atom.aval.dtype))  # type: ignore[union-attr]
            for value, atom in zip(operands, equation.invars, strict=True)
        )
        key = (equation.primitive.name, signature(equation.params), described)
        results: list[Value] = []
        for place, atom in enumerate(equation.outvars):
            shape = getattr(atom.aval, "shape", ())
            term = self.term("operation", key, place, shape, str(getattr(atom.aval, "dtype", "")))
            results.append(Constant(term) if shape else Uniform(term))
        return results


def _size(atom: Any) -> int:
    return int(np.prod(atom.aval.shape, dtype=int))


def _inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))
