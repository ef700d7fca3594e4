"""Reading a list of layers: which are equal, what each takes and returns, and its side effects."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.checks import describe
from deeppcr.layers.parts import Code, as_callable, build, is_pair, take_apart
from deeppcr.layers.pure import InTurn, Seen
from deeppcr.programs.effects import side_effects
from depth.jaxprs import equations, without_constants


@dataclasses.dataclass(frozen=True, eq=False)
class Trial:
    """What was learned from calling a copy of a layer on shapes: the same for equal layers.

    Attributes:
        takes: its input, as `jax.ShapeDtypeStruct`.
        returns: its output.
        acts: its other effects, as text; "" if it has none.
        size: the number of equations of its program.
    """

    takes: Any
    returns: Any
    acts: str
    size: int

    @property
    def alone(self) -> str:
        """Why the layer cannot be part of a chain; "" if it can."""
        leaves = jax.tree.leaves(self.returns)
        floating = all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
        return self.acts or ("" if floating else "it returns non-floating arrays")


class Layer(NamedTuple):
    """One layer of a list: as it was ``given``, its ``code``, its ``arrays``, and its ``trial``."""

    given: Any
    code: Code
    arrays: list[Any]
    trial: Trial


def read(layers: Sequence[Any], x: Any, trials: dict[Any, Trial]) -> Iterator[Layer]:
    """Read layers, the first of which takes ``x``.

    Equal layers are tried once: ``trials`` is what is known, and gets what is new. What a layer
    with effects changes is not there for later ones, which may read it.

    Raises:
        Exception: why the next layer has to be called in its turn.
    """
    x, seen = jax.tree.map(shape_of, x), Seen()
    for given in layers:
        code, arrays = take_apart(given, seen)
        if any(isinstance(each, np.ndarray) for each in arrays):
            raise InTurn("it holds arrays of numpy; jnp.asarray makes a chain of it")
        key = code, types_of(arrays), types_of(x)
        if key not in trials:
            take_apart(jax.tree.map(lambda _: None, x), seen)
            trials[key] = try_codes([code], arrays, x)
        yield Layer(given, code, arrays, trials[key])
        x = trials[key].returns


def try_codes(codes: Sequence[Code], arrays: Sequence[Any], x: Any) -> Trial:
    """Call copies of layers on ``x``, one after another."""
    acts: list[str] = []

    def call(arrays: list[Any], x: Any) -> Any:
        y, layers = x, build(codes, arrays)
        before = take_apart([layers, x])
        for layer in layers:
            y = layer(y)
        acts.append(_changes(before, layers, x))
        return y

    closed, returns = jax.make_jaxpr(call, return_shape=True)(list(map(shape_of, arrays)), x)
    program = list(equations(without_constants(closed)))
    acts += [f"it has side effects: {name}" for name in side_effects(closed)]
    if any(any(each.params.get("donated_invars", ())) for each in program):
        acts.append("it donates what it takes")
    return Trial(x, returns, next(filter(None, acts), ""), len(program))


def _changes(before: tuple[Code, list[Any]], layers: list[Any], x: Any) -> str:
    """What calls changed in layers and in their argument, taken apart ``before``; "" if nothing."""
    code, arrays = before
    known = list(map(id, arrays))
    try:
        after, now = take_apart([layers, x])
        if after == code and list(map(id, now)) == known:
            return ""
    except InTurn:  # a layer has a part that it had not
        pass
    leaves = [leaf for layer in layers for leaf in jax.tree_util.tree_leaves_with_path(layer)]
    new = [path for path, leaf in leaves if isinstance(leaf, jax.Array) and id(leaf) not in known]
    return f"calling it changes {', '.join(map(jax.tree_util.keystr, new)) or 'its state'}"


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array or number, and whether it is weakly typed."""
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else jax.dtypes.result_type(leaf)
    weak = getattr(leaf, "weak_type", isinstance(leaf, int | float | complex))
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=bool(weak))


def types_of(tree: Any) -> tuple[Any, ...]:
    """The structure of a pytree, and the types of the arrays in it."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *map(shape_of, leaves)


def listed(layers: Any) -> list[Any]:
    """The layers of a sequence, of a module that has ``layers``, or of ``(apply, [params, ...])``.

    Raises:
        TypeError: ``layers`` is none of these, or one of them is not callable.
    """
    if is_sequential(layers):
        layers = layers.layers
    elif is_pair(layers) and isinstance(layers[1], list | tuple) and not is_pair(layers[1]):
        layers = [(layers[0], parameters) for parameters in layers[1]]
    no_lists = str | bytes | dict | jax.Array | np.ndarray
    if not isinstance(layers, Iterable) or isinstance(layers, no_lists):
        raise TypeError(
            f"layers is {describe(layers)}, expected a list of callables layer(x) -> x or of "
            "(apply, params), a module with .layers (Sequential), or deeppcr.stack(layers)."
        )
    found = list(layers)
    for number, layer in enumerate(found):
        if not callable(layer) and not is_pair(layer):
            raise TypeError(
                f"layers[{number}] is {describe(layer)}, expected a callable layer(x) -> x, or a "
                "pair (apply, params), in one flat list; for arrays write (apply, [params, ...])."
            )
    return found


def is_sequential(layers: Any) -> bool:
    """Whether this is a ``Sequential`` of flax or equinox, or a subclass with its ``__call__``."""
    for base in type(layers).__mro__:
        if base.__name__ == "Sequential" and base.__module__.startswith(("flax.", "equinox.")):
            return type(layers).__call__ is base.__call__
    return False


def call(layer: Any, x: Any, number: int) -> Any:
    """``layer(x)``; an error, whose type does not change, names the layer and its input."""
    try:
        return as_callable(layer)(x)
    except Exception as error:
        called = layer[0] if is_pair(layer) else layer
        while isinstance(called, partial):  # of functools, or of jax.tree_util
            called = called.func
        is_class = isinstance(called, type)
        name = describe(called) if is_class else getattr(called, "__name__", type(called).__name__)
        where = f"layers[{number}] ({name}) was given {describe(x)}"
        if type(error) in (TypeError, ValueError):
            error.args = (f"{where}: {error}",)
        else:  # of a class of its own, whose arguments may mean anything
            error.add_note(where)
        raise
