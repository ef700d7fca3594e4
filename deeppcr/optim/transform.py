"""`pack(optimizer)`: an optax optimizer on flat arrays, once a trial shows that it may be packed.

With ``P`` the packing of the trained parameters, what runs is ``P^-1 update(P g, s, P p)``. That is
``update(g, s, p)`` only if the optimizer treats each entry by itself, or all entries together. So
it first updates small random leaves, plain beside packed: see `check_packs`.
"""

import dataclasses
import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from deeppcr.optim.packing import Packed, Packing, as_aval
from deeppcr.rewrites import evaluate
from depth.jaxprs import Program

LONGEST = 4  # entries along each axis of a leaf in the trial
# Every second leaf of the trial is special: multiplied by such a power of its dtype's largest
# number, or with such an entry. So a bound on one leaf shows, even if training never reaches it.
ORDINARY = (0.0, None)
SPECIAL = [(power, None) for power in (0.0, 0.2, 0.7, -0.2, -0.7, -np.inf)]
SPECIAL += [(0.0, np.inf), (0.0, np.nan)]
# What the counters in the state are set to, so that schedules show; first they count by themselves.
COUNTS = [None] * 16 + [30, 100, 1000, 10_000, 1_000_000]


def pack(optimizer: Any, mask: Any = None) -> Any:
    """An optimizer whose state is flat: one array per dtype where ``optimizer`` keeps a tree.

    Args:
        optimizer: an `optax.GradientTransformation` that treats every entry by itself (sgd, adam,
            adamw, lion, schedules, `optax.clip`) or all of them together
            (`optax.clip_by_global_norm`, `optax.apply_if_finite`). One that treats leaves
            separately is refused: lamb, lars, adafactor, muon, `optax.clip_by_block_rms`, noise,
            labels or weight decay by leaf. A trial on small random leaves tells, once per tree.
        mask: the parameters to train: a pytree of bools, a prefix of the parameters' tree, or a
            function of the parameters that returns one. None for all. The others get no state and
            keep their bits. Only floating and complex leaves are trained.

    Returns:
        an `optax.GradientTransformationExtraArgs`. Its updates are the plain optimizer's up to
        rounding; its state holds the optimizer's own as ``state.inner_state``. Parameters and
        gradients may be `Packed`, and so are the updates then.

    Raises:
        ImportError: optax is not installed.
        TypeError: ``optimizer`` is not an optax optimizer; ``mask`` is not of bools; gradients that
            share a flat array differ in dtype.
        ValueError: ``mask`` is not a prefix of the parameters; from ``init`` and ``update``: the
            optimizer treats leaves separately, or the gradients have another structure.

    Packing seldom pays: stacked layers have few arrays as they are. Instead of
    ``optax.adamw(mask=...)``, which decays some leaves only, use
    ``optax.partition({True: pack(decayed), False: pack(plain)}, mask)``.

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
        try:
            check(packed, packed, {})
        except CannotPack:
            raise
        except Exception:  # an update that needs more, a loss say: tried when it is called
            pass
        return PackState(inner.init(packed), packing)

    def update(updates: Any, state: PackState, params: Any = None, **extra: Any) -> Any:
        if not isinstance(state, PackState):
            kind = type(state).__name__
            raise TypeError(f"state is {kind}, expected what init or update returned.")
        packing, like = state.packing, updates if params is None else params
        grads = _gather(packing, updates, "updates")
        params = None if params is None else _gather(packing, params, "params")
        check(grads, params, extra)
        moved, inner_state = inner.update(grads, state.inner_state, params, **extra)
        return _scatter(moved, like, updates), PackState(inner_state, packing)

    return optax.GradientTransformationExtraArgs(init, update)


@partial(jax.tree_util.register_dataclass, data_fields=["inner_state"], meta_fields=["packing"])
@dataclasses.dataclass(frozen=True)
class PackState:
    """The optimizer's own state, with `Packed` for trees, and the packing of what is trained."""

    inner_state: Any
    packing: Packing


