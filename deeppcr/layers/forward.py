"""`forward`: layers one after another, equal ones as a chain."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Never

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_leaves_with_path

from deeppcr import Adjoint, Chain, solve
from deeppcr.extend import (
    LinearSolver,
    MethodOption,
    always_loops,
    check_batch,
    describe,
    find_adjoint,
    find_method,
    floating,
    is_eager,
    leaves_as_arrays,
    partition,
    unknown_keyword,
)
from deeppcr.layers.parts import as_callable
from deeppcr.layers.reading import Layer, listed, name_of, read
from deeppcr.layers.segments import Segment, divide, is_short
from deeppcr.layers.stack import Stack, in_order

# Up to so many layers a list is its loop, and nothing is traced to find chains.
FEW_LAYERS = 64
# So many layers say whether a longer list is short: then the others are called, since tracing each
# for itself takes longer than the loop: 256 small layers, 1.9 s for 1.0 (jax 0.12).
SAMPLE = 8


def forward(
    layers: Any,
    x: Any,
    *,
    method: str | MethodOption = "auto",
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int | None = None,
    **unknown: Never,
) -> Any:
    """Apply layers one after another: ``for layer in layers: x = layer(x)``.

    Every layer is traced once, in order, as `jax.jit` traces the loop. Consecutive layers whose
    programs differ in nothing but the arrays that they read are stacked and solved as one chain;
    arrays that are one object in all of them are not copied. So are layers that repeat with a
    period (`Linear`, `relu`, `Linear`, `relu`, ...). Every other layer runs on its own, and so does
    a layer with side effects (`jax.debug.print`). A layer that cannot be traced alone is called in
    its turn, after what comes before it: one that changes itself when called (batch statistics,
    random counters), that changes in place what it takes, or that needs values. Its Python code
    has run once before, for the trace: a layer must not count calls in an object that jax does not
    know, or draw random numbers of numpy.
    `deeppcr.layers.describe` shows which layers form a chain. As under `jax.jit`, a layer must not
    leave a traced array in an object that jax does not know, catch the error that asking for a
    value raises, or do another thing if its argument is traced.

    On a CPU, a list without further arguments is called as the loop, outside `jax.jit` and if it is
    short. Under `jax.jit` it is compiled as quickly as possible, because arrays that are passed and
    returned one by one take more time than any method saves: a chain of many operations runs as
    `jax.lax.scan`. For the fastest steps, stack the layers once, before training:
    ``deeppcr.stack(layers)``.

    Args:
        layers: a list of layers: callables ``layer(x) -> x`` (functions, methods, partials, jitted
            functions, flax nnx, bound flax linen and equinox modules, other pytrees), or pairs
            ``(apply, params)``; or ``(apply, [params, ...])``, a ``Sequential`` of flax or equinox,
            ``deeppcr.stack(layers)``, or a `Chain` of layers already stacked.
        x: the input of the first layer: an array ``[*batch, ...]``, or a pytree of arrays.
        method: as in `scan`.
        adjoint: as in `scan`.
        batch_ndim: the number of leading batch axes of ``x``. None: 0 if the input of a chain of
            layers is a vector or a scalar, else 1.
        **unknown: not used; the error names the closest argument.

    Returns:
        the output of the last layer.

    Raises:
        TypeError: ``layers`` is not a list of layers, or one of them is not callable.
        ValueError: a name is unknown.

    Example:
        >>> weights = [0.1 * jnp.eye(3), 0.2 * jnp.eye(3), 0.3 * jnp.eye(3)]
        >>> layers = [jax.tree_util.Partial(jnp.matmul, w) for w in weights]
        >>> deeppcr.forward(layers, jnp.ones(3))
        Array([0.006, 0.006, 0.006], dtype=float32)
    """
    if unknown:
        raise unknown_keyword(forward, unknown)
    find_method(method)  # check names even if no layers form a chain
    find_adjoint(adjoint)
    is_quick = always_loops(method, adjoint)
    options: dict[str, Any] = {"method": method, "adjoint": adjoint}

    def checked(x: Any) -> int:
        """The batch axes of the input of a chain."""
        axes = vector_batch(x) if batch_ndim is None else batch_ndim
        _check_input(x, axes)
        return axes

    def run(segment: Segment, programs: Sequence[Layer], x: Any) -> Any:
        axes = 0 if segment.reason else checked(x)
        consecutive = programs[segment.start : segment.stop]
        if segment.reason or (is_quick and is_short(consecutive)):
            return in_order(consecutive, x)
        stacked = segment.stack(programs)
        if is_quick and not is_eager(stacked.inputs):
            step = lambda x, slices: (stacked.step(x, slices), None)  # noqa: E731
            return jax.lax.scan(step, x, stacked.inputs, stacked.length)[0]
        return solve(stacked.chain, x, batch_ndim=axes, **options).value

    if isinstance(layers, Stack):
        layers.check(x)
        layers = layers.chain
    if isinstance(layers, Chain):
        return solve(layers, x, batch_ndim=checked(x), **options).value
    every_layer = listed(layers)
    if batch_ndim is not None:
        checked(x)
    if is_quick and (len(every_layer) <= FEW_LAYERS or is_eager([jnp.zeros(())])):
        return _call(every_layer, x)
    start = 0
    while start < len(every_layer):
        programs, called = _first_programs(every_layer[start:], x, is_quick)
        for segment in divide(programs):
            x = run(segment, programs, x)
        start += len(programs)
        x = _call(every_layer[start : start + called], x, start)
        start += called
    return x


def _call(layers: Sequence[Any], x: Any, start: int = 0) -> Any:
    """Call layers one by one; ``start`` is the index of the first.

    Errors, whose type does not change, name the layer and its input.
    """
    for number, layer in enumerate(layers, start):
        try:
            x = as_callable(layer)(x)
        except Exception as error:
            where = f"layers[{number}] ({name_of(layer)}) was given {describe(x)}"
            if type(error) in (TypeError, ValueError):
                error.args = (f"{where}: {error}",)
            else:  # of a class of its own, whose arguments may mean anything
                error.add_note(where)
            raise
    return x


def _first_programs(layers: Sequence[Any], x: Any, is_quick: bool) -> tuple[list[Layer], int]:
    """The programs of the first layers, and how many after these have to be called.

    The code of each layer runs once, when it is traced, in order. Tracing stops at a layer with
    side effects, which later ones may observe, at one that changes itself or what it takes, and at
    one that cannot be traced: the last two are called, so their code runs again.

    ``is_quick``: whether to call the layers of a list that compiles faster as its loop.
    """
    programs = list[Layer]()
    # The first layer may distinguish a numpy array from a traced one: it is called directly.
    if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x)):
        return programs, 1
    with suppress(Exception):  # the call may raise it, too
        for layer in read(layers, x):
            if layer.changes:
                break
            programs.append(layer)
            if layer.acts:
                return programs, 0
            if is_quick and len(programs) == SAMPLE and is_short(programs, len(layers)):
                return programs, len(layers) - SAMPLE
    return programs, 1


def vector_batch(x: Any) -> int:
    """1 if every array has at least two axes, else 0: the default of ``batch_ndim``."""
    return min(1, max(0, min(map(jnp.ndim, jax.tree.leaves(x)), default=0) - 1))


def _check_input(x: Any, batch_ndim: int) -> None:
    """Check the input of a chain of layers by its own name; to `solve` it would be ``z0``."""
    leaves = leaves_as_arrays("x", x)
    names = [f"x{keystr(path)}" for path, _ in tree_leaves_with_path(x)]
    moves = floating(leaves)
    check_batch(partition(leaves, moves), partition(names, moves), batch_ndim, "x")
