"""`stack` and `unstack`: equal layers as one pytree of stacked arrays, for training."""

from typing import Any

from deeppcr.extend import check_type
from deeppcr.layers.parts import LayerCode, NotApart, take_apart
from deeppcr.layers.reading import listed, types_of
from deeppcr.layers.segments import longest_run, shapes
from deeppcr.layers.stack import Stack, stack_layers


def stack(layers: Any, x: Any = None) -> Stack:
    """Stack equal layers into one pytree, for training.

    A list of L modules has L times as many arrays for every transformation and for the compiler.
    Stacked, the compile time of a network does not depend on its number of layers.

    Layers that are one object, as in ``[module] * 12``, have one set of weights, which is stored
    and trained once. So has a variable that functions close over, or of flax nnx, if it is one in
    all layers. Other arrays are trained for each layer, as jax differentiates a list, even if they
    begin as one array. (Arguments of `jax.jit` are no more one object: stack them outside.)

    Args:
        layers: equal layers, or layers that repeat with a period (`Linear`, `relu`, `Linear`,
            `relu`, ...), of any kind that `deeppcr.forward` makes a chain of. Their code runs once
            for all: what it prints, or reads of a list, happens once.
        x: the input of the first layer, as arrays or `jax.ShapeDtypeStruct`. If given, `stack`
            checks that the layers return the shapes that they take, and do not change their own
            state.

    Returns:
        a `Stack`.

    Raises:
        ValueError: the layers differ, or there are none, or calling one changes its state.
        TypeError: one of them is not callable, or cannot be taken apart into code and arrays.

    Example:
        >>> scales = [jnp.full(3, c) for c in (1.0, 2.0, 3.0)]
        >>> layers = [jax.tree_util.Partial(jnp.multiply, scale) for scale in scales]
        >>> stacked = deeppcr.stack(layers)
        >>> stacked(jnp.ones(3))
        Array([6., 6., 6.], dtype=float32)
        >>> jax.tree.map(jnp.shape, stacked.arrays)
        [(3, 3)]
    """
    if isinstance(layers, Stack):
        return layers
    parts = list[tuple[LayerCode, list[Any]]]()
    holders = list[list[Any]]()
    for number, layer in enumerate(listed(layers)):
        holders.append([])
        try:
            parts.append(take_apart(layer, holders[-1]))
        except NotApart as error:
            raise TypeError(
                f"layers[{number}] cannot be taken apart into code and arrays: {error}; "
                "deeppcr.forward(layers, x) takes any."
            ) from error
    if not parts:
        raise ValueError("layers is empty, expected at least one layer.")
    period, length = longest_run([(code, types_of(arrays)) for code, arrays in parts])
    unlike = period * length
    if unlike == len(parts):
        unlike = 0
        run = stack_layers(parts, period, holders)
        if x is None or shapes(run.check(x)) == shapes(x):
            return run
    raise ValueError(
        f"layers[{unlike}] is not like the layers before it (other code, shapes or dtypes), or "
        "changes the shape of the state; expected equal layers, or layers with a period, that "
        "return what they take. deeppcr.forward(layers, x) takes any."
    )


def unstack(stacked: Stack) -> list[Any]:
    """The layers of a stack: the inverse of `stack`.

    Args:
        stacked: what `stack` returned, or a pytree of its structure: after training, a gradient.

    Returns:
        a list of all layers, of the types that `stack` was given; methods and pairs become
        partials. To put trained blocks back into a flax model, copy the arrays of each:
        ``nnx.update(block, nnx.state(trained))``.

    Raises:
        TypeError: ``stacked`` is not a `Stack`.

    Example:
        >>> layers = [jax.tree_util.Partial(jnp.multiply, jnp.full(3, c)) for c in (1.0, 2.0)]
        >>> [layer(1.0).tolist() for layer in deeppcr.unstack(deeppcr.stack(layers))]
        [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
    """
    check_type("stacked", stacked, Stack, "the result of deeppcr.stack(layers)")
    return stacked.layers()
