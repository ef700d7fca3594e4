"""Calling a copy of a layer that computes nothing: what it returns, and what it does beside that."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.layers.code import as_callable, changes
from deeppcr.layers.effects import effects_of
from deeppcr.layers.held import Held
from deeppcr.layers.sameness import Structure, same
from depth.jaxprs import without_constants

# By these, code can tell an array of numpy from one that is traced in its place.
_ASKING = frozenset(
    ["isinstance", "issubclass", "type", "hasattr", "getattr", "callable", "__class__"]
)


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of a call on trial.

    Attributes:
        returns, changes, effects, acts_outside, needs_weak: as in `deeppcr.layers.reading.Layer`.
        asks_for_types: whether its code may do something else with an array of numpy than with one of jax.
    """

    returns: Any
    changes: tuple[str, ...]
    effects: str = ""
    acts_outside: bool = False
    needs_weak: bool = False
    asks_for_types: bool = False

    @property
    def found(self) -> tuple[Any, tuple[str, ...], str, bool, bool]:
        """What a `Layer` has of it."""
        return self.returns, self.changes, self.effects, self.acts_outside, self.needs_weak


def run(call: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """The program of a call, and what it returns, as `jax.ShapeDtypeStruct`."""
    closed, returns = jax.make_jaxpr(call, return_shape=True)(*arguments)
    return closed, returns


def try_out(
    code: Any, arrays: Sequence[Any], x: Any, layer: Any = None, is_traced: bool = False
) -> Trial | None:
    """Call a copy of ``layer``; None if it has to be called as it is, since a copy would do something else.

    Raises:
        Unseen: it cannot be called on trial.
    """
    changed: list[str] = []
    held: list[Held] = []

    def call(arrays: list[Any], x: Any) -> Any:
        built: list[Any] = []
        copy = code.build(iter(arrays), built)
        built.append(("its argument", x, *jax.tree.flatten(x)))
        held.append(Held(copy))
        try:
            result = copy(x)
            changed.extend(changes(built))
            if not changed:
                changed.extend(held[-1].changes(is_traced))
            return result
        finally:
            held[-1].restore()

    closed, returns = run(call, [_shape_of(leaf) for leaf in arrays], x)
    effects = effects_of(closed)
    found = held[0]
    if found.may_be_stale:
        return None
    acts_outside = bool(effects) or (
        bool(changed) and (layer is None or found.changed_any_of(Held(layer)))
    )
    needs_weak = asks = False
    if any(map(is_weak, arrays)):
        firm = [
            jax.ShapeDtypeStruct(np.shape(array), jax.dtypes.result_type(array)) for array in arrays
        ]
        needs_weak = types_of(run(call, firm, x)[1]) != types_of(returns)
    if layer is not None and any(isinstance(array, np.ndarray) for array in arrays):
        asks = bool(_ASKING & found.names) or any(name.startswith("is_") for name in found.names)
        if not asks and not is_same_on_jax(code, arrays, layer, x):
            return None
    return Trial(returns, tuple(dict.fromkeys(changed)), effects, acts_outside, needs_weak, asks)


def is_same_on_jax(code: Any, arrays: Sequence[Any], layer: Any, x: Any) -> bool:
    """Whether ``layer`` does the same with its arrays of numpy as its copy does with arrays of jax in their place."""
    with jax.ensure_compile_time_eval():
        ours = [jnp.asarray(array) if isinstance(array, np.ndarray) else array for array in arrays]
    held = Held(layer)
    try:
        given = run(as_callable(layer), x)[0]
        if held.changes():
            return False
    finally:
        held.restore()
    copied = run(lambda x: code.build(iter(ours), [])(x), x)[0]
    if str(without_constants(given)) != str(without_constants(copied)):
        return False
    pairs = {id(own): array for own, array in zip(ours, arrays, strict=True)}
    constants = zip(constants_of(given), constants_of(copied), strict=True)
    return all(a is b or same(np.asarray(a), np.asarray(pairs.get(id(b)))) for a, b in constants)


def constants_of(closed: Any) -> list[Any]:
    """The constants of a program."""
    return list(getattr(closed, "consts", ()))


def shapes_of(x: Any) -> Any:
    """Arrays as `jax.ShapeDtypeStruct`."""
    return jax.tree.map(_shape_of, x)


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    weak = is_weak(leaf)
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), weak_type=weak)


def is_weak(leaf: Any) -> bool:
    """Whether the dtype of an array or number gives way to others."""
    return bool(getattr(leaf, "weak_type", isinstance(leaf, int | float | complex)))


def array_types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The shapes and dtypes of arrays, and whether they are weakly typed."""
    return tuple((np.shape(leaf), jax.dtypes.result_type(leaf), is_weak(leaf)) for leaf in arrays)


def types_of(tree: Any) -> tuple[Any, ...]:
    """The structure of a pytree, and the shapes and dtypes in it."""
    return (Structure(jax.tree.structure(tree)), *array_types(jax.tree.leaves(tree)))


def is_of_jax(x: Any) -> bool:
    """Whether all leaves are arrays of jax, so that a layer cannot tell ``x`` from one that is traced."""
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))
