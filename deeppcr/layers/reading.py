"""Reading a list of layers: which are equal, what each takes and returns, and its side effects."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from deeppcr.checks import describe, describe_type
from deeppcr.layers.parts import Node, Opaque, is_pair, take_apart
from deeppcr.layers.reach import Reach, Unseen
from deeppcr.layers.trial import (
    Trial,
    array_types,
    is_same_on_jax,
    shape_of,
    trace,
    try_copy,
    types_of,
)


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a list.

    Attributes:
        given: the layer, as it was given.
        kind: a number, the same for equal layers and only for those.
        code: the part that equal layers share, with ``build(arrays)``.
        arrays: its own arrays.
        takes: the types of its input.
        trial: the result of calling it on trial.
    """

    given: Any
    kind: int
    code: Any
    arrays: list[Any]
    takes: Any = None
    trial: Trial = Trial(None)

    @property
    def returns(self) -> Any:
        """What it returns, as `jax.ShapeDtypeStruct`."""
        return self.trial.returns


def listed(layers: Any) -> list[Any]:
    """The layers of a sequence, of a module that has ``layers``, or of ``(apply, [params, ...])``.

    Raises:
        TypeError: ``layers`` is none of these, or one of them is not callable.
    """
    if is_sequential(layers):
        layers = layers.layers
    elif is_pair(layers) and isinstance(layers[1], list | tuple) and not is_pair(layers[1]):
        layers = [(layers[0], parameters) for parameters in layers[1]]
    if not isinstance(layers, Iterable) or isinstance(
        layers, str | bytes | dict | jax.Array | np.ndarray
    ):
        raise TypeError(
            f"layers is {describe_type(layers)}, expected a list of callables layer(x) -> x or of "
            "(apply, params), a module with .layers (Sequential), or deeppcr.stack(layers)."
        )
    found = list(layers)
    for number, layer in enumerate(found):
        if not callable(layer) and not is_pair(layer):
            raise TypeError(
                f"layers[{number}] is {describe(layer)}, expected a callable layer(x) -> x, or a "
                f"pair (apply, params){_remedy(layer)}."
            )
    return found


def name_of_layer(layer: Any) -> str:
    """The name of a layer: of its function, or of its class."""
    called = layer[0] if is_pair(layer) else layer
    while isinstance(called, partial):  # of functools, or of jax.tree_util
        called = called.func
    return str(getattr(called, "__name__", type(called).__name__))


def locate(error: Exception, layer: str, x: Any) -> None:
    """Add the layer and its input to the message of an error; its type does not change."""
    where = f"{layer} was given {describe(x)}"
    if type(error) in (TypeError, ValueError):
        error.args = (f"{where}: {error}",)
    else:  # of a class of its own, whose arguments may mean anything
        error.add_note(where)


def _remedy(layer: Any) -> str:
    """The remedy if a list of layers contains something else."""
    if isinstance(layer, list | tuple) and any(map(callable, layer)):
        return "; write one flat list of layers"
    is_array = hasattr(layer, "dtype") and hasattr(layer, "shape")
    return "; for arrays alone write (apply, [params, ...])" if is_array else ""


def is_sequential(layers: Any) -> bool:
    """Whether this is a ``Sequential`` of flax or equinox, or a subclass with its ``__call__``."""
    for base in type(layers).__mro__:
        if base.__name__ == "Sequential" and base.__module__.startswith(("flax.", "equinox.")):
            return type(layers).__call__ is base.__call__
    return False


class Reader:
    """The layers read so far.

    Attributes:
        stopped: why the last reading stopped before a layer that it could not read; else None.
    """

    def __init__(self) -> None:
        self.stopped: Exception | None = None
        self._kinds: dict[Any, int] = {}  # by code and types of the arrays
        self._last: tuple[Any, int] = None, 0  # the last kind
        self._known: dict[tuple[int, Any], Layer] = {}  # keeps the layers, and so their ids
        self._trials: dict[tuple[int, Any], Trial | None] = {}
        self._fixed: dict[int, Node] = {}

    def read(self, layers: Sequence[Any], x: Any, past_changes: bool = False) -> list[Layer]:
        """Read layers, the first of which takes ``x``: arrays or their shapes.

        Equal layers are traced once. Reading stops before the first layer that cannot be read: one
        that raises, that depends on values, or that holds objects that cannot be watched. It stops
        after the first that changes something, because later layers may read what is changed; with
        ``past_changes`` it continues as if nothing had changed.
        """
        self.stopped, found = None, []
        x = jax.tree.map(shape_of, x)
        takes = types_of(x)
        for layer in layers:
            key = id(layer), takes
            try:
                if key not in self._known:
                    self._known[key] = self._look(layer, x, takes)
            except Exception as reason:
                self.stopped = reason
                break
            found.append(self._known[key])
            if found[-1].trial.acts and not past_changes:
                break
            x, takes = found[-1].returns, found[-1].trial.types
        return found

    def take_apart(self, layers: Sequence[Any]) -> list[Layer]:
        """Read layers without knowing what they take and return.

        Raises:
            TypeError: a layer cannot be taken apart.
        """
        found = []
        for number, layer in enumerate(layers):
            try:
                code, arrays = take_apart(layer, self._fixed)
                known = len(self._kinds)
                found.append(Layer(layer, self._kind(code, arrays), code, arrays))
                if found[-1].kind == known:
                    Reach(layer)
            except (Opaque, Unseen) as reason:
                raise TypeError(
                    f"layers[{number}] cannot be taken apart into code and arrays ({reason}), so "
                    "its input must be given: deeppcr.stack(layers, x)."
                ) from None
        return found

    def forget(self) -> None:
        """Discard results that may be stale, after a call that may have changed something.

        Layers with side effects are remembered: equal layers are called one by one from then on.
        """
        self._known.clear()
        self._fixed.clear()
        self._trials = {key: trial for key, trial in self._trials.items() if trial and trial.acts}

    def _look(self, layer: Any, x: Any, takes: Any) -> Layer:
        """Read one layer that takes ``x``."""
        try:
            code, arrays = take_apart(layer, self._fixed)
            kind = self._kind(code, arrays)
            if (kind, takes) not in self._trials:
                self._trials[kind, takes] = None  # as it stays if the call raises
                self._trials[kind, takes] = try_copy(code, arrays, x, layer)
            trial = self._trials[kind, takes]
            if trial and trial.asks and not is_same_on_jax(code, arrays, layer, x):
                trial = None
        except Unseen:
            raise
        except Exception:  # if the layer itself is at fault, the next line raises again
            trial = None
        if trial:
            return Layer(layer, kind, code, arrays, takes, trial)
        program, arrays, trial = trace(layer, x)
        return Layer(layer, self._kind((program, takes), arrays), program, arrays, takes, trial)

    def _kind(self, code: Any, arrays: list[Any]) -> int:
        """The number of the kind of a layer."""
        form = (code, array_types(arrays))
        if form != self._last[0]:  # else it costs no hash
            self._last = form, self._kinds.setdefault(form, len(self._kinds))
        return self._last[1]
