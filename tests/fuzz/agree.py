"""Whether two results are the same but for rounding.

Every entry is compared on the scale of its own size along the chain so far, not of the array's. How
far rounding moves an entry is measured: the sequential program runs again in float64, and with
random rounding errors in every state. What amplifies differences moves by more, and so may differ
by more.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SAMPLES = 4
FACTOR = {"bfloat16": 4.0, "float16": 4.0, "float32": 64.0, "float64": 64.0}
AT_ONCE = 8  # units in the last place that need no measurement


def differences(
    program: Any, expected: Any, found: Any, disturbed: Callable[[], list[Any]]
) -> list[str]:
    """Where ``found`` is not ``expected``, in words; ``disturbed`` runs it with rounding errors."""
    if jax.tree.structure(expected) != jax.tree.structure(found):
        return [
            f"structure: expected {jax.tree.structure(expected)}, found {jax.tree.structure(found)}"
        ]
    paths = jax.tree_util.tree_leaves_with_path(expected)
    pairs = [(path, e, f) for (path, e), f in zip(paths, jax.tree.leaves(found), strict=True)]
    samples: list[list[Any]] = []
    problems = []
    for index, (path, e, f) in enumerate(pairs):
        name = jax.tree_util.keystr(path)
        if e.dtype != f.dtype or e.shape != f.shape:
            problems.append(
                f"{name}: expected {e.dtype}{list(e.shape)}, found {f.dtype}{list(f.shape)}"
            )
            continue
        if not jnp.issubdtype(e.dtype, jnp.floating):
            if not np.array_equal(e, f):
                problems.append(f"{name}: expected {e}, found {f}")
            continue
        eps = float(jnp.finfo(e.dtype).eps)
        tiny = float(jnp.finfo(e.dtype).tiny)
        e, f = np.asarray(e, np.float64), np.asarray(f, np.float64)
        size = along(program, path, np.where(np.isfinite(e), np.abs(e), 0))
        with np.errstate(invalid="ignore"):
            if np.all(
                (np.abs(e - f) <= AT_ONCE * eps * size + tiny)
                | (e == f)
                | (np.isnan(e) & np.isnan(f))
            ):
                continue
        if not samples:
            samples = [jax.tree.leaves(sample) for sample in disturbed()]
        runs = np.stack([np.asarray(sample[index], np.float64) for sample in samples])
        finite = np.isfinite(runs).all(0) & np.isfinite(e)
        same_end = np.isfinite(runs).any(0) | np.isfinite(
            e
        )  # what overflows in some runs only may overflow
        with np.errstate(invalid="ignore"):
            moved = along(program, path, np.where(finite, np.abs(runs - e), 0).max(0))
            allowed = FACTOR[program.dtype] * (moved + eps * size) + FACTOR[program.dtype] * tiny
            wrong = np.where(finite, ~(np.abs(e - f) <= allowed), ~same_end & np.isfinite(f))
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            problems.append(
                f"{name}{list(where)}: expected {float(e[where])!r}, "
                f"found {float(f[where])!r}, rounding {allowed[where]:.1e}"
                f" ({int(wrong.sum())} of {wrong.size} entries)"
            )
    return problems


def along(program: Any, path: Any, values: np.ndarray) -> np.ndarray:
    """The largest so far along the steps; derivatives to the inputs come backwards."""
    name = path[0].key
    if name not in ("ys", "by_u") or not values.ndim:
        return values
    backward = program.reverse != (name == "by_u")
    return np.maximum.accumulate(values[::-1])[::-1] if backward else np.maximum.accumulate(values)


def signs(seed: int, shape: tuple[int, ...]) -> Any:
    """Ones and minus ones, for each sample."""
    draw = np.random.default_rng([seed, *shape])
    return jnp.asarray(draw.choice([-1.0, 1.0], (SAMPLES, *shape)))


def finite_size(leaf: Any) -> Any:
    """Of each number, 0 if it is not finite."""
    leaf = lax.stop_gradient(leaf)
    return jnp.where(jnp.isfinite(leaf), jnp.abs(leaf), 0)


def noisy(sample: Any, eps: float) -> Callable[..., Any]:
    """`jax.lax.scan` with the rounding errors of ``sample``, which may be traced."""
    numbers = itertools.count()

    def errors(*shape: int) -> Any:
        return signs(next(numbers), shape)[sample] * eps

    def scan(
        step: Any, init: Any, xs: Any = None, length: Any = None, reverse: bool = False
    ) -> Any:
        count = length if length is not None else len(jax.tree.leaves(xs)[0])
        leaves, tree = jax.tree.flatten(init)
        by_step = [(errors(count, *leaf.shape), errors(count, *leaf.shape)) for leaf in leaves]

        def body(carry: Any, x: Any) -> Any:
            (z, sizes), (x, off) = carry, x
            z, y = step(z, x)
            leaves = jax.tree.leaves(z)
            sizes = [
                jnp.maximum(size, finite_size(leaf))
                for size, leaf in zip(sizes, leaves, strict=True)
            ]
            moved = [
                leaf * (1 + p.astype(leaf.dtype)) + size * q.astype(leaf.dtype)
                for leaf, size, (p, q) in zip(leaves, sizes, off, strict=True)
            ]
            return (jax.tree.unflatten(tree, moved), sizes), y

        sizes = [finite_size(leaf) for leaf in leaves]
        (last, _), ys = lax.scan(body, (init, sizes), (xs, by_step), length, reverse)
        return last, ys

    return scan


def disturbed_arguments(arguments: Any, sample: Any, eps: float) -> Any:
    """Weights, inputs and initial states with rounding errors."""

    def off(index: int, leaf: Any) -> Any:
        return leaf * (1 + signs(index, leaf.shape)[sample] * eps).astype(leaf.dtype)

    leaves, tree = jax.tree.flatten(arguments)
    return jax.tree.unflatten(tree, [off(index, leaf) for index, leaf in enumerate(leaves)])
