"""`pack(optimizer)`: an optax optimizer that works on flat arrays, one for each dtype, instead of on a pytree of parameters.

Let ``P`` lay a tree of trained parameters out in flat arrays (`packing`), and let ``init`` and ``update`` be the optimizer's.
What is run is ``P^-1 update(P g, s, P p)``, with a state ``s = init(P p)`` that holds one flat array a dtype wherever the
optimizer's own state holds a tree. It is what ``update(g, ., p)`` gives only if the optimizer treats each entry by itself, or all
entries together; that is proven for the parameters at hand by `equivalence`, or the optimizer is refused.

Parameters that are not trained get the update ``-0.0``: ``p + (-0.0)`` is ``p`` to the bit, for ``p = -0.0`` too.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.optim.equivalence import Different, compare
from deeppcr.optim.packing import Packed, Packing, as_aval, is_packed


def pack(optimizer: Any, mask: Any = None) -> Any:
    """An optimizer whose state is flat: one array for each dtype of the parameters, where ``optimizer`` keeps a tree of arrays.

    Args:
        optimizer: an `optax.GradientTransformation`. It must treat every entry of the parameters by itself (sgd, adam, adamw,
            rmsprop, lion, ...; schedules, `optax.clip`), or all of them together (`optax.clip_by_global_norm`,
            `optax.apply_if_finite`). Before its first use on a tree it is traced, on the tree and on the flat arrays, and the two
            programs are compared operation by operation; nothing is run. An optimizer that treats leaves separately (lamb, lars,
            adafactor, muon, `optax.clip_by_block_rms`, noise drawn for each leaf, labels or weight decay by leaf) is refused.
        mask: which parameters are trained: a pytree of bools, a prefix of the parameters' tree, or a function of the parameters
            that returns one. None for all. The others get no state and stay as they are, to the bit, also under weight decay;
            what is not floating (or complex) is never trained.

    Returns:
        an `optax.GradientTransformationExtraArgs`: ``init`` takes the parameters, ``update(grads, state, params)`` returns
        updates in the tree's structure for `optax.apply_updates`: the plain optimizer's, to rounding (compiled in other shapes,
        the same arithmetic may be fused otherwise; a sum over all parameters has its summands in another order,
        and is as accurate as the narrowest dtype among them).
        The optimizer's own state is ``state.inner_state``. Both functions also take and return `Packed` parameters.

    Raises:
        ImportError: optax is not installed.
        TypeError: ``optimizer`` is not an optax optimizer, ``mask`` is not of bools; from ``update``: gradients that share a flat
            array differ in dtype.
        ValueError: ``mask`` is not a prefix of the parameters; from ``init`` and ``update``: the optimizer treats leaves
            separately (the message says where), or the gradients are not of the parameters' structure.

    When it pays: seldom. With stacked layers there is little left to pack, and with a list of layers it costs more than it saves.
    A jitted `jax.lax.scan` of 200 Adam steps, 16 residual
    modules of 12 arrays (26,624 parameters, float32), batch 32, by ``python -m experiments training_loop``; seconds to trace,
    lower and compile, and microseconds a step, on two CPU cores (jax 0.10.2, medians of 5):

    =================================  =======  =====  ======
    parameters, optimizer              seconds         a step
    =================================  =======  =====  ======
    list of dicts, `optax.adam`           1.86            535
    list, packed optimizer                2.68  0.69x     485
    stacked, `optax.adam`                 0.55  3.4x      518
    stacked, packed optimizer             0.56  3.3x      546
    stacked, parameters packed too        0.57  3.3x      536
    =================================  =======  =====  ======

    Packing 192 arrays costs XLA what it saves elsewhere. No other device has been measured.

    A weight decay for some leaves only (``mask=`` of `optax.adamw`) is refused as it stands; it is
    ``optax.partition({True: pack(decayed), False: pack(plain)}, mask)``.

    Example, with the parameters packed too, so that a loop carries the fewest arrays:
        >>> import optax
        >>> params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
        >>> optimizer = deeppcr.pack(optax.adam(0.1))
        >>> packing = deeppcr.Packing.of(params)
        >>> def loss(params, x):
        ...     return jnp.square(x @ params["w"] + params["b"]).mean()
        >>> def step(carry, x):
        ...     packed, state = carry
        ...     gradients = jax.grad(loss)(packing.unpack(packed), x)
        ...     updates, state = optimizer.update(packing.pack(gradients), state, packed)
        ...     return (optax.apply_updates(packed, updates), state), None
        >>> @jax.jit
        ... def train(params, xs):
        ...     packed = packing.pack(params)
        ...     (packed, _), _ = jax.lax.scan(step, (packed, optimizer.init(packed)), xs)
        ...     return packing.unpack(packed)
        >>> xs = jnp.ones((100, 5, 3))
        >>> float(loss(params, xs[0])), bool(loss(train(params, xs), xs[0]) < 1e-2)
        (9.0, True)
    """
    optax = _optax()
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TypeError(
            f"optimizer is {type(optimizer).__name__}, expected an optax.GradientTransformation."
        )
    inner = optax.with_extra_args_support(optimizer)
    proven: dict[Any, Any] = {}

    def check(what: str, function: Callable[..., Any], packing: Packing, args: Any) -> Any:
        """The shapes that ``function(*args)`` returns, once it is proven that it may be packed."""
        key = _key(what, args)
        if key in proven:
            return proven[key]
        try:
            shape = compare(function, packing, args)
        except Different as difference:
            raise CannotPack(
                f"optimizer cannot be packed: it treats leaves of the parameters separately. In its {what}, {difference}. "
                "Use it without deeppcr.pack: with stacked layers (deeppcr.stack) its state has few arrays as it is."
            ) from difference.__cause__
        if key is not None:
            proven[key] = shape
        return shape

    def init(params: Any) -> PackState:
        layout = Layout.of(params, mask)
        packed = layout.gather(params, "params")
        state = check("init", inner.init, layout.packing, (packed,))
        try:  # refuse at once what update would refuse
            check("update", _update(inner), layout.packing, (packed, state, packed, {}))
        except CannotPack:
            raise
        except Exception:  # an update that needs more than this, a loss say
            pass
        return PackState(inner.init(packed), layout)

    def update(
        updates: Any, state: PackState, params: Any = None, **extra_args: Any
    ) -> tuple[Any, PackState]:
        if not isinstance(state, PackState):
            raise TypeError(
                f"state is {type(state).__name__}, expected what this optimizer's init or update returned."
            )
        layout = state.layout
        packed = layout.gather(updates, "updates")
        packed_params = None if params is None else layout.gather(params, "params")
        args = (packed, state.inner_state, packed_params, extra_args)
        check("update", _update(inner), layout.packing, args)
        packed, inner_state = _update(inner)(*args)
        return layout.scatter(packed, updates if params is None else params, updates), PackState(
            inner_state, layout
        )

    return optax.GradientTransformationExtraArgs(init, update)


class CannotPack(ValueError):
    """An optimizer that treats leaves separately."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which leaves of the parameters are trained, and how those lie in flat arrays.

    Attributes:
        treedef: the structure of the parameters.
        trained: for each leaf, whether it is.
        packing: of the parameters with None for what is not trained.
        whole: of the parameters, if they come as `Packed`.
    """

    treedef: Any
    trained: tuple[bool, ...]
    packing: Packing
    whole: Packing | None = None

    @classmethod
    def of(cls, params: Any, mask: Any) -> Self:
        """The layout of ``params``, a pytree or `Packed`, under the user's ``mask``."""
        whole = params.packing if is_packed(params) else None
        if whole is not None:
            if mask is not None:
                raise ValueError(
                    "mask is given and params is Packed, expected one of them: pack what is trained, and no more."
                )
            treedef, leaves = (
                whole.treedef,
                list(map(jax.ShapeDtypeStruct, whole.shapes, whole.dtypes)),
            )
        else:
            paths, treedef = jax.tree_util.tree_flatten_with_path(params)
            leaves = [as_aval(leaf, "params" + jax.tree_util.keystr(path)) for path, leaf in paths]
        floating = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
        chosen = [True] * len(leaves) if mask is None else _broadcast(mask, params, treedef)
        trained = tuple(f and c for f, c in zip(floating, chosen, strict=True))
        kept = treedef.unflatten(
            [leaf if t else None for leaf, t in zip(leaves, trained, strict=True)]
        )
        return cls(treedef, trained, Packing.of(kept), whole)

    def gather(self, tree: Any, name: str) -> Packed:
        """What is trained, as flat arrays."""
        if self.whole is not None:
            packed = self.whole.pack(tree, name)
            return Packed(
                self.packing, {group: packed.arrays[group] for group in self.packing.groups}
            )
        leaves = self.leaves(tree, name)
        return self.packing.pack_leaves(
            [leaf for leaf, t in zip(leaves, self.trained, strict=True) if t], name
        )

    def leaves(self, tree: Any, name: str) -> list[Any]:
        """What ``tree`` has where the parameters have leaves; it may have anything where nothing is trained."""
        try:
            return list(self.treedef.flatten_up_to(tree))
        except (ValueError, TypeError, KeyError) as error:
            found = jax.tree.structure(tree)
            raise ValueError(
                f"{name} has the structure {found}, expected that of the parameters: {self.treedef}."
            ) from error

    def scatter(self, packed: Packed, params: Any, updates: Any) -> Any:
        """Updates in the structure of ``params``."""
        if self.whole is not None:
            still = {
                name: array
                for name, array in params.arrays.items()
                if name not in self.packing.groups
            }
            return Packed(self.whole, {**jax.tree.map(_nothing, still), **packed.arrays})
        moving = iter(jax.tree.leaves(packed.unpack()))
        leaves = zip(
            self.trained,
            self.leaves(params, "params"),
            self.leaves(updates, "updates"),
            strict=True,
        )
        return self.treedef.unflatten(
            [next(moving) if t else None if u is None else _nothing(p) for t, p, u in leaves]
        )


