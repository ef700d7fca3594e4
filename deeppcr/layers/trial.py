"""Calling a layer on trial, with shapes only: its program, its output, and its side effects.

A layer that was taken apart is called as a copy, with traced arrays in its slots. A layer that
cannot be taken apart is called directly: its program replaces it (`Traced`), and the arrays that
the program captured are its own. Every mutable object that the call can reach is watched, and
restored.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.effects import is_rule_of_jax, side_effects
from deeppcr.layers.objects import Structure, key_of
from deeppcr.layers.parts import as_callable
from deeppcr.layers.reach import Reach
from depth.jaxprs import equations, without_constants
from depth.primitives import primitive

# By these, code can distinguish a numpy array from the traced array that replaces it.
_ASKING = frozenset(
    ["isinstance", "issubclass", "type", "hasattr", "getattr", "callable", "__class__"]
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of a call on trial.

    Attributes:
        returns: the output of the layer, as `jax.ShapeDtypeStruct`.
        acts: its other effects, as text: it changes counters of random numbers, batch statistics, a
            list; it has side effects. "" if nothing.
        needs_weak: whether the dtypes that it returns depend on weakly typed arrays.
        asks: whether its code may distinguish numpy arrays from jax arrays.
        size: the number of equations of its program.
    """

    returns: Any
    acts: str = ""
    needs_weak: bool = False
    asks: bool = False
    size: int = 0

    @functools.cached_property
    def types(self) -> tuple[Any, ...]:
        """The types of the output, which the next layer takes."""
        return types_of(self.returns)


@dataclasses.dataclass(frozen=True)
class Traced:
    """The program of a layer without the arrays that it captured; equal if their texts are.

    Constants and functions inside the program do not appear in its text. By ``identities``, they
    must be the same objects.
    """

    text: str
    tree: Structure
    identities: tuple[int, ...]
    jaxpr: Any = dataclasses.field(compare=False)
    kept: Any = dataclasses.field(compare=False, repr=False)  # keeps the identities valid

    def build(self, arrays: Iterator[Any]) -> Any:
        """The program with other arrays."""
        own = [next(arrays) for _ in self.jaxpr.constvars]
        return lambda x: self.tree.unflatten(
            jax.core.eval_jaxpr(self.jaxpr, own, *jax.tree.leaves(x))
        )


def try_copy(code: Any, arrays: Sequence[Any], x: Any, layer: Any = None) -> Trial | None:
    """Call a copy of a layer, built of ``code`` and ``arrays``, on ``x``: arrays or their shapes.

    Args:
        layer: the layer itself, if there is one.

    Returns:
        None if the copy may behave differently from the layer.

    Raises:
        Unseen: it cannot be called on trial.
    """

    def build(arrays: list[Any]) -> Any:
        return code.build(iter(arrays))

    closed, returns, acts, reach = _run(build, x, arrays)
    if reach.may_be_stale:
        return None
    needs_weak = asks = False
    if any(map(is_weak, arrays)):
        firm = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype, _ in array_types(arrays)]
        needs_weak = types_of(_run(build, x, firm)[1]) != types_of(returns)
    if layer is not None and any(isinstance(array, np.ndarray) for array in arrays):
        asks = bool(_ASKING & reach.names) or any(name.startswith("is_") for name in reach.names)
        if not asks and not is_same_on_jax(code, arrays, layer, x):
            return None
    return Trial(returns, acts or effects_of(closed), needs_weak, asks, _size(closed))


def trace(layer: Any, x: Any) -> tuple[Traced, list[Any], Trial]:
    """Call a layer directly on ``x``, shapes: its program, its captured arrays, and its trial.

    Raises:
        Unseen: it cannot be called on trial.
    """
    closed, returns, acts, _ = _run(lambda _: layer, x)
    jaxpr = without_constants(closed)
    constants = [] if acts else _constants(closed)  # which may be traced no more
    captured = [c if isinstance(c, jax.Array) else jnp.asarray(c) for c in constants]
    kept = [*_beside_the_text(jaxpr), *([object()] if acts else [])]
    tree = Structure(jax.tree.structure(returns))
    code = Traced(str(jaxpr), tree, tuple(map(id, kept)), jaxpr, kept)
    acts, needs_weak = acts or effects_of(closed), any(map(is_weak, captured))
    return code, captured, Trial(returns, acts, needs_weak, size=_size(closed))


