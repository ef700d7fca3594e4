"""`Stack`: consecutive equal layers as one chain, stacked once, traced once."""

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp

import deeppcr
from deeppcr import Chain
from deeppcr.extend import combine, is_traced, of_step, partition, stack_rows
from deeppcr.layers.parts import LayerCode, changes, take_apart
from deeppcr.layers.reading import shape_of, trace_layer


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["code", "shared", "length"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Stack:
    """Equal layers, stacked: a callable pytree of arrays ``[L, ...]``. Made by `stack`.

    It works like any pytree of parameters: with `jax.grad`, `jax.jit` with donation, optax,
    checkpointing, `jax.tree.map`. ``len(stack)`` is the number of layers.

    Attributes:
        arrays: the arrays of one step of the chain, stacked on axis 0: ``[L, ...]``. An array that
            all layers share has no such axis.
        code: that of the list of the layers of a step (static).
        shared: for each array, whether all layers share it.
        length: L, the number of steps; a step is one layer, or one period of layers.
    """

    arrays: list[Any]
    code: LayerCode
    shared: tuple[bool, ...]
    length: int

    def __call__(self, x: Any, **options: Any) -> Any:
        """Apply all layers: ``deeppcr.forward(stack, x, **options)``."""
        return deeppcr.forward(self, x, **options)

    def __len__(self) -> int:
        return self.length * self.period

    @property
    def period(self) -> int:
        """The number of layers in a step."""
        return len(self.code.parts)

    @property
    def _are_inputs(self) -> list[bool]:
        return list(map(operator.not_, self.shared))

    @property
    def inputs(self) -> list[Any]:
        """The arrays that differ from step to step."""
        return partition(self.arrays, self._are_inputs)

    @property
    def chain(self) -> Chain:
        """The same as a chain, whose inputs are those arrays."""
        return Chain(self.step, self.inputs, self.length)

    def step(self, x: Any, slices: Sequence[Any]) -> Any:
        """One step, with its ``slices`` of `inputs`."""
        return in_order(self.code.build(iter(self._arrays(slices))), x)

    def check(self, x: Any) -> Any:
        """What a step returns; `ValueError` if it has effects, which stacked copies would lose."""
        changed = ""

        def step(operands: Any) -> Any:
            nonlocal changed
            x, arrays = operands
            layers = self.code.build(iter(arrays))
            before = take_apart(layers)
            y = in_order(layers, x)
            changed = changes(layers, *before)
            return y

        arrays = self._arrays(list(map(of_step, self.inputs)))
        program = trace_layer(step, jax.tree.map(shape_of, (x, arrays)))
        if reason := changed or program.acts:
            raise ValueError(
                f"a layer cannot be stacked: {reason}, which would be lost, since stacked "
                "layers are copies. Switch it to evaluation mode, or call "
                "deeppcr.forward(layers, x), which runs such layers one by one."
            )
        return program.returns

    def layers(self) -> list[Any]:
        """All layers, one by one; what steps share is one object."""
        made: dict[Any, Any] = {}
        layers: list[Any] = []
        for step in range(self.length):
            arrays = self._arrays([array[step] for array in self.inputs])
            layers += _build(self.code, zip(arrays, self.shared, strict=True), made)[0]
        return layers

    def _arrays(self, slices: Sequence[Any]) -> list[Any]:
        return combine(self.arrays, self._are_inputs, slices)


def in_order(layers: Sequence[Any], x: Any) -> Any:
    """Apply layers one after another."""
    for layer in layers:
        x = layer(x)
    return x


def _build(
    code: LayerCode, arrays: Iterator[tuple[Any, bool]], made: dict[Any, Any], place: Any = ()
) -> tuple[Any, set[bool]]:
    """See `LayerCode.build`; a part whose arrays are all shared is ``made`` once.

    ``arrays``: each with whether it is shared, of which a part returns all; ``place``: the indices
    of the part.
    """
    if code.make is None:
        array, is_shared = next(arrays)
        return array, {is_shared}
    parts, shared = list[Any](), set[bool]()
    for index, part in enumerate(code.parts):
        built, is_shared_part = _build(part, arrays, made, (*place, index))
        parts.append(built)
        shared |= is_shared_part
    if shared != {True} or place not in made:
        made[place] = code.make(parts)
    return made[place], shared


def stack_layers(
    layers: Sequence[tuple[LayerCode, list[Any]]], period: int, holders: Sequence[list[Any]]
) -> Stack:
    """The chain of layers, taken apart, that repeat with the ``period``.

    Steps share an array that is one object in all of them, and so is what holds it: ``holders``,
    for each array of each layer.
    """
    starts = range(0, len(layers), period)

    def columns_of(each: Sequence[list[Any]]) -> list[tuple[Any, ...]]:
        """``each`` has those of a layer."""
        steps = [list(chain.from_iterable(each[i : i + period])) for i in starts]
        return list(zip(*steps, strict=True))

    columns = columns_of([arrays for _, arrays in layers])
    shared = list(map(_is_one, columns, columns_of(holders)))
    pairs = list(zip(columns, shared, strict=True))
    stacked = iter(_stack([column for column, is_one in pairs if not is_one]))
    arrays = [column[0] if is_one else next(stacked) for column, is_one in pairs]
    code = LayerCode(list, tuple(code for code, _ in layers[:period]), list)
    return Stack(list(map(jnp.asarray, arrays)), code, tuple(shared), len(starts))


def _is_one(column: Sequence[Any], holders: Sequence[Any]) -> bool:
    """Whether several arrays are one, held by one."""
    return len(column) > 1 and len(set(map(id, column))) == len(set(map(id, holders))) == 1


def _stack(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Columns of arrays of one type, stacked on a new axis 0; eagerly if none is traced."""
    if is_traced(columns):
        return list(map(stack_rows, columns))
    # One call, where `jnp.stack` is one for each array and the concatenation.
    with jax.ensure_compile_time_eval():
        return list(map(jax.jit(stack_rows), columns))
