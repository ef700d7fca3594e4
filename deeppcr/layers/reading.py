"""Reading a list of layers: which are equal, what each takes and returns, and its side effects."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from deeppcr.checks import describe
from deeppcr.layers.parts import Code, as_callable, is_pair, take_apart
from deeppcr.layers.pure import InTurn, Seen
from deeppcr.programs.effects import side_effects
from depth.jaxprs import equations, without_constants


class Trial(NamedTuple):
    """What was learned from calling a copy of a layer on shapes.

    Attributes:
        returns: its output, as `jax.ShapeDtypeStruct`.
        acts: its other effects, as text; "" if it has none.
        size: the number of equations of its program.
    """

    returns: Any
    acts: str
    size: int


class Layer(NamedTuple):
    """One layer of a list.

    Attributes:
        given: the layer, as it was given.
        code: the part that equal layers share.
        arrays: its own arrays.
        takes: its input, as `jax.ShapeDtypeStruct`.
        trial: the same for layers with equal code, types of arrays and types of input.
    """

    given: Any
    code: Code
    arrays: list[Any]
    takes: Any
    trial: Trial


def read(
    layers: Sequence[Any], x: Any, trials: dict[Any, Trial], past_changes: bool = False
) -> tuple[list[Layer], Exception | None]:
    """Read layers, the first of which takes ``x``, and say why reading stopped, if it did.

    It stops before the first layer that has to be called in its turn: later ones may read what that
    changes. With ``past_changes`` it stops only if it is unknown what a layer returns. Equal layers
    are tried once: ``trials`` is what is known, and gets what is new.
    """
    found, x, seen = list[Layer](), jax.tree.map(shape_of, x), Seen()
    for given in layers:
        try:
            code, arrays = take_apart(given, seen)
            if any(isinstance(each, np.ndarray) for each in arrays):
                raise InTurn("it holds arrays of numpy; jnp.asarray makes a chain of it")
            key = code, array_types(arrays), types_of(x)
            if key not in trials:
                take_apart(jax.tree.map(lambda _: None, x), seen)
                trials[key] = try_code(code, arrays, x)
            layer = Layer(given, code, arrays, x, trials[key])
            if layer.trial.acts and not past_changes:
                raise InTurn(layer.trial.acts)
        except Exception as reason:
            return found, reason
        found.append(layer)
        x = layer.trial.returns
    return found, None


def try_code(code: Code, arrays: Sequence[Any], x: Any) -> Trial:
    """Call a copy of a layer on ``x``."""
    acts: list[str] = []

    def call(arrays: list[Any], x: Any) -> Any:
        layer = code.build(iter(arrays))
        before = take_apart(layer), take_apart(x)
        y = layer(x)
        acts.append(_changes(before, layer, x))
        return y

    closed, returns = jax.make_jaxpr(call, return_shape=True)(list(map(shape_of, arrays)), x)
    program = list(equations(without_constants(closed)))
    acts += [f"it has side effects: {name}" for name in side_effects(closed)]
    if any(any(each.params.get("donated_invars", ())) for each in program):
        acts.append("it donates what it takes")
    return Trial(returns, next(filter(None, acts), ""), len(program))


def _changes(before: Sequence[tuple[Code, list[Any]]], layer: Any, x: Any) -> str:
    """What a call changed in a layer and in its argument, taken apart ``before``; "" if nothing."""
    try:
        after = take_apart(layer), take_apart(x)
        pairs = zip(before, after, strict=True)
        if all(a == b and list(map(id, xs)) == list(map(id, ys)) for (a, xs), (b, ys) in pairs):
            return ""
    except InTurn:  # it has a part that it had not
        pass
    known = {id(array) for _, arrays in before for array in arrays}
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    new = [path for path, leaf in leaves if isinstance(leaf, jax.Array) and id(leaf) not in known]
    return f"calling it changes {', '.join(map(jax.tree_util.keystr, new)) or 'its state'}"


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array or number."""
    shape, dtype, weak = array_types([leaf])[0]
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak)


def array_types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The shapes and dtypes of arrays, and whether they are weakly typed."""

    def one(x: Any) -> tuple[Any, ...]:
        dtype = x.dtype if isinstance(x, jax.Array) else jax.dtypes.result_type(x)
        weak = getattr(x, "weak_type", isinstance(x, int | float | complex))
        return np.shape(x), dtype, bool(weak)

    return tuple(map(one, arrays))


def types_of(tree: Any) -> tuple[Any, ...]:
    """The structure of a pytree, and the shapes and dtypes in it."""
    return (jax.tree.structure(tree), *array_types(jax.tree.leaves(tree)))


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
