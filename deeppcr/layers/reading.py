"""Reading a list of layers: the program of each, by which layers are equal."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from deeppcr.extend import abstract, describe, side_effects, signature, with_operands
from deeppcr.layers.parts import (
    ARRAY,
    LayerCode,
    NotApart,
    as_callable,
    changes,
    is_pair,
    is_same,
    is_stateful,
    take_apart,
)
from depth.jaxprs import equations, without_constants


class Layer(NamedTuple):
    """The program of one layer of a list.

    Attributes:
        code: makes the layer from its arrays; equal if the programs are.
        arrays: the constants of the program: what the layer closes over, tracers among them.
        takes: the types of its input.
        returns: the types of its output.
        acts: its side effects, as text; "" if it has none.
        size: the number of equations.
        changes: what a call changes in the layer, or in what it takes, as text; "" if nothing.
    """

    code: LayerCode
    arrays: list[Any]
    takes: Any
    returns: Any
    acts: str
    size: int
    changes: str = ""

    def __call__(self, x: Any) -> Any:
        """Run the program; the layer's own code ran when it was traced."""
        return self.code.make(self.arrays)(x)

    @property
    def alone(self) -> str:
        """Why the layer cannot be part of a chain; "" if it can."""
        leaves = jax.tree.leaves(self.returns)
        floating = all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
        return self.changes or self.acts or ("" if floating else "it returns non-floating arrays")


Copies = dict[int, tuple[np.ndarray, np.ndarray]]  # of arrays of numpy, by their `id`


def read(layers: Sequence[Any], x: Any) -> Iterator[Layer]:
    """Trace layers, the first of which takes ``x``: each once, in order, as `jax.jit` of the loop.

    Raises:
        Exception: the next layer cannot be traced.
    """
    x = jax.tree.map(abstract, x)
    copies: Copies = {}
    for layer in layers:
        program = trace_copy(layer, x, copies)
        arrays = [snapshot(array, copies) for array in program.arrays]
        yield program._replace(arrays=arrays)
        x = program.returns


def snapshot(array: Any, copies: Copies) -> Any:
    """The array, or its copy if it is one of numpy, which a layer may change in place.

    ``copies``: arrays of the layers before, by their ``id``, and their copies. An array that has
    not changed has one copy in all layers.
    """
    if not isinstance(array, np.ndarray):
        return array
    if id(array) not in copies or copies[id(array)][1].tobytes() != array.tobytes():
        copy = array.copy()
        copies[id(array)] = array, copy  # it is held, so no other array gets its id
        copies[id(copy)] = copy, copy
    return copies[id(array)][1]


def trace_copy(layer: Any, x: Any, copies: Copies) -> Layer:
    """The program of a layer that takes arrays of the types ``x``.

    A layer that can be taken apart is copied, so that no traced array gets into it, and what a call
    changes in it is seen. Any other is traced itself. ``copies``: see `snapshot`.

    Raises:
        NotApart: it is bound to variables that a trace would change.
        Exception: it cannot be traced.
    """
    if is_stateful(layer):
        raise NotApart("it is a bound module that changes its variables or counts random numbers")
    original = as_callable(layer)
    code, arrays = None, list[Any]()
    with suppress(NotApart):
        code, arrays = take_apart(original)
    held = [snapshot(array, copies) for array in arrays]
    changed = ""

    def run(x: Any) -> Any:
        nonlocal changed
        traced = original if code is None else code.build(iter(held))
        leaves, structure = jax.tree.flatten(x)
        y = traced(x)
        if code is not None:
            changed = changes(traced, code, held)
        if any(snapshot(a, copies) is not b for a, b in zip(arrays, held, strict=True)):
            changed = "calling it changes an array of numpy"
        if not is_same((structure, leaves), (jax.tree.structure(x), jax.tree.leaves(x))):
            changed = "calling it changes what it takes"
        return y

    program = trace_layer(run, x)
    return program._replace(changes=changed)


def trace_layer(layer: Callable[[Any], Any], x: Any) -> Layer:
    """The program of a layer that takes arrays of the types ``x``.

    ``layer`` is new each time: jax keeps the program of a function that it knows, and runs no code.
    """
    closed, shapes = jax.make_jaxpr(layer, return_shape=True)(x)
    program, arrays = with_operands(closed)
    takes, returns = jax.tree.structure(x), jax.tree.structure(shapes)

    def make(arrays: list[Any]) -> Callable[[Any], Any]:
        def call(x: Any) -> Any:
            results = jaxpr_as_fun(program)(*arrays, *jax.tree.leaves(x))
            return jax.tree.unflatten(returns, results)

        return call

    every = equations(without_constants(closed))
    acts = ""
    if effects := side_effects(closed):
        acts = f"it has side effects: {', '.join(effects)}"
    elif any(any(each.params.get("donated_invars", ())) for each in every):
        acts = "it donates what it takes"
    key = signature(program)[0], len(arrays), takes, returns
    after = [abstract(result.aval) for result in without_constants(closed).outvars]
    return Layer(
        LayerCode(key, (ARRAY,) * len(arrays), make),
        arrays,
        x,
        jax.tree.unflatten(returns, after),
        acts,
        len(every),
    )


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array or number, and whether it is weakly typed."""
    aval = abstract(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


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
    every = list(layers)
    for number, layer in enumerate(every):
        if not callable(layer) and not is_pair(layer):
            raise TypeError(
                f"layers[{number}] is {describe(layer)}, expected a callable layer(x) -> x, or a "
                "pair (apply, params), in one flat list; for arrays write (apply, [params, ...])."
            )
    return every


def is_sequential(layers: Any) -> bool:
    """Whether this is a ``Sequential`` of flax or equinox, or a subclass with its ``__call__``."""
    for base in type(layers).__mro__:
        if base.__name__ == "Sequential" and base.__module__.startswith(("flax.", "equinox.")):
            return type(layers).__call__ is base.__call__
    return False


def name_of(layer: Any) -> str:
    """The name of a layer, or of what it calls, in messages."""
    called = layer[0] if is_pair(layer) else layer
    while isinstance(called, partial):  # of functools, or of jax.tree_util
        called = called.func
    if isinstance(called, type):
        return describe(called)
    return str(getattr(called, "__name__", type(called).__name__))
