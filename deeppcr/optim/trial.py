"""The trial of an optimizer on small random leaves, plain and packed.

Hundreds of leaves compile slowly, so equal equations run as one on stacked operands.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Var, jaxprs_in_params

from deeppcr.optim.packing import Packed, as_aval
from deeppcr.rewrites.cut_first import evaluate
from depth.jaxprs import Program, bind, called, is_literal, needed, without_constants
from depth.primitives import primitive

LONGEST = 4  # entries along each axis of a leaf
# Every second leaf is special: multiplied by such a power of its dtype's largest number, or with
# such an entry. So a bound on one leaf is detected, even if training never reaches it.
POWERS = (0.2, 0.7, -0.2, -0.7, -np.inf)
SPECIAL: list[tuple[float, float | None]] = [*((power, None) for power in POWERS)]
SPECIAL += [(0.0, np.inf), (0.0, np.nan)]
NOTHING: tuple[float, float | None] = (0.0, None)
ORDINARY = (0, False, NOTHING)
# Values of the counters in the state, to detect schedules, together with the integers in the
# program and their neighbours. The first trial does not set them.
COUNTS = {30, 100, 1000, 10_000, 1_000_000}
COUNTED = 16
NO_MESH = jax.sharding.AbstractMesh((), ())
# Programs that run for milliseconds are compiled as fast as possible. Names of options change from
# one jaxlib to the next.
QUICKLY: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_llvm_disable_expensive_passes": True,
}


class CannotPack(ValueError):
    """An optimizer that treats leaves separately."""

    def __init__(self, what: str, found: str) -> None:
        super().__init__(
            "optimizer cannot be packed: it treats leaves of the parameters separately. Its "
            f"{what}, tried on small random leaves: {found}. Use it without deeppcr.pack: with "
            "stacked layers (deeppcr.stack) its state has few arrays anyway."
        )


class PlainRaises(Exception):
    """The plain optimizer raises ``error`` for the plain tree."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def check_packs(optimizer: Any, grads: Packed, params: Packed | None, extra: Any) -> None:
    """Raise `CannotPack` unless the optimizer updates a small tree like its flat arrays.

    Differences count as rounding if they are no larger than those caused by a change of all
    arguments by a few units of rounding. The trial is independent of the current mesh and trace.

    Raises:
        PlainRaises: the plain optimizer raises an error.
    """
    mesh = jax.sharding.get_abstract_mesh()
    with (
        jax.sharding.use_abstract_mesh(NO_MESH),
        jax.debug_nans(False),
        jax.debug_infs(False),
        np.errstate(all="ignore"),
    ):
        _check_packs(optimizer, grads, params, extra, mesh)


def _check_packs(
    optimizer: Any, grads: Packed, params: Packed | None, extra: Any, mesh: Any
) -> None:
    rng, full = np.random.default_rng(0), grads.packing
    small = tuple(tuple(min(n, LONGEST) for n in shape) for shape in full.shapes)
    packing = dataclasses.replace(full, shapes=small)
    kinds = [x.dtype for x in jax.tree.leaves((grads, params)) if x is not None]
    nudge = 16 * max((float(jnp.finfo(kind).eps) for kind in kinds), default=0.0)
    treedef: Any
    values, treedef = jax.tree.flatten(extra)
    avals = [None if callable(x) else as_aval(x, "extra") for x in values]
    arrays = [x if x is None else _fill(x, rng.uniform(size=x.shape)) for x in avals]
    pairs: dict[Any, Pair] = {}
    stand_ins: dict[int, Any] = {}  # numbers for values traced outside, such as a learning rate

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
        if key not in pairs:
            pairs[key] = Pair(what, function, sides[1], stand_ins, mesh)
        plain, packed = pairs[key].run(*sides)
        if not _same(plain, packed):
            near, _ = pairs[key].run(jax.tree.map(nudged, sides[0]), sides[1])
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

    def counts(ordinary: bool) -> Iterator[int | None]:
        yield from [None] * (COUNTED if ordinary else 2)
        if ordinary:
            yield from sorted(COUNTS.union(*(pair.integers for pair in pairs.values())))

    trials = [ORDINARY, *itertools.product((1, 0), (False, True), SPECIAL)]
    for parity, of_grads, special in trials:
        drawn = draw(params, parity, *(NOTHING if of_grads else special))
        states = run("init", optimizer.init, [(drawn,)] * 2)
        for count in counts(special == NOTHING):
            g, given = draw(grads, parity, *(special if of_grads else NOTHING)), params and drawn
            sides = [(g, _set_counters(state, count), given, arrays) for state in states]
            states = [state for _, state in run("update", update, sides)]


