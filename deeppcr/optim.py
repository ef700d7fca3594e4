"""`pack(optimizer)`: an optax optimizer on flat arrays, one for each dtype, instead of a tree."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.checks import describe
from deeppcr.lower import split


@dataclasses.dataclass(frozen=True)
class Packing:
    """The layout of a pytree in flat arrays, one per dtype. Static. Made by `Packing.of`.

    Attributes:
        treedef: the structure of the tree.
        shapes: the shape of each leaf.
        dtypes: the dtype of each leaf.

    Example:
        >>> tree = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3), "steps": jnp.int32(7)}
        >>> packed = deeppcr.Packing.of(tree).pack(tree)
        >>> jax.tree.map(jnp.shape, packed.arrays), packed.unpack()["w"].shape
        ({'float32': (9,), 'int32': (1,)}, (2, 3))
    """

    treedef: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]

    @classmethod
    def of(cls, tree: Any) -> "Packing":
        """The packing of a pytree of arrays or `jax.ShapeDtypeStruct`; that of a `Packed`.

        Raises:
            TypeError: a leaf is not an array.
        """
        if isinstance(tree, Packed):
            return tree.packing
        avals, treedef = jax.tree.flatten(jax.eval_shape(lambda tree: tree, tree))
        return cls(treedef, tuple(a.shape for a in avals), tuple(a.dtype for a in avals))

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """The indices of the leaves of each dtype, by the name of the dtype."""
        names = list(map(str, self.dtypes))
        return {name: [i for i, x in enumerate(names) if x == name] for name in sorted({*names})}

    def pack(self, tree: Any, name: str = "tree") -> "Packed":
        """Pack a pytree of this structure and these shapes; `Packed` is returned unchanged.

        Its dtypes may differ from those of the packing (float32 gradients of bfloat16 parameters).

        Raises:
            ValueError: the tree, called ``name`` in the error, has another structure or shape.
            TypeError: leaves that share a flat array differ in dtype.
        """
        found = Packing.of(tree)
        if (found.treedef, found.shapes) != (self.treedef, self.shapes):
            raise ValueError(f"{name} has the structure {found}, expected {self}.")
        if isinstance(tree, Packed):
            return tree
        leaves, arrays = list(map(jnp.ravel, jax.tree.leaves(tree))), {}
        for group, indices in self.groups.items():
            if len(dtypes := sorted({str(leaves[i].dtype) for i in indices})) > 1:
                raise TypeError(
                    f"the leaves of {name} that share the flat array for {group} differ in dtype "
                    f"({', '.join(dtypes)}), expected one: packing casts nothing."
                )
            arrays[group] = jnp.concatenate([leaves[i] for i in indices])
        return Packed(self, arrays)

    def unpack(self, packed: "Packed") -> Any:
        """The pytree of what `pack` returned."""
        arrays, leaves = self.pack(packed, "packed").arrays, dict[int, Any]()
        # One split: the transpose of a slice per leaf would be a full-size pad per leaf.
        for group, indices in self.groups.items():
            parts = split(arrays[group], [int(np.prod(self.shapes[i])) for i in indices])
            leaves |= zip(indices, parts, strict=True)
        flat = [leaves[i].reshape(shape) for i, shape in enumerate(self.shapes)]
        return self.treedef.unflatten(flat)


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["packing"])
@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """A pytree as flat arrays: a pytree with one leaf per dtype. Made by `Packing.pack`.

    Attributes:
        packing: the layout.
        arrays: the flat array ``[n]`` of each dtype, by its name.
    """

    packing: Packing
    arrays: Mapping[str, Any]

    def unpack(self) -> Any:
        """The pytree; see `Packing.unpack`."""
        return self.packing.unpack(self)


def pack(optimizer: Any) -> Any:
    """Run an optax optimizer on flat arrays: its state is one array per dtype instead of a tree.

    Stacked layers have few arrays and gain little from packing. Train some leaves alone, or with
    other settings, by optax's own tools: ``optax.partition({True: pack(decayed), False:
    pack(plain)}, mask)``, or ``False: optax.set_to_zero()``.

    Args:
        optimizer: an `optax.GradientTransformation` that treats entries independently (sgd, adam,
            adamw, lion, schedules, `optax.clip`) or all of them together
            (`optax.clip_by_global_norm`, `optax.apply_if_finite`). One that treats leaves
            separately is rejected (lamb, adafactor, muon, noise, labels, weight decay per leaf):
            ``init`` tries two updates of small random leaves. It does not see later ones.

    Returns:
        an `optax.GradientTransformationExtraArgs`. Its updates equal those of ``optimizer`` up to
        rounding. Its state is that for `Packed` parameters, and so are the updates of `Packed`
        gradients.

    Raises:
        ImportError: optax is not installed.
        TypeError: ``optimizer`` is not an optax optimizer; a leaf is not floating; or gradients
            that share a flat array differ in dtype.
        ValueError: the optimizer treats leaves separately, or gradients have another structure.

    Example:
        >>> import optax
        >>> params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
        >>> optimizer = deeppcr.pack(optax.adam(0.1))
        >>> updates, state = optimizer.update(params, optimizer.init(params), params)
        >>> updates["w"].shape, [leaf.shape for leaf in jax.tree.leaves(state)]
        ((3, 2), [(), (8,), (8,)])
    """
    import optax

    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(f"optimizer is {describe(optimizer)}, expected an optax optimizer.")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        packing = Packing.of(params)
        if not all(jnp.issubdtype(dtype, jnp.inexact) for dtype in packing.dtypes):
            raise TypeError(
                f"params has leaves of {', '.join(packing.groups)}, expected floating ones: "
                "optax.partition({True: deeppcr.pack(optimizer), False: optax.set_to_zero()}, mask)"
            )
        _check_packs(inner, packing)
        return inner.init(packing.pack(params, "params"))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        packing = Packing.of(updates if params is None else params)
        flat = None if params is None else packing.pack(params, "params")
        moved, state = inner.update(packing.pack(updates, "updates"), state, flat, **extra)
        return moved if isinstance(updates, Packed) else packing.unpack(moved), state

    return optax.GradientTransformationExtraArgs(init, update)


def _check_packs(optimizer: Any, packing: Packing) -> None:
    """Raise unless two updates of a small tree, with leaves of all sizes, are those when packed."""
    shapes = tuple(tuple(min(n, 2) for n in shape) for shape in packing.shapes)
    packing = dataclasses.replace(packing, shapes=shapes)

    def updates(pack: Any) -> Any:
        rng = np.random.default_rng(0)

        def draw() -> Any:
            scales = 10.0 ** rng.integers(-2, 3, len(shapes))
            leaves = [rng.standard_normal(n) * c for n, c in zip(shapes, scales, strict=True)]
            return pack(packing.treedef.unflatten([jnp.asarray(x, "float32") for x in leaves]))

        params = draw()
        state = optimizer.init(params)
        for _ in range(2):
            moved, state = optimizer.update(draw(), state, params)
        return moved

    with jax.ensure_compile_time_eval():
        try:
            plain = updates(lambda tree: tree)
        except TypeError:  # it may need a loss, or other arguments of `update`
            return
        try:
            packed = updates(packing.pack).unpack()
            for x, y in zip(*map(jax.tree.leaves, (plain, packed)), strict=True):
                if not isinstance(x, jax.core.Tracer):
                    np.testing.assert_allclose(x, y, 2e-5, 1e-8)
        except Exception as error:
            raise ValueError(
                "optimizer cannot be packed: it treats leaves of the parameters separately, as its "
                "updates of small random leaves show. Use it without deeppcr.pack."
            ) from error