@partial(jax.tree_util.register_dataclass, data_fields=["inner_state"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True)
class PackState:
    """The state of a packed optimizer.

    Attributes:
        inner_state: the optimizer's own, with `Packed` where it would hold a tree like the parameters.
        layout: which parameters are trained, and where they lie.
    """

    inner_state: Any
    layout: Layout


@jax.tree_util.register_static
class Unchanged:
    """The update of a random key: nothing can be added to a key but this."""

    def __radd__(self, other: Any) -> Any:
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unchanged)

    def __hash__(self) -> int:
        return hash(Unchanged)


def _nothing(param: Any) -> Any:
    """The update that leaves ``param`` as it is."""
    dtype = as_aval(param, "a parameter").dtype
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return Unchanged()
    if dtype == jax.dtypes.float0:
        return param
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.full_like(param, complex(-0.0, -0.0))
    return (
        jnp.full_like(param, -0.0) if jnp.issubdtype(dtype, jnp.floating) else jnp.zeros_like(param)
    )


def _broadcast(mask: Any, params: Any, treedef: Any) -> list[bool]:
    """The mask of each leaf of ``params``."""
    given = mask(params) if callable(mask) else mask
    try:
        spread = jax.tree.map(
            lambda chosen, part: jax.tree.map(lambda _: chosen, part), given, params
        )
        chosen = treedef.flatten_up_to(spread)
    except (ValueError, TypeError, KeyError) as error:
        found = jax.tree.structure(given)
        raise ValueError(
            f"mask has the structure {found}, expected a prefix of the parameters': {treedef}."
        ) from error
    wrong = [leaf for leaf in chosen if not isinstance(leaf, bool | np.bool_)]
    if wrong:
        raise TypeError(f"mask has a leaf of type {type(wrong[0]).__name__}, expected bool.")
    return [bool(leaf) for leaf in chosen]


def _update(optimizer: Any) -> Callable[..., Any]:
    return lambda updates, state, params, extra_args: optimizer.update(
        updates, state, params, **extra_args
    )


def _key(what: str, args: Any) -> Any:
    """What a proof depends on; None if an argument is no array."""
    leaves, treedef = jax.tree.flatten(args)
    try:
        avals = [as_aval(leaf, "argument") for leaf in leaves]
    except TypeError:
        return None
    return (what, treedef, *((aval.shape, aval.dtype, aval.weak_type) for aval in avals))


def _optax() -> Any:
    try:
        import optax
    except ImportError as error:
        raise ImportError(
            "deeppcr.pack needs optax: pip install 'deeppcr[experiments]'."
        ) from error
    return optax
