"""Reading a list of layers: which are alike, what each returns, and which change themselves when they are called."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from deeppcr.layers.code import Opaque, Stateful, as_callable, changes, is_pair, take_apart
from deeppcr.layers.traced import trace


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a list.

    Attributes:
        call: the layer as the user calls it, ``call(x) -> x``.
        kind: a number; the same for layers that are alike, and only for those.
        code: what layers alike share, `deeppcr.layers.code.Code`.
        arrays: its own arrays.
        takes: the types of what it takes.
        returns: what it returns, as `jax.ShapeDtypeStruct`.
        changes: names of its own arrays that calling it replaces: counters of random numbers, statistics of a batch.
        needs_weak: whether some of its arrays give way to other dtypes, as Python numbers do, and what it returns depends on it.
        given: the layer, as it was given.
    """

    call: Callable[[Any], Any]
    kind: int
    code: Any
    arrays: list[Any]
    takes: Any
    returns: Any
    changes: tuple[str, ...] = ()
    needs_weak: bool = False
    given: Any = None

    @property
    def keeps_type(self) -> bool:
        """Whether it returns what it takes, in structure, shapes and dtypes."""
        return bool(self.takes == types_of(self.returns))


def listed(layers: Any) -> list[Any]:
    """The layers of a list, tuple or other sequence, of a module that has ``layers``, or of ``(apply, [params, ...])``.

    Raises:
        TypeError: ``layers`` is none of these, or one of them is not callable.
    """
    if _is_sequential(layers):
        layers = layers.layers
    elif is_pair(layers) and isinstance(layers[1], list | tuple) and not is_pair(layers[1]):
        layers = [(layers[0], parameters) for parameters in layers[1]]
    if not isinstance(layers, Iterable) or isinstance(layers, str | bytes | dict | jax.Array | np.ndarray):
        raise TypeError(
            f"layers is {type(layers).__name__}, expected a list of callables layer(x) -> x or of (apply, params), a module with "
            ".layers (Sequential), or deeppcr.stack(layers)."
        )
    found = list(layers)
    for number, layer in enumerate(found):
        if not callable(layer) and not is_pair(layer):
            raise TypeError(f"layers[{number}] is {layer!r}, expected a callable layer(x) -> x, or a pair (apply, params).")
    return found


def _is_sequential(layers: Any) -> bool:
    """Whether ``layers`` is a ``Sequential`` of flax or equinox, or a subclass that is called as it is."""
    for base in type(layers).__mro__:
        if base.__name__ == "Sequential" and base.__module__.partition(".")[0] in ("flax", "equinox"):
            return type(layers).__call__ is base.__call__
    return False


def read(layers: Sequence[Any], x: Any) -> list[Layer]:
    """Look at layers, the first of which takes ``x`` (arrays or `jax.ShapeDtypeStruct`). Layers alike are traced once.

    It stops at the first layer that cannot be looked at: one that raises, or that depends on more than shapes. At least one has
    to be read.
    """
    reader = _Reader()
    x = shapes_of(x)
    found: list[Layer] = []
    for layer in layers:
        try:
            found.append(reader.layer(layer, x))
        except Exception:
            break
        x = found[-1].returns
    return found


def take_all_apart(layers: Sequence[Any]) -> list[Layer]:
    """As `read`, without knowing what the layers take and return.

    Raises:
        TypeError: a layer cannot be taken apart.
    """
    reader = _Reader()
    found = []
    for number, layer in enumerate(layers):
        try:
            code, arrays = take_apart(layer)
        except Opaque as reason:
            raise TypeError(
                f"layers[{number}] cannot be taken apart into code and arrays ({reason}), so what it takes has to be known: "
                "deeppcr.stack(layers, x)."
            ) from None
        found.append(Layer(as_callable(layer), reader.kind(code, arrays), code, arrays, None, None))
    return found


class _Reader:
    """What is known of the kinds of layers met so far."""

    def __init__(self) -> None:
        self.codes: list[tuple[Any, Any]] = []  # code and types of the arrays, by kind
        self.known: dict[tuple[int, Any], Layer] = {}  # which keep the layer, and so its id
        self.results: dict[tuple[int, Any], tuple[Any, tuple[str, ...], bool]] = {}

    def layer(self, layer: Any, x: Any) -> Layer:
        """Look at one layer that takes ``x``; the same object is looked at once."""
        takes = types_of(x)
        if (id(layer), takes) not in self.known:
            self.known[id(layer), takes] = self._look(layer, x, takes)
        return self.known[id(layer), takes]

    def _look(self, layer: Any, x: Any, takes: Any) -> Layer:
        try:
            code, arrays = take_apart(layer)
            kind = self.kind(code, arrays)
            returns, changed, needs_weak = self._result(kind, code, arrays, x, takes)
        except Stateful:
            raise
        except Exception:  # whatever kept it from being rebuilt; if the layer itself is at fault, this raises again
            code, arrays, returns, changed = trace(as_callable(layer), x)
            kind, needs_weak = self.kind((code, takes), arrays), any(map(is_weak, arrays))
        return Layer(as_callable(layer), kind, code, arrays, takes, returns, changed, needs_weak, layer)

    def kind(self, code: Any, arrays: list[Any]) -> int:
        """The number of the layers alike."""
        key = code, array_types(arrays)
        for kind in reversed(range(len(self.codes))):  # a neighbour is the likeliest
            if self.codes[kind] == key:
                return kind
        self.codes.append(key)
        return len(self.codes) - 1

    def _result(self, kind: int, code: Any, arrays: list[Any], x: Any, takes: Any) -> tuple[Any, tuple[str, ...], bool]:
        if (kind, takes) not in self.results:
            returns, changed = try_out(code, arrays, x)
            needs_weak = False
            if any(map(is_weak, arrays)):
                firm = [jax.ShapeDtypeStruct(np.shape(array), jax.dtypes.result_type(array)) for array in arrays]
                needs_weak = types_of(try_out(code, firm, x)[0]) != types_of(returns)
            self.results[kind, takes] = returns, changed, needs_weak
        return self.results[kind, takes]


def try_out(code: Any, arrays: Sequence[Any], x: Any) -> tuple[Any, tuple[str, ...]]:
    """What the layer returns, and what of itself it replaces, from a call of a copy that computes nothing."""
    changed: list[str] = []

    def call(arrays: list[Any], x: Any) -> Any:
        built: list[Any] = []
        result = code.build(iter(arrays), built)(x)
        changed.extend(changes(built))
        return result

    returns = jax.eval_shape(call, [_shape_of(leaf) for leaf in arrays], x)
    return returns, tuple(dict.fromkeys(changed))


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
    return (jax.tree.structure(tree), *array_types(jax.tree.leaves(tree)))
