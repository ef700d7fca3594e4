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
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from deeppcr.arrays import Leaves, avals_of
from deeppcr.lower.gpu.fused.kernel import FusedScan
from deeppcr.lower.gpu.fused.nvrtc import Launch, alone
from deeppcr.lower.gpu.fused.step import flat
from deeppcr.programs.cut_first import apply
from deeppcr.programs.retrace import in_full_precision, own_rounding
from depth.counts import size
from depth.jaxprs import Program, called, equations

RANGES = (-1, 1), (0, 1)  # of random numbers: of positive ones there are roots and logarithms
NUDGES = 3  # how often what a step reads is moved
TRIAL_UNITS = 16  # in the last place, and as many times what results move by: rounding
INTEGERS_BELOW = 8  # below which integers are
MOST_NUMBERS = 1 << 23  # numbers in a trial, about
PERIOD = 65521  # of random numbers, a prime: no axis repeats them

_FAULTS: dict[Any, str] = {}


def fault(launch: Launch, device: Any, kernel: FusedScan, results: Sequence[Any]) -> str:
    """What is wrong with a kernel on a device; empty if it is right there. Found once a process.

    Args:
        launch: runs it.
        device: on which it runs.
        kernel: the kernel.
        results: their types.
    """
    whole, states = kernel.step.whole, kernel.step.states
    end = len(whole.invars)
    length = min(
        kernel.length, kernel.in_trial, max(2, MOST_NUMBERS // sum(map(size, whole.invars)))
    )
    short = dataclasses.replace(kernel, length=length)
    operands = [
        jax.ShapeDtypeStruct((length, *x.shape) if states <= k < end else x.shape, x.dtype)
        for k, x in enumerate(avals_of(flat(whole).invars))
    ]
    key = launch, device, short.text, *operands
    if key not in _FAULTS:
        results = [
            jax.ShapeDtypeStruct((length, *x.shape[1:]) if k < states else x.shape, x.dtype)
            for k, x in enumerate(results)
        ]
        _FAULTS[key] = _tried(launch, device, short, results, operands)
    return _FAULTS[key]


def _tried(
    launch: Launch, device: Any, kernel: FusedScan, results: Sequence[Any], types: Sequence[Any]
) -> str:
    by_kernel = jax.jit(partial(kernel.run, launch, results))
    by_xla = jax.jit(partial(_by_xla, kernel))

    def compared(seed: int, low: int, high: int) -> tuple[Leaves, Leaves, Leaves]:
        """Where states are wrong, they, and those of XLA."""
        draw = np.random.default_rng(seed)
        operands = jax.device_put([_random(draw, low, high, x) for x in types], device)
        states = by_kernel(operands)[: kernel.step.states]
        signs = draw.choice(np.array([-1, 1], np.float32), (1 + NUDGES, PERIOD))
        signs[0] = 0  # what it reads, as it is
        expected = [by_xla(row, states, operands) for row in jax.device_put([*signs], device)]
        states, expected = jax.device_get((states, expected))
        return _wrong(kernel, states, *expected), states, expected[0]

    def trial() -> str:
        for numbers in RANGES:
            first, *_ = compared(0, *numbers)
            second, *states = compared(1, *numbers)
            wrong = list(map(np.logical_and, first, second))
            if any(map(np.any, wrong)):
                return _in_words(kernel, wrong, *states)
        return ""

    try:
        return alone(device, trial)
    except Exception as error:  # whatever NVRTC, the driver or XLA says
        return f"it does not run ({error})"


def _random(draw: np.random.Generator, low: int, high: int, x: Any) -> Any:
    """Random numbers of a type."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        key = jax.random.key(int(draw.integers(1 << 30)), impl=_generator(x))
        return jax.random.split(key, math.prod(x.shape)).reshape(x.shape)
    numbers: Any = draw.uniform(low, high, PERIOD)
    if x.dtype == bool:
        numbers = draw.uniform(size=PERIOD) < 0.5
    elif jnp.issubdtype(x.dtype, jnp.integer):
        numbers = draw.integers(INTEGERS_BELOW, size=PERIOD)
    return np.resize(numbers.astype(x.dtype), x.shape)


def _generator(keys: Any) -> Any:
    """The name of a generator of random numbers, by the type of its keys."""
    names: list[Any] = []
    jax.eval_shape(lambda keys: names.append(jax.random.key_impl(keys)), keys)
    return names[0]


def _by_xla(kernel: FusedScan, signs: Array, states: Leaves, operands: Leaves) -> Leaves:
    """All states, each from the one before it in ``states``; ``signs``: how what it reads moves."""
    whole = kernel.step.whole
    program, unit = flat(in_full_precision(whole)), _unit(whole)
    before = [
        jnp.concatenate([z[1:], first[None]] if kernel.reverse else [first[None], z[:-1]])
        for z, first in zip(states, operands, strict=False)
    ]
    reads = enumerate([*before, *operands[len(states) :]])
    nudged = [_nudged(jnp.roll(signs, k), unit, x) for k, x in reads]
    axes = [0 if k < len(whole.invars) else None for k in range(len(nudged))]
    return list(jax.vmap(lambda *values: apply(program, values, _on_one_device), axes)(*nudged))


def _on_one_device(equation: Any, operands: list[Any]) -> list[Any] | None:
    """The results of an equation that names axes of `jax.shard_map`, or of a call that may."""
    if equation.primitive.name == "pvary":
        return operands
    inner = called(equation)
    return None if inner is None else apply(inner, operands, _on_one_device)


def _nudged(signs: Array, unit: float, x: Array) -> Array:
    """Numbers that a unit in the last place is added to, or taken from, by ``signs``."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    wide = x.dtype if x.dtype.itemsize > 4 else np.float32
    factor = 1 + unit * jnp.resize(signs, x.shape).astype(wide)
    return (x.astype(wide) * factor).astype(x.dtype)


def _unit(program: Program) -> float:
    """The largest unit in the last place of 1 among the dtypes of a program."""
    atoms = chain.from_iterable((*x.invars, *x.outvars) for x in equations(program))
    dtypes = {x.aval.dtype for x in chain(program.invars, atoms)}
    return max(float(jnp.finfo(x).eps) for x in dtypes if jnp.issubdtype(x, jnp.floating))


def _wrong(
    kernel: FusedScan, states: Leaves, expected: Leaves, *nudged: Leaves
) -> list[np.ndarray]:
    """Where states differ from those of XLA by more than rounding."""
    wrong = []
    program = kernel.step.whole
    units = TRIAL_UNITS * (_unit(program) + own_rounding(program))
    close = units + kernel.step.waits * float(jnp.finfo(np.float32).eps)
    for leaves in zip(states, expected, *nudged, strict=True):
        state, right, *nearby = np.stack(leaves).astype(np.float64)
        with np.errstate(all="ignore"):
            sizes = np.where(np.isfinite(right), np.abs(right), 0)
            moves = np.max(np.abs(np.subtract(nearby, right)), axis=0)
            most = close * (1 + sizes) + TRIAL_UNITS * moves + kernel.residual * sizes.max(0)
            is_finite = np.isfinite(right)
            is_sure = np.all(np.isfinite(nearby) == is_finite, axis=0)
            is_far = is_finite & ~(np.abs(state - right) <= most)
            wrong.append(is_sure & ((np.isfinite(state) != is_finite) | is_far))
    return wrong


def _in_words(kernel: FusedScan, wrong: Leaves, states: Leaves, expected: Leaves) -> str:
    """The first entry that is wrong, in words."""
    leaf = next(k for k, where in enumerate(wrong) if where.any())
    where = wrong[leaf]
    at = tuple(np.argwhere(where)[0].tolist())
    step = kernel.length - at[0] if kernel.reverse else at[0] + 1
    state, right = float(states[leaf][at]), float(expected[leaf][at])
    return (
        f"{where.sum()} of {where.size} entries of state leaf {leaf} differ, such as "
        f"{state:.6g} for {right:.6g} after step {step} of {kernel.length}"
    )