class CannotPack(ValueError):
    """An optimizer that treats leaves separately."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(
            "optimizer cannot be packed: it treats leaves of the parameters separately. Its "
            f"{what}, tried on small random leaves: {found}. Use it without deeppcr.pack: with "
            "stacked layers (deeppcr.stack) its state has few arrays as it is."
        )


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
    """What is trained, as flat arrays."""
    if isinstance(tree, Packed):
        if _trained(tree, None) != packing:
            raise ValueError(f"{name} was packed by another packing than the parameters of init.")
        return Packed(packing, {group: tree.arrays[group] for group in packing.groups})
    return packing.pack(tree, name)


def _scatter(moved: Packed, params: Any, grads: Any) -> Any:
    """Updates in the structure of ``params``, with nought for what is not trained."""
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
    """The update that leaves ``param`` as it is, to the bit: ``p + (-0.0)`` is ``p``."""
    dtype = getattr(param, "dtype", None)
    if dtype == jax.dtypes.float0:
        return param
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return NO_UPDATE
    zeros = jnp.zeros_like(param)
    return -zeros if jnp.issubdtype(dtype, jnp.inexact) else zeros


def check_packs(optimizer: Any, grads: Packed, params: Packed | None, extra: Any) -> None:
    """Raise `CannotPack` unless the optimizer updates a small tree as it updates its flat arrays.

    The leaves are random, in the parameters' structure and dtypes. Differences are rounding if they
    are no larger than those that a change of all arguments by a few units of rounding makes.
    """
    rng, full, stand_ins = np.random.default_rng(0), grads.packing, {}
    small = [tuple(min(n, LONGEST) for n in shape) for shape in full.shapes]
    packing = dataclasses.replace(full, shapes=tuple(small))
    kinds = [x.dtype for x in jax.tree.leaves((grads, params)) if x is not None]
    nudge = 16 * max((float(jnp.finfo(kind).eps) for kind in kinds), default=0.0)
    values, treedef = jax.tree.flatten(extra)
    avals = [None if callable(x) else as_aval(x, "extra") for x in values]
    arrays = [x if x is None else _fill(x, rng.uniform(size=x.shape)) for x in avals]
    programs: dict[Any, Any] = {}

    def update(grads: Any, state: Any, params: Any, arrays: list[Any]) -> Any:
        named = [x if array is None else array for x, array in zip(values, arrays, strict=True)]
        return optimizer.update(grads, state, params, **treedef.unflatten(named))

    def nudged(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return x
        return (np.asarray(x) * (1 + nudge * rng.choice([-1, 1], x.shape))).astype(x.dtype)

    def run(what: str, function: Any, sides: list[Any]) -> list[Any]:
        """The results for the tree and for flat arrays."""
        key = (what, *((x.shape, x.dtype) for x in jax.tree.leaves(sides)))
        if key not in programs:
            programs[key] = _side_by_side(what, function, sides[1], stand_ins)
        plain, packed = programs[key](*sides)
        with np.errstate(all="ignore"):
            near, _ = programs[key](jax.tree.map(nudged, sides[0]), sides[1])
            _compare(what, plain, packed, near)
        return [plain, packed]

    def draw(like: Packed | None, parity: int, power: float, entry: float | None) -> Packed:
        """Random leaves, of which every second of a dtype is special."""
        arrays = {}
        for group, indices in packing.groups.items():
            dtype = like.arrays[group].dtype if like else packing.dtypes[indices[0]]
            sizes, which = [packing.sizes[i] for i in indices], np.arange(len(indices))
            x = rng.standard_normal(sum(sizes))
            x *= np.repeat(2.0 ** rng.integers(-3, 4, which.size), sizes)
            special = np.repeat(which % 2 == parity, sizes)
            x[special] *= float(jnp.finfo(dtype).max) ** power
            if entry is not None:
                x[special & np.concatenate([np.arange(size) == 0 for size in sizes])] = entry
            arrays[group] = x.astype(dtype)
        return Packed(packing, arrays)

    for parity, of_grads, special in itertools.product((0, 1), (False, True), SPECIAL):
        drawn = draw(params, parity, *(ORDINARY if of_grads else special))
        states = run("init", optimizer.init, [(drawn,)] * 2)
        for count in COUNTS if special == ORDINARY else (None, None):
            g = draw(grads, parity, *(special if of_grads else ORDINARY))
            given = drawn if params else None
            sides = [(g, _set_counters(state, count), given, arrays) for state in states]
            states = [state for _, state in run("update", update, sides)]


def _fill(like: Any, numbers: Any) -> Any:
    """An array of the shape and dtype of ``like``; for a random key, some key."""
    if jnp.issubdtype(like.dtype, jax.dtypes.extended):
        with jax.ensure_compile_time_eval():
            return jnp.broadcast_to(jax.random.key(0), like.shape)
    return np.broadcast_to(np.asarray(numbers), like.shape).astype(like.dtype)


def _set_counters(state: Any, count: int | None) -> Any:
    """The state with its counters at ``count``: integers outside of trees."""

    def replaced(x: Any) -> Any:
        counts = not _is_packed(x) and not x.ndim and jnp.issubdtype(x.dtype, jnp.integer)
        return np.asarray(count).astype(x.dtype) if counts else x

    return state if count is None else jax.tree.map(replaced, state, is_leaf=_is_packed)


def _side_by_side(what: str, function: Any, args: Any, stand_ins: dict[int, Any]) -> Any:
    """The function on trees and on flat arrays in one program, from and to flat arrays."""

    def on_tree(*args: Any) -> Any:
        return function(
            *jax.tree.map(lambda x: x.unpack() if _is_packed(x) else x, args, is_leaf=_is_packed)
        )

    try:
        flat, like = jax.make_jaxpr(function, return_shape=True)(*args)
    except Exception as error:
        jax.eval_shape(on_tree, *args)  # if that raises, too, it is the user's own error
        raise CannotPack(
            what, f"raises {type(error).__name__} ({error}) for flat arrays"
        ) from error
    tree = jax.make_jaxpr(lambda *args: _packed_like(what, like, on_tree(*args)))(*args)

    def results(closed: Any, args: Any) -> Any:
        """With numbers for what is traced outside, a learning rate say."""
        program, constants = Program.of(closed), list(getattr(closed, "consts", ()))
        for i, x in enumerate(constants):
            if isinstance(x, jax.core.Tracer):
                number = 1 / (2 + len(stand_ins))
                constants[i] = stand_ins.setdefault(id(x), _fill(x, number))
        known = zip(
            [*program.constvars, *program.invars], [*constants, *jax.tree.leaves(args)], strict=True
        )
        return jax.tree.unflatten(
            jax.tree.structure(like), evaluate(program, dict(known), program.outvars)
        )

    run = jax.jit(lambda plain, packed: (results(tree, plain), results(flat, packed)))
    return run.lower(args, args).compile()


def _packed_like(what: str, like: Any, tree: Any) -> Any:
    """What the function returns for a tree, packed where it returns flat arrays for flat arrays."""

    def packed(node: Any, part: Any) -> Any:
        return node.packing.pack(part, "its result") if _is_packed(node) else part

    try:
        found = jax.tree.map(packed, like, tree, is_leaf=_is_packed)
        leaves = zip(jax.tree_util.tree_leaves_with_path(like), jax.tree.leaves(found), strict=True)
    except (ValueError, TypeError, KeyError) as error:
        raise CannotPack(what, f"returns another structure for flat arrays: {error}") from error
    for (path, x), y in leaves:
        if (x.shape, x.dtype) != (jnp.shape(y), jnp.result_type(y)):
            raise CannotPack(
                what,
                f"keeps {x.dtype}{list(x.shape)} at {jax.tree_util.keystr(path)} for flat arrays",
            )
    return found


def _compare(what: str, *results: Any) -> None:
    """Raise unless the first two results differ as little as the first and the third."""
    for nodes in zip(*(jax.tree.leaves(x, is_leaf=_is_packed) for x in results), strict=True):
        like = nodes[0]
        for group, indices in like.packing.groups.items() if _is_packed(like) else [("", [0])]:
            found = [x.arrays[group] if group else x for x in nodes]
            if jnp.issubdtype(found[0].dtype, jax.dtypes.extended):  # a random key
                continue
            kind = found[0].dtype
            eps = float(jnp.finfo(kind).eps) if jnp.issubdtype(kind, jnp.inexact) else 0.0
            a, b, c = (np.asarray(x).astype(complex).ravel() for x in found)
            leaf = np.repeat(
                indices, [like.packing.sizes[i] for i in indices] if group else [a.size]
            )
            slack = abs(c - a) + min(256 * eps, eps**0.5) * abs(a)
            allowed = np.zeros(indices[-1] + 1)  # for each leaf
            np.maximum.at(allowed, leaf, np.where(np.isfinite(slack), slack, 0.0))
            # Compilers make 0 of 0 * nan, or leave it.
            void = ~np.isfinite(a + b) & ~(np.isfinite(a) & (a != 0)) & ~(np.isfinite(b) & (b != 0))
            wrong = ~(void | (a == b) | (abs(a - b) <= allowed[leaf]))
            if wrong.any():
                where = like.packing.names[leaf[wrong][0]] if group else "a number in its state"
                raise CannotPack(what, f"{where} differs for flat arrays")


def _is_packed(node: Any) -> bool:
    return isinstance(node, Packed)