def is_same_on_jax(code: Any, arrays: Sequence[Any], layer: Any, x: Any) -> bool:
    """Whether a layer with numpy arrays behaves as its copy with jax arrays."""
    with jax.ensure_compile_time_eval():
        ours = [jnp.asarray(array) if isinstance(array, np.ndarray) else array for array in arrays]
    given, _, acts, _ = _run(lambda _: layer, x)
    copied = jax.make_jaxpr(lambda x: code.build(iter(ours))(x))(x)
    if acts or str(without_constants(given)) != str(without_constants(copied)):
        return False
    originals = {id(own): array for own, array in zip(ours, arrays, strict=True)}
    return all(
        a is b or key_of(np.asarray(a)) == key_of(np.asarray(originals.get(id(b))))
        for a, b in zip(_constants(given), _constants(copied), strict=True)
    )


def _run(
    build: Callable[[list[Any]], Any], x: Any, arrays: Sequence[Any] = ()
) -> tuple[Any, Any, str, Reach]:
    """The program of a layer, the shapes it returns, its changes as text, and its reach."""
    reaches: list[Reach] = []
    changes: list[str] = []

    def call(arrays: list[Any], x: Any) -> Any:
        layer = build(arrays)
        reaches.append(Reach(layer, x))
        try:
            result = as_callable(layer)(x)
            changes.extend(reaches[0].changes())
            return result
        finally:
            reaches[0].restore()

    shapes = list(map(shape_of, arrays))
    closed, returns = jax.make_jaxpr(call, return_shape=True)(shapes, x)
    acts = f"calling it changes {', '.join(changes)}" if changes else ""
    return closed, returns, acts, reaches[0]


def _size(closed: Any) -> int:
    return sum(1 for _ in equations(without_constants(closed)))


def effects_of(closed: Any) -> str:
    """Why a program must run exactly once per call; "" if it has no side effects."""
    if found := side_effects(closed):
        return f"it has side effects: {', '.join(found)}"
    for equation in equations(without_constants(closed)):
        if "callback" in equation.primitive.name:
            return f"it calls Python when it runs, by {equation.primitive.name}"
        if any(equation.params.get("donated_invars", ())):
            return "it donates what it takes"
    return ""


# Except calls, loops and branches: the functions in their parameters are created by jax, from the
# program in another parameter.
_OF_JAX = ("reduce", "custom_linear_solve")


def _beside_the_text(jaxpr: Any) -> Iterator[Any]:
    """Constants of programs inside; functions in parameters: callbacks, rules for derivatives."""
    for equation in jaxpr.eqns:
        name, known = equation.primitive.name, primitive(equation)
        is_rule = known.kind == "derivative rule"
        by_jax = known.inlines or known.kind in ("loop", "branch") or name in _OF_JAX
        if is_rule and not is_rule_of_jax(equation):
            yield object()  # each trace creates new rules, which equal no other
        for parameter in equation.params.values():
            items = parameter if isinstance(parameter, tuple | list) else (parameter,)
            programs = [item for item in items if hasattr(item, "eqns")]
            for inner in programs:
                yield from _constants(inner)
                yield from _beside_the_text(inner)
            is_known = is_rule or by_jax or programs
            if not is_known and callable(parameter) and not isinstance(parameter, type | np.dtype):
                yield parameter


def _constants(closed: Any) -> list[Any]:
    return list(getattr(closed, "consts", ()))


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array or number."""
    return jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf), weak_type=is_weak(leaf))


def _dtype(leaf: Any) -> Any:
    """The dtype as jax canonicalises it; jax's own arrays have it."""
    return leaf.dtype if isinstance(leaf, jax.Array) else jax.dtypes.result_type(leaf)


def is_weak(leaf: Any) -> bool:
    """Whether an array or number is weakly typed."""
    return bool(getattr(leaf, "weak_type", isinstance(leaf, int | float | complex)))


def array_types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The shapes and dtypes of arrays, and whether they are weakly typed."""
    return tuple((np.shape(leaf), _dtype(leaf), is_weak(leaf)) for leaf in arrays)


def types_of(tree: Any) -> tuple[Any, ...]:
    """The structure of a pytree, and the shapes and dtypes in it."""
    return (Structure(jax.tree.structure(tree)), *array_types(jax.tree.leaves(tree)))
