"""`pack(optimizer)`: an optax optimizer on flat arrays, after a trial that it may be packed.

With ``P`` the packing of the trained parameters, it computes ``P^-1 update(P g, s, P p)``. This
equals ``update(g, s, p)`` only if the optimizer treats entries independently, or all of them
together. So it first compares both on small random leaves: see `check_packs`.
"""

import contextlib
import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.optim.packing import Packed, Packing, as_aval
from deeppcr.optim.trial import PlainRaises, check_packs


def pack(optimizer: Any, mask: Any = None) -> Any:
    """Run an optax optimizer on flat arrays: its state is one array per dtype instead of a tree.

    Stacked layers have few arrays and gain little from packing. Instead of
    ``optax.adamw(mask=...)``, which decays only some leaves, use
    ``optax.partition({True: pack(decayed), False: pack(plain)}, mask)``.

    Args:
        optimizer: an `optax.GradientTransformation` that treats entries independently (sgd, adam,
            adamw, lion, schedules, `optax.clip`) or all of them together
            (`optax.clip_by_global_norm`, `optax.apply_if_finite`). Optimizers that treat leaves
            separately are rejected: lamb, lars, adafactor, muon, `optax.clip_by_block_rms`, and
            noise, labels or weight decay per leaf. A trial on random leaves decides, once per tree.
            Its leaves have at most 4 entries along an axis, so it does not detect dependence on
            larger sizes or on rare values.
        mask: the parameters to train: a pytree of bools that is a prefix of the parameters' tree,
            or a function of the parameters that returns one. None: all. Other parameters have no
            state and are not changed. Only floating and complex leaves are trained.

    Returns:
        an `optax.GradientTransformationExtraArgs`. Its updates equal those of ``optimizer`` up to
        rounding. Its state contains that of ``optimizer`` as ``state.inner_state``. If parameters
        and gradients are `Packed`, so are the updates.

    Raises:
        ImportError: optax is not installed.
        TypeError: ``optimizer`` is not an optax optimizer; ``mask`` has leaves other than bools; or
            gradients that share a flat array differ in dtype.
        ValueError: ``mask`` is not a prefix of the parameters; or, from ``init`` and ``update``,
            the optimizer treats leaves separately, or the gradients have another structure.

    Example, with packed parameters, so that a loop carries few arrays:
        >>> import optax
        >>> params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
        >>> optimizer, packing = deeppcr.pack(optax.adam(0.1)), deeppcr.Packing.of(params)
        >>> def loss(params, x):
        ...     return jnp.square(x @ params["w"] + params["b"]).mean()
        >>> def step(carry, x):
        ...     packed, state = carry
        ...     gradients = packing.pack(jax.grad(loss)(packing.unpack(packed), x))
        ...     updates, state = optimizer.update(gradients, state, packed)
        ...     return (optax.apply_updates(packed, updates), state), loss(packed.unpack(), x)
        >>> packed = packing.pack(params)
        >>> losses = jax.lax.scan(step, (packed, optimizer.init(packed)), jnp.ones((100, 5, 3)))[1]
        >>> float(losses[0]), bool(losses[-1] < 1e-2)
        (9.0, True)
    """
    try:
        import optax
    except ImportError as error:
        needed = "deeppcr.pack needs optax: pip install 'deeppcr[experiments]'."
        raise ImportError(needed) from error
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer is {kind}, expected an optax.GradientTransformation.")
    inner, passed = optax.with_extra_args_support(optimizer), set()

    def check(grads: Packed, params: Packed | None, extra: dict[str, Any]) -> None:
        leaves, treedef = jax.tree.flatten((grads, params, extra))
        key = (treedef, *(leaf if callable(leaf) else as_aval(leaf, "extra") for leaf in leaves))
        if key not in passed:
            check_packs(inner, grads, params, extra)
            passed.add(key)

    def init(params: Any) -> PackState:
        packing = _trained(params, mask)
        packed = _gather(packing, params, "params")
        with contextlib.suppress(PlainRaises):  # it may need a loss: repeated in update
            check(packed, packed, {})
        return PackState(inner.init(packed), packing)

    def update(updates: Any, state: PackState, params: Any = None, **extra: Any) -> Any:
        if not isinstance(state, PackState):
            kind = type(state).__name__
            raise TypeError(f"state is {kind}, expected what init or update returned.")
        packing, like = state.packing, updates if params is None else params
        grads = _gather(packing, updates, "updates")
        params = None if params is None else _gather(packing, params, "params")
        try:
            check(grads, params, extra)
        except PlainRaises as error:
            raise error.error from None
        moved, inner_state = inner.update(grads, state.inner_state, params, **extra)
        return _scatter(moved, like, updates), PackState(inner_state, packing)

    return optax.GradientTransformationExtraArgs(init, update)


