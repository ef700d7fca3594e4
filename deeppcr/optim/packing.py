"""How a pytree lies in flat arrays, one for each dtype.

The leaves of one dtype, in the order of `jax.tree.leaves`, are ravelled and set end to end. Nothing is cast: a tree of float32
and bfloat16 leaves becomes two arrays. The way back is one `jax.lax.split` a dtype, whose transpose is a concatenation; a slice
for each leaf would transpose to a full-size pad for each leaf.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


@dataclasses.dataclass(frozen=True)
class Packing:
    """Where each leaf of a pytree lies in flat arrays, one for each dtype.

    A packing is static: it holds no arrays, can be hashed, and is found from shapes alone. Make one by `Packing.of`.

    Attributes:
        treedef: the structure.
        shapes: of each leaf.
        dtypes: of each leaf.

    Example:
        >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3), "steps": jnp.int32(7)}
        >>> packing = deeppcr.Packing.of(tree)
        >>> packed = packing.pack(tree)
        >>> {name: array.shape for name, array in packed.arrays.items()}
        {'float32': (9,), 'int32': (1,)}
        >>> packing.unpack(packed)["w"].shape
        (2, 3)
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, tree: Any) -> Self:
        """The packing of ``tree``.

        Args:
            tree: pytree of arrays, or of `jax.ShapeDtypeStruct`: any dtypes, random keys among them.

        Raises:
            TypeError: a leaf is not an array.
        """
        found, treedef = jax.tree_util.tree_flatten_with_path(tree)
        avals = [as_aval(leaf, "tree" + jax.tree_util.keystr(path)) for path, leaf in found]
        return cls(
            treedef, tuple(tuple(aval.shape) for aval in avals), tuple(aval.dtype for aval in avals)
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # jit asks for it at every call
        return hash((self.treedef, self.shapes, self.dtypes))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many entries each leaf has."""
        return tuple(int(np.prod(shape, dtype=int)) for shape in self.shapes)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The places of the leaves of each dtype, by its name."""
        groups: dict[str, list[int]] = {}
        for place, dtype in enumerate(self.dtypes):
            groups.setdefault(str(dtype), []).append(place)
        return dict(sorted(groups.items()))

    @cached_property
    def totals(self) -> dict[str, int]:
        """The length of each flat array."""
        return {
            name: sum(self.sizes[place] for place in places) for name, places in self.groups.items()
        }

    @cached_property
    def names(self) -> list[str]:
        """The leaves as errors call them."""
        paths = jax.tree_util.tree_leaves_with_path(self.treedef.unflatten(range(len(self.shapes))))
        return [jax.tree_util.keystr(path) or "the array" for path, _ in paths]

    def pack(self, tree: Any, name: str = "tree") -> "Packed":
        """Flat arrays from a pytree of this structure and these shapes; what has been packed already is returned as it is.

        The dtypes may be others than the packing's (gradients in float32 of parameters in bfloat16), as long as the leaves that
        share a flat array share a dtype.

        Args:
            tree: what to pack.
            name: what errors call it.

        Raises:
            ValueError: the structure or a shape is another one.
            TypeError: leaves that share a flat array differ in dtype.
        """
        if isinstance(tree, Packed):
            if tree.packing != self:
                raise ValueError(
                    f"{name} has been packed by another packing: {tree.packing}, expected {self}."
                )
            return tree
        leaves, treedef = jax.tree.flatten(tree)
        if treedef != self.treedef:
            raise ValueError(f"{name} has the structure {treedef}, expected {self.treedef}.")
        return self.pack_leaves(leaves, name)

    def pack_leaves(self, leaves: list[Any], name: str) -> "Packed":
        """`pack`, from the leaves in order."""
        for place, (leaf, shape) in enumerate(zip(leaves, self.shapes, strict=True)):
            if np.shape(leaf) != shape:
                where = name + self.names[place]
                raise ValueError(
                    f"{where} has shape {list(np.shape(leaf))}, expected {list(shape)}."
                )
        arrays = {}
        for group, places in self.groups.items():
            parts = [jnp.asarray(leaves[place]) for place in places]
            if len({part.dtype for part in parts}) > 1:
                found = ", ".join(
                    f"{self.names[i]}: {part.dtype}" for i, part in zip(places, parts, strict=True)
                )
                raise TypeError(
                    f"the leaves of {name} that share the flat array for {group} differ in dtype ({found}), expected one: "
                    "packing casts nothing."
                )
            flat = [
                part.reshape(self.sizes[place]) for place, part in zip(places, parts, strict=True)
            ]
            arrays[group] = flat[0] if len(flat) == 1 else jnp.concatenate(flat)
        return Packed(self, arrays)

    def unpack(self, packed: "Packed") -> Any:
        """The pytree, with the shapes and the structure that it had.

        Take gradients with respect to what this returns, and not with respect to ``packed``: the latter is right too, but
        carries every gradient back through the unpacking.

        Raises:
            TypeError: what is given is not `Packed`.
            ValueError: it has been packed by another packing.
        """
        if not isinstance(packed, Packed):
            raise TypeError(
                f"packed is {type(packed).__name__}, expected what Packing.pack returns."
            )
        if packed.packing != self:
            raise ValueError(
                f"packed has been packed by another packing: {packed.packing}, expected {self}."
            )
        pieces: dict[int, Array] = {}
        for group, places in self.groups.items():
            parts = jax.lax.split(packed.arrays[group], [self.sizes[place] for place in places])
            pieces |= {
                place: part.reshape(self.shapes[place])
                for place, part in zip(places, parts, strict=True)
            }
        return self.treedef.unflatten([pieces[place] for place in range(len(pieces))])


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """A pytree as flat arrays: itself a pytree, whose leaves are one array for each dtype. Made by `Packing.pack`.

    Attributes:
        packing: how the arrays are made, and unmade.
        arrays: flat arrays by the names of the dtypes.
    """

    packing: Packing
    arrays: Mapping[str, Any]

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Packing]:
        """For `jax.tree`: the arrays in the order of their dtypes' names."""
        return [
            (jax.tree_util.DictKey(name), self.arrays[name]) for name in self.packing.groups
        ], self.packing

    @classmethod
    def tree_unflatten(cls, packing: Packing, arrays: Any) -> Self:
        """For `jax.tree`."""
        return cls(packing, dict(zip(packing.groups, arrays, strict=True)))

    def unpack(self) -> Any:
        """The pytree; see `Packing.unpack`."""
        return self.packing.unpack(self)

    def spread(self, piece: Callable[[int, str, Any], Any]) -> Any:
        """The pytree with ``piece(place, group, array)`` in place of each leaf."""
        group_of = {
            place: group for group, places in self.packing.groups.items() for place in places
        }
        leaves = [
            piece(place, group_of[place], self.arrays[group_of[place]])
            for place in range(len(group_of))
        ]
        return self.packing.treedef.unflatten(leaves)


def is_packed(node: Any) -> bool:
    """Whether a node of a pytree is `Packed`."""
    return isinstance(node, Packed)


def as_aval(leaf: Any, name: str) -> Any:
    """Shape and dtype of a leaf, as an array of jax would have them."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        if isinstance(leaf, np.ndarray):
            return jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
        aval = jax.typeof(leaf)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {type(leaf).__name__}, expected an array.") from None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=getattr(aval, "weak_type", False))