class Pair:
    """A function on trees and on flat arrays, compiled as one program for ``args``."""

    def __init__(
        self, what: str, function: Any, args: Any, stand_ins: dict[int, Any], mesh: Any
    ) -> None:
        trees = _map_packed(_small_tree, args)
        try:
            tree, part = _traced(function, trees, mesh)
        except (TypeError, ValueError) as error:
            raise PlainRaises(error) from error
        try:
            flat, like = _traced(function, args, mesh)
        except Exception as error:
            found = f"raises {type(error).__name__} ({error}) for flat arrays"
            raise CannotPack(what, found) from error
        packed, plain = Program.of(flat), _inlined(Program.of(tree))
        given = jax.tree.unflatten(jax.tree.structure(trees), plain.invars)
        results = jax.tree.unflatten(jax.tree.structure(part), plain.outvars)
        self.like, self.integers = like, _integers(packed)
        try:
            _map_packed(partial(_check_alike, what), like, results)
        except (ValueError, TypeError, KeyError) as error:
            raise CannotPack(what, f"returns another structure for flat arrays: {error}") from error

        def constants(closed: Any) -> list[Any]:
            found = list(getattr(closed, "consts", ()))
            for i, x in enumerate(found):
                if isinstance(x, jax.core.Tracer):
                    number = 1 / (2 + len(stand_ins))
                    found[i] = stand_ins.setdefault(id(x), _fill(x, number))
            return found

        def on_flat(args: Any) -> Any:
            values = [*constants(flat), *jax.tree.leaves(args)]
            known = zip([*packed.constvars, *packed.invars], values, strict=True)
            leaves = evaluate(packed, dict(known), packed.outvars, _unvaried)
            return jax.tree.unflatten(jax.tree.structure(like), leaves)

        def on_tree(stacks: Any) -> Any:
            rows = Rows()
            for variable, x in zip(plain.constvars, constants(tree), strict=True):
                rows.put([variable], x, False)
            _map_packed(rows.put_stacks, args, given, stacks)
            rows.evaluate(plain)
            return _map_packed(rows.take_stacks, like, results)

        both = jax.jit(lambda stacks, packed: (on_tree(stacks), on_flat(packed)))
        self.both = both.lower(_map_packed(_stacks, args), args).compile(_quickly())

    def run(self, plain: Any, packed: Any) -> Any:
        """The results for the tree, given and packed by numpy, and for flat arrays."""
        stacks, packed = self.both(_map_packed(_stacks, plain), packed)
        return _map_packed(_joined, self.like, stacks), packed


@functools.cache
def _quickly() -> dict[str, Any]:
    """The options of `QUICKLY` that this compiler knows."""
    nothing, known = jax.jit(lambda: ()).lower(), {}
    for name, value in QUICKLY.items() if jax.default_backend() == "cpu" else ():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            nothing.compile({name: value})
            known[name] = value
    return known


