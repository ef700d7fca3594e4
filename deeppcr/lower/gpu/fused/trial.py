"""Each kernel is tried on the GPU once, before it is used: random numbers, beside XLA's results.

A trial is of some steps, whose numbers have the shapes and dtypes of the program. XLA computes each
step from the kernel's own state before it, since a chain may amplify rounding. What a step itself
amplifies is known from XLA, too: by how much its results move if what it reads does, by a unit in
the last place. An entry is wrong if it is for two draws of numbers: a step that jumps may once take
the other side.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.arrays.state import Leaves
from deeppcr.lower.gpu.fused.nvrtc import alone
from deeppcr.lower.gpu.fused.recurring import Launch, Recurring
from deeppcr.lower.gpu.fused.step import flat
from deeppcr.programs.cut_first import apply
from deeppcr.programs.precision import in_full_precision, own_rounding
from depth.jaxprs import Program, called, equations

RANGES = (-1, 1), (0, 1)  # of random numbers: of positive ones there are roots and logarithms
DRAWS = 2  # of each range
MOVED = 3  # how often what a step reads is moved
UNITS = 16  # in the last place, and as many times what results move by: rounding
INTEGERS = 8  # below which integers are
MOST = 1 << 23  # numbers in a trial, about
PERIOD = 65521  # of random numbers, a prime: no axis repeats them

_FOUND: dict[Any, str] = {}


def fault(
    launch: Launch,
    device: Any,
    kernel: Recurring,
    results: Sequence[Any],
    operands: Sequence[Any],
) -> str:
    """What is wrong with a kernel on a device; empty if it is right there. Found once a process.

    Args:
        launch: runs it.
        device: on which it runs.
        kernel: the kernel.
        results: their types.
        operands: states, inputs of all steps and captured arrays, or their types.
    """
    states, inputs = kernel.step.states, len(kernel.step.whole.invars)
    has_steps = [states <= k < inputs for k in range(len(operands))]
    sizes = [math.prod(x.shape[has:]) for x, has in zip(operands[:inputs], has_steps, strict=False)]
    length = min(kernel.length, kernel.in_trial, max(2, MOST // sum(sizes)))
    short = dataclasses.replace(kernel, length=length)
    operands = _shortened(operands, has_steps, length)
    results = _shortened(results, kernel.have_steps(len(results)), length)
    kinds = (*((x.shape, str(x.dtype)) for x in operands),)
    key = launch, device, short.text, kinds
    if key not in _FOUND:
        _FOUND[key] = _tried(launch, device, short, results, operands)
    return _FOUND[key]


def _shortened(arrays: Sequence[Any], have_steps: Sequence[bool], length: int) -> list[Any]:
    """The types of arrays with so many steps."""
    return [
        jax.ShapeDtypeStruct((length, *x.shape[1:]) if has_steps else x.shape, x.dtype)
        for x, has_steps in zip(arrays, have_steps, strict=True)
    ]


def _tried(
    launch: Launch, device: Any, kernel: Recurring, results: Sequence[Any], types: Sequence[Any]
) -> str:
    of_steps = kernel.have_steps(len(results))
    by_xla = jax.jit(partial(_by_xla, kernel))

    @jax.jit
    def by_kernel(given: Leaves) -> Leaves:
        found = compress(kernel.run(launch, results, given), of_steps)
        return list(found)[: kernel.step.states]

    def compared(draw: np.random.Generator, low: int, high: int) -> tuple[Leaves, Leaves, Leaves]:
        """Where states are wrong, they, and those of XLA."""
        given = jax.device_put([_random(draw, low, high, x) for x in types], device)
        found = by_kernel(given)
        signs = draw.choice(np.array([-1, 1], np.float32), (1 + MOVED, PERIOD))
        signs[0] = 0  # what it reads, as it is
        moved = [by_xla(each, found, given) for each in jax.device_put([*signs], device)]
        own, others = jax.device_get(found), jax.device_get(moved)
        return _wrong(kernel, own, *others), own, others[0]

    def trial() -> str:
        for numbers in RANGES:
            wrong: Leaves = []
            for seed in range(DRAWS):
                own, *states = compared(np.random.default_rng(seed), *numbers)
                wrong = [a & b for a, b in zip(wrong or own, own, strict=True)]
                if not any(each.any() for each in wrong):
                    break
            else:
                return _said(kernel, wrong, *states)
        return ""

    try:
        return alone(device, trial)
    except Exception as error:  # whatever NVRTC, the driver or XLA says
        return f"it does not run ({error})"


def _random(draw: np.random.Generator, low: int, high: int, x: Any) -> Any:
    """Random numbers of a type."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        seed, count = int(draw.integers(1 << 30)), math.prod(x.shape)
        return jax.random.split(jax.random.key(seed, impl=_generator(x)), count).reshape(x.shape)
    numbers: Any = draw.uniform(low, high, PERIOD)
    if x.dtype == bool:
        numbers = draw.uniform(size=PERIOD) < 0.5
    elif jnp.issubdtype(x.dtype, jnp.integer):
        numbers = draw.integers(INTEGERS, size=PERIOD)
    return np.resize(numbers.astype(x.dtype), x.shape)


