"""Whether a program on flat arrays computes what the same program computes on the pytree: a proof, from their jaxprs.

A program that treats every entry by itself, or all entries together, may as well run on the leaves set end to end. To see whether
it does, it is traced twice, on the tree and on the flat arrays, and both programs are read as expressions (`symbolic`). The
inputs for all leaves of one dtype are the same symbol, so leaves that are treated alike have the same expression, which is also
that of their flat array. A reduction over *all* leaves of a dtype, by one expression, is the reduction over the flat array; a
reduction over some is refused. The programs agree if they return equal expressions, in the same structure, shapes and dtypes.

What is accepted agrees except for the order of summands (and the sign of a zero). Nothing is run; it costs two tracings, the one
on the tree being what the plain program costs anyway.
"""

from collections.abc import Callable
from typing import Any

import jax

from deeppcr.optim.packing import Packed, Packing, as_aval, is_packed
from deeppcr.optim.symbolic import (
    Constant,
    Different,
    Entrywise,
    Reader,
    Static,
    Terms,
    Uniform,
    intern,
)


def compare(function: Callable[..., Any], packing: Packing, args: Any) -> Any:
    """Prove that ``function(*args)`` computes on the pytrees what it computes on flat arrays.

    Args:
        function: from and to pytrees with `Packed` nodes in them.
        packing: of all these nodes.
        args: what it is called with: arrays, their shapes, and anything else.

    Returns:
        the shapes of ``function(*args)``, on the flat arrays.

    Raises:
        Different: no proof was found.
    """
    groups_of = {place: group for group, places in packing.groups.items() for place in places}
    names = [f"the flat array for {group}" for group in packing.groups]
    terms: Terms = {}
    on_tree = Reader(
        terms, [groups_of[place] for place in range(len(groups_of))], packing.sizes, packing.names
    )
    on_flat = Reader(terms, list(packing.groups), list(packing.totals.values()), names)

    avals, values = _inputs(args, packing, terms)
    tree_out, tree_shape = on_tree.outputs(
        function, _tree_of_avals(avals), _tree_of_values(values)
    )  # an error is the user's own
    try:
        flat_out, flat_shape = on_flat.outputs(function, avals, values)
    except Different:
        raise
    except Exception as error:
        said = next(iter(str(error).splitlines()), "")
        raise Different(
            f"it takes the tree, but raises {type(error).__name__} ({said}) for flat arrays"
        ) from error

    wanted_shape = _tree_of_avals(flat_shape)
    structures: list[Any] = [jax.tree.structure(tree_shape), jax.tree.structure(wanted_shape)]
    if structures[0] != structures[1]:
        raise Different(
            f"what it returns has another structure for flat arrays{_first_apart(tree_shape, wanted_shape)}"
        )
    wanted = _tree_of_values(jax.tree.map(on_flat.settled, flat_out))
    leaves = zip(*map(jax.tree.leaves, (tree_shape, wanted_shape, tree_out, wanted)), strict=True)
    paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree_shape)
    ]
    for path, (shape, other, value, want) in zip(paths, leaves, strict=True):
        if (shape.shape, shape.dtype) != (other.shape, other.dtype):
            raise Different(
                f"the result{path} is {_written(shape)}, but cut from a flat array it is {_written(other)}"
            )
        if 0 not in shape.shape and on_tree.settled(value) != want:
            raise Different(f"the result{path} is computed otherwise than for a flat array")
    return flat_shape


def _inputs(args: Any, packing: Packing, terms: Terms) -> tuple[Any, Any]:
    """The shapes of the arguments, and a symbol for each."""
    entries, treedef = jax.tree.flatten(args, is_leaf=is_packed)
    avals: list[Any] = []
    values: list[Any] = []
    for place, entry in enumerate(entries):
        if is_packed(entry):
            if entry.packing != packing:
                raise Different("it holds what has been packed in another way")
            avals.append(jax.tree.map(lambda leaf: as_aval(leaf, "argument"), entry))
            numbers = {group: number for number, group in enumerate(packing.groups)}
            symbols = {
                group: Entrywise(numbers[group], intern(terms, "input", place, group))
                for group in numbers
            }
            arrays = {
                group: symbols[group] if _is_aval(array) else array
                for group, array in avals[-1].arrays.items()
            }
            values.append(Packed(packing, arrays))
            continue
        try:
            avals.append(as_aval(entry, "argument"))
            values.append((Constant if avals[-1].shape else Uniform)(intern(terms, "input", place)))
        except TypeError:  # a function, say
            avals.append(Static(entry))
            values.append(avals[-1])
    return jax.tree.unflatten(treedef, avals), jax.tree.unflatten(treedef, values)


def _first_apart(one: Any, other: Any) -> str:
    """In words, a leaf that only one of two pytrees has."""
    ours, theirs = (
        [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        for tree in (one, other)
    )
    apart = [path for path in ours if path not in set(theirs)] + [
        path for path in theirs if path not in set(ours)
    ]
    return f": one of both lacks {apart[0]}" if apart else ""


def _is_aval(item: Any) -> bool:
    return isinstance(item, jax.ShapeDtypeStruct)


def _written(aval: Any) -> str:
    return f"{aval.dtype}{list(aval.shape)}"


def _tree_of_avals(tree: Any) -> Any:
    """The shapes on the pytree for those on flat arrays."""

    def spread(node: Any) -> Any:
        if not is_packed(node):
            return node
        shapes, totals = node.packing.shapes, node.packing.totals

        def piece(place: int, group: str, item: Any) -> Any:
            if not _is_aval(item):
                return item
            if item.shape != (totals[group],):
                raise Different(
                    f"it keeps {_written(item)} for the flat array of {totals[group]} entries of {group}"
                )
            return jax.ShapeDtypeStruct(shapes[place], item.dtype, weak_type=item.weak_type)

        return node.spread(piece)

    return jax.tree.map(spread, tree, is_leaf=is_packed)


def _tree_of_values(tree: Any) -> Any:
    """What each leaf of the pytree has to be, for what the flat arrays are."""

    def piece(place: int, group: str, item: Any) -> Any:
        return Entrywise(place, item.term) if isinstance(item, Entrywise) else item

    return jax.tree.map(
        lambda node: node.spread(piece) if is_packed(node) else node, tree, is_leaf=is_packed
    )