class Rows:
    """The values of the variables of a program: arrays, or rows of stacked arrays."""

    def __init__(self) -> None:
        self.rows: dict[Any, tuple[Any, int | None]] = {}

    def put(self, variables: Sequence[Any], x: Any, stacked: bool) -> None:
        """Set each variable to its row of ``x``, or to ``x``."""
        self.rows |= {v: (x, i if stacked else None) for i, v in enumerate(variables)}

    def one(self, variable: Any) -> Any:
        """The value of a variable or literal."""
        if is_literal(variable):
            return jnp.asarray(variable.val, variable.aval.dtype)
        x, row = self.rows[variable]
        return x if row is None else lax.index_in_dim(x, row, keepdims=False)

    def take(self, variables: Sequence[Any]) -> Any:
        """The values of variables of one shape, stacked."""
        if any(is_literal(v) or self.rows[v][1] is None for v in variables):
            return jnp.stack([self.one(v) for v in variables])
        pieces = []
        for _, run in itertools.groupby(
            map(self.rows.__getitem__, variables), key=lambda p: id(p[0])
        ):
            (x, *_), rows = zip(*run, strict=True)
            end = rows[0] + len(rows)
            consecutive = rows == tuple(range(rows[0], end))
            pieces.append(lax.slice_in_dim(x, rows[0], end) if consecutive else x[np.array(rows)])
        return jnp.concatenate(pieces)

    def put_stacks(self, packed: Any, tree: Any, stacks: Any) -> None:
        """Set the variables in ``tree``, or the one that it is."""
        if not _is_packed(packed):
            return self.put([tree], stacks, False)
        variables = packed.packing.treedef.flatten_up_to(tree)
        for (_, leaves, _), x in zip(packed.packing.alike, stacks, strict=True):
            self.put([variables[i] for i in leaves], x, True)
        return None

    def take_stacks(self, like: Any, tree: Any) -> Any:
        """The values of the variables in ``tree``."""
        if not _is_packed(like):
            return self.one(tree)
        variables = like.packing.treedef.flatten_up_to(tree)
        return [self.take([variables[i] for i in leaves]) for _, leaves, _ in like.packing.alike]

    def evaluate(self, program: Program) -> None:
        """Run the program; equal equations at one depth run as one, on stacked operands."""
        depth: dict[Any, int] = {}
        batches: dict[Any, list[Any]] = {}
        for equation in needed(program, self.rows, program.outvars):
            level = 1 + max(
                (depth.get(v, 0) for v in equation.invars if not is_literal(v)), default=0
            )
            depth |= dict.fromkeys(equation.outvars, level)
            batches.setdefault((level, _kind(equation)), []).append(equation)
        for _, equations in sorted(batches.items(), key=lambda item: item[0][0]):
            first, columns = equations[0], list(zip(*(e.invars for e in equations), strict=True))
            shared = [is_literal(c[0]) or len(set(c)) == 1 for c in columns]
            x = [
                self.one(c[0]) if s else self.take(c) for c, s in zip(columns, shared, strict=True)
            ]
            if all(shared):
                results = bind(first, x, _unvaried)
            else:
                axes = [None if s else 0 for s in shared]
                results = jax.vmap(lambda *x, first=first: bind(first, x, _unvaried), axes)(*x)
            for i, result in enumerate(results):
                self.put([e.outvars[i] for e in equations], result, not all(shared))


def _traced(function: Any, args: Any, mesh: Any) -> Any:
    """The program and the shapes of its results."""
    # Captured arrays may vary over the axes of a `jax.shard_map`.
    with jax.sharding.use_abstract_mesh(mesh if mesh.manual_axes else NO_MESH):
        return jax.make_jaxpr(function, return_shape=True)(*args)


def _inlined(program: Program) -> Program:
    """The program with the equations of calls in their place, where equal ones can run as one."""
    found: list[Any] = []

    def read(names: dict[Any, Any], atoms: Sequence[Any]) -> list[Any]:
        return [atom if is_literal(atom) else names.get(atom, atom) for atom in atoms]

    def enter(equations: Sequence[Any], names: dict[Any, Any], is_called: bool) -> None:
        for equation in equations:
            operands, inner = read(names, equation.invars), called(equation)
            inlines = primitive(equation).inlines and not getattr(inner, "consts", None)
            if inner is None or not inlines:
                # A program that is called twice has the same variables each time.
                outs = [Var(v.aval) for v in equation.outvars] if is_called else equation.outvars
                names |= dict(zip(equation.outvars, outs, strict=True))
                found.append(equation.replace(invars=operands, outvars=outs))
                continue
            jaxpr = without_constants(inner)
            own = dict(zip(jaxpr.invars, operands, strict=True))
            enter(jaxpr.eqns, own, True)
            names |= dict(zip(equation.outvars, read(own, jaxpr.outvars), strict=True))

    names: dict[Any, Any] = {}
    enter(program.eqns, names, False)
    return program._replace(eqns=found, outvars=read(names, program.outvars))


def _unvaried(equation: Any, operands: list[Any]) -> list[Any] | None:
    """Arrays vary over no axis in the trial."""
    return operands if equation.primitive.name in ("pvary", "pcast") else None