@partial(jax.tree_util.register_dataclass, data_fields=["inner_state"], meta_fields=["packing"])
@dataclasses.dataclass(frozen=True)
class PackState:
    """The optimizer's state, with `Packed` for trees, and the packing of trained parameters."""

    inner_state: Any
    packing: Packing


@jax.tree_util.register_static
class NoUpdate:
    """The update of a random key, to which no number can be added."""

    def __radd__(self, other: Any) -> Any:
        return other


NO_UPDATE = NoUpdate()


def _trained(params: Any, mask: Any) -> Packing:
    """The packing of ``params`` without the leaves that are not trained."""
    is_packed = isinstance(params, Packed)
    if is_packed and mask is not None:
        raise ValueError("mask is given and params is Packed, expected one of them.")
    packing = params.packing if is_packed else Packing.of(params, "params")
    chosen = mask(params) if callable(mask) else True if mask is None else mask
    try:
        tree = packing.treedef.unflatten(packing.names)
        flags = jax.tree.leaves(
            jax.tree.map(lambda m, t: jax.tree.map(lambda _: m, t), chosen, tree)
        )
    except (ValueError, TypeError, KeyError) as error:
        found = jax.tree.structure(chosen)
        raise ValueError(
            f"mask has the structure {found}, expected a prefix of that of the parameters: "
            f"{packing.treedef}."
        ) from error
    for flag in flags:
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"mask has a leaf of type {type(flag).__name__}, expected bool.")
    kept = zip(packing.dtypes, flags, strict=True)
    dtypes = tuple(d if flag and jnp.issubdtype(d, jnp.inexact) else None for d, flag in kept)
    return dataclasses.replace(packing, dtypes=dtypes)


def _gather(packing: Packing, tree: Any, name: str) -> Packed:
    """The trained leaves, as flat arrays."""
    if isinstance(tree, Packed):
        if _trained(tree, None) != packing:
            raise ValueError(f"{name} was packed by another packing than the parameters of init.")
        return Packed(packing, {group: tree.arrays[group] for group in packing.groups})
    return packing.pack(tree, name)


def _scatter(moved: Packed, params: Any, grads: Any) -> Any:
    """Updates in the structure of ``params``, with zero for leaves that are not trained."""
    if isinstance(params, Packed):
        return Packed(
            params.packing, {g: moved.arrays.get(g, _nought(a)) for g, a in params.arrays.items()}
        )
    packing = moved.packing
    of = [packing.treedef.flatten_up_to(tree) for tree in (moved.unpack(), params, grads)]
    return packing.treedef.unflatten(
        [
            u if d is not None else None if g is None else _nought(p)
            for d, u, p, g in zip(packing.dtypes, *of, strict=True)
        ]
    )


def _nought(param: Any) -> Any:
    """The update that does not change a bit of ``param``: ``p + (-0.0)`` is ``p``."""
    dtype: Any = getattr(param, "dtype", None)
    if dtype == jax.dtypes.float0:
        return param
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return NO_UPDATE
    zeros = jnp.zeros_like(param)
    return -zeros if jnp.issubdtype(dtype, jnp.inexact) else zeros