def _generator(keys: Any) -> Any:
    """The name of a generator of random numbers, by the type of its keys."""
    found: list[Any] = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), keys)
    return found[0]


def _by_xla(kernel: Recurring, signs: Array, found: Leaves, operands: Leaves) -> Leaves:
    """All states, each from the one before it in ``found``; ``signs``: how what it reads moves."""
    step, states = kernel.step, kernel.step.states
    program = flat(in_full_precision(step.whole))
    program = program._replace(outvars=program.outvars[:states])
    unit = _unit(step.whole)
    moved = [_moved(jnp.roll(signs, k), unit, x) for k, x in enumerate([*found, *operands])]
    found, given = moved[:states], moved[states:]
    before = [
        jnp.concatenate([z[1:], first[None]] if kernel.reverse else [first[None], z[:-1]])
        for z, first in zip(found, given, strict=False)
    ]
    count = len(step.whole.invars)
    axes = [0 if k < count else None for k in range(len(given))]
    after = jax.vmap(lambda *read: apply(program, read, _alone), axes)
    found = after(*before, *given[states:])
    return found


def _alone(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The results of an equation that names axes of `jax.shard_map`, or of a call that may."""
    if equation.primitive.name == "pvary":
        return operands
    inner = called(equation)
    return None if inner is None else apply(inner, operands, _alone)


def _moved(signs: Array, unit: float, x: Array) -> Array:
    """Numbers that a unit in the last place is added to, or taken from, by ``signs``."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    wide = x.dtype if x.dtype.itemsize > 4 else np.float32
    factor = 1 + unit * jnp.resize(signs, x.shape).astype(wide)
    return (x.astype(wide) * factor).astype(x.dtype)


def _unit(program: Program) -> float:
    """The largest unit in the last place of 1 among the dtypes of a program."""
    atoms = (x for each in equations(program) for x in (*each.invars, *each.outvars))
    dtypes = {x.aval.dtype for x in (*program.invars, *atoms)}
    return max(float(jnp.finfo(x).eps) for x in dtypes if jnp.issubdtype(x, jnp.floating))


def _wrong(kernel: Recurring, found: Leaves, expected: Leaves, *moved: Leaves) -> list[np.ndarray]:
    """Where states differ from those of XLA by more than rounding."""
    step = kernel.step
    wrong = []
    program = step.whole
    units = UNITS * (_unit(program) + own_rounding(program))
    close = units + step.waits * float(jnp.finfo(np.float32).eps)
    for leaves in zip(found, expected, *moved, strict=True):
        own, right, *others = (np.asarray(x, np.float64) for x in leaves)
        with np.errstate(all="ignore"):
            sizes = np.where(np.isfinite(right), np.abs(right), 0)
            moves = np.max([np.abs(x - right) for x in others], axis=0)
            most = close * (1 + sizes) + UNITS * moves + kernel.residual * sizes.max(0)
            is_finite = np.isfinite(right)
            is_sure = np.all([np.isfinite(x) == is_finite for x in others], axis=0)
            is_far = is_finite & ~(np.abs(own - right) <= most)
            wrong.append(is_sure & ((np.isfinite(own) != is_finite) | is_far))
    return wrong


def _said(kernel: Recurring, wrong: Leaves, found: Leaves, expected: Leaves) -> str:
    """The first entry that is wrong, in words."""
    leaf = next(k for k, where in enumerate(wrong) if where.any())
    where = wrong[leaf]
    at = tuple(np.argwhere(where)[0].tolist())
    step = kernel.length - at[0] if kernel.reverse else at[0] + 1
    own, right = (np.asarray(x[leaf][at], np.float64) for x in (found, expected))
    return (
        f"{where.sum()} of {where.size} entries of state leaf {leaf} differ, such as "
        f"{own:.6g} for {right:.6g} after step {step} of {kernel.length}"
    )