def _kind(equation: Any) -> Any:
    """The key shared by equations that can run as one."""
    kind = (
        equation.primitive,
        tuple(equation.params.items()),
        *((v.aval, is_literal(v) and np.asarray(v.val).tobytes()) for v in equation.invars),
    )
    try:
        hash(kind)
    except TypeError:
        return id(equation)
    return id(equation) if equation.effects or "callback" in equation.primitive.name else kind


def _integers(program: Any) -> set[int]:
    """The integers in a program, and their neighbours."""
    found: set[int] = set()
    for equation in program.eqns:
        for value in [v.val for v in equation.invars if is_literal(v)]:
            if np.size(value) == 1 and abs(value) < 2**31 and value == int(value):
                found |= {int(value) + i for i in (-1, 0, 1)}
        for inner in jaxprs_in_params(equation.params):
            found |= _integers(without_constants(inner))
    return {value for value in found if value >= 0}


def _small_tree(packed: Any) -> Any:
    """The shapes of the optimizer's arguments for the tree."""
    if not _is_packed(packed):
        return packed
    packing = packed.packing
    leaves: list[Any] = [None] * len(packing.shapes)
    for group, indices in packing.groups.items():
        for i in indices:
            leaves[i] = jax.ShapeDtypeStruct(packing.shapes[i], packed.arrays[group].dtype)
    return packing.treedef.unflatten(leaves)


def _stacks(packed: Any) -> Any:
    """The leaves of each dtype and shape, stacked."""
    if not _is_packed(packed):
        return packed
    arrays, shapes = jax.tree.map(np.asarray, packed).arrays, packed.packing.shapes
    return [
        arrays[group][entries].reshape(-1, *shapes[leaves[0]])
        if entries.size
        else np.zeros((len(leaves), *shapes[leaves[0]]), arrays[group].dtype)
        for group, leaves, entries in packed.packing.alike
    ]


def _joined(like: Any, stacks: Any) -> Any:
    """The flat arrays of stacked leaves."""
    if not _is_packed(like):
        return stacks
    arrays = {group: np.empty(x.shape, x.dtype) for group, x in like.arrays.items()}
    for (group, _, entries), x in zip(like.packing.alike, stacks, strict=True):
        arrays[group][entries] = np.asarray(x).reshape(entries.shape)
    return Packed(like.packing, arrays)


def _check_alike(what: str, like: Any, tree: Any) -> None:
    """Raise unless the variables in ``tree`` have the shapes and dtypes of ``like``."""
    whole = _is_packed(like)
    variables = like.packing.treedef.flatten_up_to(tree) if whole else [tree]
    for group, indices in like.packing.groups.items() if whole else [("", [0])]:
        for i in indices:
            name = like.packing.names[i] if whole else "a number in its state"
            shape = like.packing.shapes[i] if whole else like.shape
            found = getattr(variables[i], "aval", None)
            if found is None:
                raise ValueError(f"{name} is {variables[i]}, expected an array.")
            if found.shape != shape:
                raise ValueError(f"{name} has shape {list(found.shape)}, expected {list(shape)}.")
            if found.dtype != (dtype := like.arrays[group].dtype if whole else like.dtype):
                raise CannotPack(what, f"{name} has dtype {found.dtype}, {dtype} for flat arrays")


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


def _same(*results: Any) -> bool:
    """Whether they are equal to the bit."""
    return all(
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(*map(jax.tree.leaves, results), strict=True)
        if not jnp.issubdtype(x.dtype, jax.dtypes.extended)
    )


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
            # Compilers may simplify 0 * nan to 0.
            void = ~np.isfinite(a + b) & ~(np.isfinite(a) & (a != 0)) & ~(np.isfinite(b) & (b != 0))
            wrong = ~(void | (a == b) | (abs(a - b) <= allowed[leaf]))
            if wrong.any():
                where = like.packing.names[leaf[wrong][0]] if group else "a number in its state"
                raise CannotPack(what, f"{where} differs for flat arrays")


def _is_packed(node: Any) -> bool:
    return isinstance(node, Packed)


def _map_packed(function: Any, tree: Any, *rest: Any) -> Any:
    return jax.tree.map(function, tree, *rest, is_leaf=_is_packed)
