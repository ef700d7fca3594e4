"""From users' layers to chains: which layers are alike, and how they are stacked.

Two layers are alike if they run the same code on arrays of the same shapes and dtypes. For a layer that is a pytree (a registered
dataclass, an equinox module, `jax.tree_util.Partial`) the structure of the pytree says so. Any other callable is traced, and what
is compared is the traced program and the arrays that it closed over.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.jaxprs import without_constants

Step = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer: what it has to share with its neighbours to be stacked with them, and what is its own.

    Attributes:
        signature: equal for layers that are alike, and only for those.
        apply: ``apply(x, own) -> x``, the same function for all layers that are alike.
        own: pytree of arrays.
        result: what it returns, as `jax.ShapeDtypeStruct`.
    """

    signature: Any
    apply: Step
    own: Any
    result: Any


def read(layer: Callable[[Any], Any], x: Any) -> Layer:
    """Look at a layer that takes ``x`` (arrays or `jax.ShapeDtypeStruct`)."""
    x = shapes_of(x)
    leaves, structure = jax.tree.flatten(layer)
    arrays = bool(leaves) and all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
    if arrays and not jax.tree_util.treedef_is_leaf(structure):
        return Layer((structure, _types(leaves), _types(x)), _call, layer, jax.eval_shape(layer, x))
    closed, result = jax.make_jaxpr(layer, return_shape=True)(x)
    jaxpr = without_constants(closed)
    captured = [jnp.asarray(constant) for constant in closed.consts]  # numbers and numpy arrays, too
    tree = jax.tree.structure(result)

    def apply(state: Any, own: Any) -> Any:
        return jax.tree.unflatten(tree, jax.core.eval_jaxpr(jaxpr, own, *jax.tree.leaves(state)))

    return Layer((str(jaxpr), tree, _types(captured), _types(x)), apply, captured, result)


def segments(layers: Sequence[Callable[[Any], Any]], x: Any) -> Iterator[list[Layer]]:
    """Runs of neighbouring layers that are alike and keep the shape of the state; any other layer is a run of its own."""
    x = shapes_of(x)
    found = []
    for number, layer in enumerate(layers):
        if not callable(layer):
            raise TypeError(f"layers[{number}] is {layer!r}, expected a callable layer(x) -> x.")
        found.append(read(layer, x))
        x = found[-1].result
    keeps = [layer.signature[-1] == _types(layer.result) for layer in found]
    keys = [layer.signature if keep else number for number, (layer, keep) in enumerate(zip(found, keeps, strict=True))]
    for _, run in itertools.groupby(zip(keys, found, strict=True), key=lambda pair: pair[0]):
        yield [layer for _, layer in run]


def stack(run: Sequence[Layer]) -> tuple[Step, Any]:
    """The step and the inputs of the chain that layers alike make."""
    return run[0].apply, jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layer.own for layer in run))


def stacked(layers: Sequence[Callable[[Any], Any]], x: Any) -> tuple[Step, Any]:
    """The step and the inputs of the one chain that all ``layers`` make."""
    if not layers:
        raise ValueError("layers is empty, expected at least one layer.")
    runs = list(segments(layers, x))
    if len(runs) > 1:
        number = len(runs[0])
        raise ValueError(
            f"layers[{number}] is not like layers[{number - 1}] (other code, shapes or dtypes), or changes the shape of the "
            "state; expected equal layers. deeppcr.forward(layers, x) takes any."
        )
    return stack(runs[0])


def shapes_of(x: Any) -> Any:
    """Arrays as `jax.ShapeDtypeStruct`."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jax.dtypes.result_type(leaf)), x)


def _types(tree: Any) -> tuple[Any, ...]:
    return (
        jax.tree.structure(tree),
        *((jnp.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in jax.tree.leaves(tree)),
    )


def _call(state: Any, layer: Any) -> Any:
    return layer(state)
