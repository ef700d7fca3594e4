"""Reading a list of layers: which are alike, what each returns, and which change themselves when they are called."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from deeppcr.layers.code import Opaque, Stateful, as_callable, is_pair, take_apart
from deeppcr.layers.held import Held
from deeppcr.layers.reach import Unseen
from deeppcr.layers.traced import trace
from deeppcr.layers.trial import Trial, array_types, is_same_on_jax, shapes_of, try_out, types_of


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
        changes: names of what calling it changes: counters of random numbers, statistics of a batch, a list that grows.
        effects: what else calling it does, in words; "" if nothing.
        acts_outside: whether it does so to more than its own arrays.
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
    effects: str = ""
    acts_outside: bool = False
    needs_weak: bool = False
    given: Any = None

    @property
    def acts(self) -> bool:
        """Whether calling it does more than to return something."""
        return bool(self.changes or self.effects)

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
    if not isinstance(layers, Iterable) or isinstance(
        layers, str | bytes | dict | jax.Array | np.ndarray
    ):
        raise TypeError(
            f"layers is {type(layers).__name__}, expected a list of callables layer(x) -> x or of (apply, params), a module with "
            ".layers (Sequential), or deeppcr.stack(layers)."
        )
    found = list(layers)
    for number, layer in enumerate(found):
        if not callable(layer) and not is_pair(layer):
            raise TypeError(
                f"layers[{number}] is {layer!r}, expected a callable layer(x) -> x, or a pair (apply, params)."
            )
    return found


def _is_sequential(layers: Any) -> bool:
    """Whether ``layers`` is a ``Sequential`` of flax or equinox, or a subclass that is called as it is."""
    for base in type(layers).__mro__:
        if base.__name__ == "Sequential" and base.__module__.partition(".")[0] in (
            "flax",
            "equinox",
        ):
            return type(layers).__call__ is base.__call__
    return False


def read(layers: Sequence[Any], x: Any) -> list[Layer]:
    """Look at layers, the first of which takes ``x``, up to the first that cannot be looked at: `Reader.read`."""
    return Reader().read(layers, x, past_changes=True)


def take_all_apart(layers: Sequence[Any]) -> list[Layer]:
    """As `read`, without knowing what the layers take and return.

    Raises:
        TypeError: a layer cannot be taken apart.
    """
    reader = Reader()
    found = []
    for number, layer in enumerate(layers):
        try:
            code, arrays = take_apart(layer)
            kinds = len(reader.codes)
            kind = reader.kind(code, arrays)
            if kind == kinds:  # a new one
                Held(layer)
        except (Opaque, Unseen) as reason:
            raise TypeError(
                f"layers[{number}] cannot be taken apart into code and arrays ({reason}), so what it takes has to be known: "
                "deeppcr.stack(layers, x)."
            ) from None
        found.append(Layer(as_callable(layer), kind, code, arrays, None, None))
    return found


class Reader:
    """What is known of the layers met so far.

    Attributes:
        stopped: why the last reading ended before a layer that it could not look at.
    """

    def __init__(self) -> None:
        self.codes: list[tuple[Any, Any]] = []  # code and types of the arrays, by kind
        self.stopped: Exception | None = None
        self._known: dict[tuple[int, Any], Layer] = {}  # which keep the layer, and so its id
        self._trials: dict[tuple[int, Any], Trial | None] = {}
        self._types: dict[
            int, tuple[Any, Any]
        ] = {}  # of what layers take, which is kept, and so its id
        self._is_traced = False

    def read(self, layers: Sequence[Any], x: Any, past_changes: bool = False) -> list[Layer]:
        """Look at layers, the first of which takes ``x`` (arrays or `jax.ShapeDtypeStruct`). Layers alike are traced once.

        It stops before the first layer that cannot be looked at: one that raises, that depends on more than shapes, or that holds
        what cannot be watched. It stops behind the first that changes something, since those behind it may read what is changed;
        with ``past_changes`` it goes on, as if nothing had been changed.
        """
        self.stopped, found = None, []
        self._is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
        x = shapes_of(x)
        for layer in layers:
            try:
                found.append(self._layer(layer, x))
            except Exception as reason:
                self.stopped = reason
                break
            if found[-1].acts and not past_changes:
                break
            x = found[-1].returns
        return found

    def forget(self, layer: Layer | None = None) -> None:
        """Forget what is out of date once ``layer`` was called, or one that could not be looked at."""
        self._known.clear()
        if layer is None or layer.acts_outside:
            self._trials.clear()

    def _layer(self, layer: Any, x: Any) -> Layer:
        """Look at one layer that takes ``x``; the same object is looked at once."""
        if id(x) not in self._types:
            self._types[id(x)] = x, types_of(x)
        takes = self._types[id(x)][1]
        if (id(layer), takes) not in self._known:
            self._known[id(layer), takes] = self._look(layer, x, takes)
        return self._known[id(layer), takes]

    def _look(self, layer: Any, x: Any, takes: Any) -> Layer:
        call = as_callable(layer)
        try:
            code, arrays = take_apart(layer)
            kind = self.kind(code, arrays)
            trial = self._trial(kind, code, arrays, layer, x, takes)
            if trial and trial.asks_for_types and not is_same_on_jax(code, arrays, layer, x):
                trial = None
        except (Stateful, Unseen):
            raise
        except Exception:  # whatever kept it from being rebuilt; if the layer itself is at fault, the next line raises again
            trial = None
        if trial is None:
            code, arrays, trial = trace(layer, call, x, self._is_traced)
            kind = self.kind((code, takes), arrays)
        return Layer(call, kind, code, arrays, takes, *trial.found, given=layer)

    def kind(self, code: Any, arrays: list[Any]) -> int:
        """The number of the layers alike."""
        key = code, array_types(arrays)
        for kind in reversed(range(len(self.codes))):  # a neighbour is the likeliest
            if self.codes[kind] == key:
                return kind
        self.codes.append(key)
        return len(self.codes) - 1

    def _trial(
        self, kind: int, code: Any, arrays: list[Any], layer: Any, x: Any, takes: Any
    ) -> Trial | None:
        """What a call of a copy does; None if it has to be called as it is."""
        if (kind, takes) not in self._trials:
            self._trials[kind, takes] = None
            self._trials[kind, takes] = try_out(code, arrays, x, layer, self._is_traced)
        return self._trials[kind, takes]
