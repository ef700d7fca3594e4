"""Consecutive equal layers as one chain: stacked once, traced once."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.avals import of_step
from deeppcr.layers.reach import Unseen
from deeppcr.layers.reading import Layer, Reader, listed, locate, name_of_layer
from deeppcr.layers.trial import Trial, array_types, shape_of, try_copy, types_of
from deeppcr.rewrites import stack


@dataclasses.dataclass(frozen=True)
class Plan:
    """The composition of one step from its layers: static, and equal for equal layers.

    Attributes:
        codes: the code of each layer.
        counts: the number of arrays of each layer.
        shared: for each array, whether all steps share it.
        types: for each array, its shape and dtype.
    """

    codes: tuple[Any, ...]
    counts: tuple[int, ...]
    shared: tuple[bool, ...]
    types: tuple[Any, ...]

    def layers(self, arrays: Sequence[Any]) -> list[Any]:
        """The layers of one step, with ``arrays`` in them."""
        source = iter(arrays)
        return [code.build(source) for code in self.codes]


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["plan", "length"])
@dataclasses.dataclass(frozen=True)
class Repeated:
    """A chain of ``length`` steps, each of one layer or one period: `Dense`, `relu`, ...

    Attributes:
        arrays: the arrays of a step, stacked on axis 0; an array that all steps share, unstacked.
        plan: the code.
        length: the number of steps.
    """

    arrays: list[Any]
    plan: Plan
    length: int

    @property
    def period(self) -> int:
        """The number of layers in a step."""
        return len(self.plan.codes)

    @property
    def inputs(self) -> list[Any]:
        """The arrays that differ from step to step."""
        return [
            array for array, shared in zip(self.arrays, self.plan.shared, strict=True) if not shared
        ]

    def step(self, x: Any, own: Sequence[Any]) -> Any:
        """One step, with its ``own`` slices of `inputs`."""
        for layer in self.plan.layers(self._merged(own)):
            x = layer(x)
        return x

    def scan(self, x: Any) -> Any:
        """All steps by `jax.lax.scan`."""

        def body(x: Any, own: Sequence[Any]) -> tuple[Any, None]:
            return self.step(x, own), None

        return jax.lax.scan(body, x, self.inputs, self.length)[0]

    def check(self, x: Any) -> None:
        """Raise if calling a layer changes it, which a stack of copies would lose.

        Raises:
            ValueError: names what is changed.
        """
        x = jax.tree.map(shape_of, x)
        shapes = list(map(of_step, self.inputs))
        arrays = iter(self._merged(shapes))
        for number, (code, count) in enumerate(zip(self.plan.codes, self.plan.counts, strict=True)):
            try:
                trial = try_copy(code, [next(arrays) for _ in range(count)], x)
            except Exception as error:
                locate(error, f"layer {number} of a stack", x)
                raise
            if trial is None:
                raise ValueError(
                    f"layer {number} of a stack is jitted, and reads values that may have changed "
                    "since; stack it without jit."
                )
            if trial.acts:
                raise _lost(f"layer {number} of a stack", trial)
            x = trial.returns

    def _merged(self, own: Sequence[Any]) -> list[Any]:
        source = iter(own)
        return [
            array if shared else next(source)
            for array, shared in zip(self.arrays, self.plan.shared, strict=True)
        ]

    def layers(self) -> list[Any]:
        """All layers, one by one."""
        steps = [
            self.plan.layers(self._merged([array[step] for array in self.inputs]))
            for step in range(self.length)
        ]
        return [layer for step in steps for layer in step]


def _lost(layer: str, trial: Trial) -> ValueError:
    return ValueError(
        f"{layer} cannot be stacked: {trial.acts}, which would be lost, since stacked layers are "
        "copies. Switch it to evaluation mode, or call deeppcr.forward(layers, x), which runs such "
        "layers one by one."
    )


def stack_layers(layers: Sequence[Layer], period: int) -> Repeated:
    """The chain of layers that repeat with the ``period``."""
    length = len(layers) // period
    steps = [
        [array for layer in layers[i * period : (i + 1) * period] for array in layer.arrays]
        for i in range(length)
    ]
    columns = list(zip(*steps, strict=True))
    shared = [length > 1 and all(array is column[0] for array in column) for column in columns]
    stacked = iter(stack_arrays([c for c, same in zip(columns, shared, strict=True) if not same]))
    arrays = [c[0] if same else next(stacked) for c, same in zip(columns, shared, strict=True)]
    first = layers[:period]
    plan = Plan(
        tuple(layer.code for layer in first),
        tuple(len(layer.arrays) for layer in first),
        tuple(shared),
        array_types(steps[0]),
    )
    return Repeated([jnp.asarray(array) for array in arrays], plan, length)


def repeated(layers: Any, x: Any = None) -> Repeated:
    """The one chain that all ``layers`` form, with the shortest period.

    Args:
        layers: as in `deeppcr.forward`.
        x: the input of the first layer. Without it, all layers must be of kinds that can be taken
            apart, and their outputs are unknown.

    Raises:
        ValueError: there are no layers, or they do not form one chain; the message names the first
            layer that differs.
    """
    if isinstance(layers, Repeated):
        return layers
    found = listed(layers)
    if not found:
        raise ValueError("layers is empty, expected at least one layer.")
    reader = Reader()
    known = reader.take_apart(found) if x is None else reader.read(found, x, past_changes=True)
    if isinstance(reader.stopped, Unseen):
        raise ValueError(
            f"layers[{len(known)}] cannot be stacked: {reader.stopped}; deeppcr.forward(layers, x) "
            "takes any."
        )
    if reader.stopped:
        number, takes = len(known), known[-1].returns if known else x
        locate(reader.stopped, f"layers[{number}] ({name_of_layer(found[number])})", takes)
        raise reader.stopped
    for number, layer in enumerate(known):
        if layer.trial.needs_weak:
            raise ValueError(
                f"layers[{number}] has weakly typed arrays, made from Python numbers without a "
                "dtype, which would not be promoted once stacked; give them a dtype: "
                "jnp.asarray(0.5, dtype)."
            )
        if layer.trial.acts:
            raise _lost(f"layers[{number}]", layer.trial)
    kinds = [(layer.kind, layer.takes) for layer in known]
    count = len(kinds)
    periods = range(1, max(2, count // 2 + 1))
    period = next((p for p in periods if count % p == 0 and kinds[p:] == kinds[:-p]), 0)
    if not period:
        odd = next((i for i in range(1, count) if kinds[i] != kinds[i - 1]), 0)
        raise ValueError(
            f"layers[{odd}] is not like layers[{odd - 1}] (other code, shapes or dtypes), or "
            "changes the shape of the state, and they do not alternate; expected equal layers. "
            "deeppcr.forward(layers, x) takes any."
        )
    if known[0].takes not in (None, types_of(known[period - 1].returns)):
        raise ValueError(
            f"layers[{period - 1}] changes the shape of the state; expected equal layers that "
            "return what they take. deeppcr.forward(layers, x) takes any."
        )
    return stack_layers(known, period)


def stack_arrays(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Columns of arrays of one type, stacked on a new axis 0; eagerly if none is traced."""
    traced = [any(isinstance(x, jax.core.Tracer) for x in column) for column in columns]
    stacked = iter(stack(list(compress(columns, traced))) if any(traced) else ())
    return [
        next(stacked) if is_traced else _stack_known(column)
        for column, is_traced in zip(columns, traced, strict=True)
    ]


def _stack_known(arrays: Sequence[Any]) -> Any:
    with jax.ensure_compile_time_eval():
        if all(isinstance(array, np.ndarray) for array in arrays):
            return jnp.asarray(np.stack(arrays))
        return _compiled_stack(*arrays)


@jax.jit
def _compiled_stack(*arrays: Any) -> Any:
    """One call, where `jnp.stack` is one for each array and the concatenation."""
    return jnp.stack(arrays)
