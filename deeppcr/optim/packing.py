"""A pytree as flat arrays: the leaves of each dtype, ravelled and concatenated in order."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.checks import describe_type
from deeppcr.rewrites import split


@dataclasses.dataclass(frozen=True)
class Packing:
    """The layout of a pytree in flat arrays, one per dtype. Static. Made by `Packing.of`.

    Attributes:
        treedef: the structure of the tree.
        shapes: the shape of each leaf.
        dtypes: the dtype of each leaf; None for a leaf that is not packed.

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
    def of(cls, tree: Any, name: str = "tree") -> Self:
        """The packing of a pytree of arrays or `jax.ShapeDtypeStruct`.

        Args:
            tree: the pytree, with leaves of any shapes and dtypes.
            name: the name of the tree in errors.

        Raises:
            TypeError: a leaf is not an array.
        """
        found, treedef = jax.tree_util.tree_flatten_with_path(tree)
        avals = [as_aval(leaf, name + jax.tree_util.keystr(path)) for path, leaf in found]
        return cls(treedef, tuple(a.shape for a in avals), tuple(a.dtype for a in avals))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of entries of each leaf."""
        return tuple(int(np.prod(shape, dtype=int)) for shape in self.shapes)

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The indices of the leaves of each dtype, by the name of the dtype."""
        names = ["" if dtype is None else str(dtype) for dtype in self.dtypes]
        every = sorted({name for name in names if name})
        return {group: [i for i, name in enumerate(names) if name == group] for group in every}

    @cached_property
    def alike(self) -> list[tuple[str, list[int], Any]]:
        """The leaves of each dtype and shape, with their indices in the flat array, a row each."""
        found = []
        for group, indices in self.groups.items():
            sizes = [self.sizes[i] for i in indices]
            starts = dict(zip(indices, np.cumsum([0, *sizes[:-1]]), strict=True))
            for shape in dict.fromkeys(self.shapes[i] for i in indices):
                leaves = [i for i in indices if self.shapes[i] == shape]
                rows = np.array([starts[i] for i in leaves])[:, None]
                found.append((group, leaves, rows + np.arange(self.sizes[leaves[0]])))
        return found

    @cached_property
    def names(self) -> list[str]:
        """The path of each leaf, for errors."""
        numbered = self.treedef.unflatten(range(len(self.shapes)))
        return [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(numbered)]

    def pack(self, tree: Any, name: str = "tree") -> "Packed":
        """Pack a pytree of this structure and these shapes into flat arrays.

        Args:
            tree: the pytree; `Packed` is returned unchanged. Its dtypes may differ from those of
                the packing (float32 gradients of bfloat16 parameters) if leaves that share a flat
                array share a dtype.
            name: the name of the tree in errors.

        Returns:
            a `Packed`.

        Raises:
            ValueError: the tree has another structure, or a leaf has another shape.
            TypeError: leaves that share a flat array differ in dtype.
        """
        if isinstance(tree, Packed):
            return self._own(tree, name)
        try:
            leaves = self.treedef.flatten_up_to(tree)
        except (ValueError, TypeError, KeyError) as error:
            found = jax.tree.structure(tree)
            raise ValueError(
                f"{name} has the structure {found}, expected {self.treedef}."
            ) from error
        arrays = {}
        for group, indices in self.groups.items():
            for i in indices:
                found, expected = list(np.shape(leaves[i])), list(self.shapes[i])
                if found != expected:
                    raise ValueError(
                        f"{name}{self.names[i]} has shape {found}, expected {expected}."
                    )
            flat = [jnp.asarray(leaves[i]).reshape(self.sizes[i]) for i in indices]
            if len(dtypes := {str(part.dtype) for part in flat}) > 1:
                raise TypeError(
                    f"the leaves of {name} that share the flat array for {group} differ in dtype "
                    f"({', '.join(sorted(dtypes))}), expected one: packing casts nothing."
                )
            arrays[group] = flat[0] if len(flat) == 1 else jnp.concatenate(flat)
        return Packed(self, arrays)

    def unpack(self, packed: "Packed") -> Any:
        """The pytree, with its structure and shapes; None for leaves that are not packed.

        Differentiate with respect to the result. The gradient with respect to ``packed`` is the
        same, but concatenates the gradients of all leaves.

        Args:
            packed: a `Packed` of this packing.

        Raises:
            TypeError: ``packed`` is not `Packed`.
            ValueError: it was packed by another packing.
        """
        if not isinstance(packed, Packed):
            kind = type(packed).__name__
            raise TypeError(f"packed is {kind}, expected the result of Packing.pack.")
        leaves: list[Any] = [None] * len(self.shapes)
        arrays = self._own(packed, "packed").arrays
        # One split: the transpose of a slice per leaf would be a full-size pad per leaf.
        sizes = [[self.sizes[i] for i in indices] for indices in self.groups.values()]
        parts = split([arrays[group] for group in self.groups], sizes)
        for indices, of_group in zip(self.groups.values(), parts, strict=True):
            for i, part in zip(indices, of_group, strict=True):
                leaves[i] = part.reshape(self.shapes[i])
        return self.treedef.unflatten(leaves)

    def _own(self, packed: "Packed", name: str) -> "Packed":
        if packed.packing != self:
            found = packed.packing
            raise ValueError(f"{name} was packed by another packing: {found}, expected {self}.")
        return packed


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """A pytree as flat arrays: a pytree with one leaf per dtype. Made by `Packing.pack`.

    Attributes:
        packing: the layout.
        arrays: the flat arrays ``[n]`` by the names of their dtypes, n being the number of entries
            of all leaves of that dtype.

    Example:
        >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
        >>> packed = deeppcr.Packing.of(tree).pack(tree)
        >>> packed.arrays["float32"].shape, packed.unpack()["b"].shape
        ((9,), (3,))
    """

    packing: Packing
    arrays: Mapping[str, Any]

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], Packing]:
        """For `jax.tree`: the arrays in the order of the dtypes' names."""
        groups = self.packing.groups
        return [(jax.tree_util.DictKey(g), self.arrays[g]) for g in groups], self.packing

    @classmethod
    def tree_unflatten(cls, packing: Packing, arrays: Any) -> Self:
        """For `jax.tree`."""
        return cls(packing, dict(zip(packing.groups, arrays, strict=True)))

    def unpack(self) -> Any:
        """The pytree; see `Packing.unpack`."""
        return self.packing.unpack(self)


def as_aval(leaf: Any, name: str) -> Any:
    """Shape and dtype of a leaf, as jax would store it."""
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    try:
        return jax.eval_shape(lambda x: x, leaf)
    except TypeError:
        raise TypeError(f"{name} is {describe_type(leaf)}, expected an array.") from None
