"""The constants of `depth`'s model of the device, and those of the rule: modelled and measured.

Each is the slope of a time over a size: what one more trip, kernel or byte takes. The model says
what it takes for the same two programs, so both figures are of the same thing.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

import deeppcr
import depth
from deeppcr.choose import accelerators
from deeppcr.choose.rule import UNROLL
from deeppcr.lower import CannotFuse
from deeppcr.planning.candidates import instance_of
from depth.cost import call_seconds
from experiments.bench.costs import analyze
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import Effort, build, interleave

WITHOUT_GRAPHS: Mapping[str, Any] = {"xla_gpu_enable_command_buffer": ""}
WIDTH = 256  # of small products that are kernels of their own
SIDE = 1024  # of the matrices of a product that takes the device's time, not a launch's
UNITS = 4  # of the GRU whose times the rule is compared with
Seconds = Callable[[int], float]
Made = tuple[Callable[..., Any], tuple[Any, ...]]  # a program and its arguments
_zeros, _ones = partial(jnp.zeros, dtype=jnp.float32), partial(jnp.ones, dtype=jnp.float32)


@dataclass(frozen=True)
class Probe:
    """A program over a size, and what a model says that it takes.

    Attributes:
        constant: what is measured, and what of the model it checks.
        make: the program and its arguments for a size.
        sizes: two of them; one of 0 is the time at the other, without a difference.
        modelled: seconds for a size; None for those of `depth`.
        options: of XLA, on a GPU.
    """

    constant: str
    make: Callable[[int], Made]
    sizes: tuple[int, int]
    modelled: Seconds | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def probes(platform: str, quick: bool) -> list[Probe]:
    """Those of a platform, the most important first; the sizes of kernels differ between them."""
    long = 512 if quick else 4096
    found = [
        Probe("a call: call_latency", lambda _: (lambda x: x + 1, (_zeros(8),)), (0, 1)),
        Probe("a trip of a counted loop: loop_latency", _counted, (long // 4, long)),
        Probe("a trip of a while loop: trip_latency", _open, (long // 4, long)),
    ]
    if platform == "cuda":
        found += [
            Probe("a kernel of a CUDA graph: node_latency", _kernels, (16, 64)),
            Probe("a kernel: kernel_latency", _kernels, (16, 64), options=WITHOUT_GRAPHS),
            Probe("a step of a fused loop: operation_latency", _loop(fused=True), (long, 4 * long)),
        ]
    few, many = (1 << 18, 1 << 20) if quick else (1 << 25, 1 << 27)
    found += [
        Probe("a float32, read and written: bandwidth", _copy, (few, many)),
        Probe(f"a product, {SIDE}^3, float32: rates", _product, (1, 2) if quick else (8, 32)),
    ]
    if platform == "cuda":
        rule: dict[str, Seconds] = {
            "CALL": lambda _: accelerators.CALL,
            "LAUNCH": lambda length: accelerators.loop_seconds(_chain(length)),
            "STEP, INSTRUCTION": lambda length: (
                accelerators.kernel_seconds(_chain(length), "cuda") or 0.0
            ),
            "ROUND": lambda length: accelerators.CALL + accelerators.solve_seconds(_chain(length)),
        }
        unrolled, kernel = _gru(unroll=UNROLL), _gru(fused=True)
        found += [
            Probe("rule: a call, CALL", found[0].make, (0, 1), rule["CALL"]),
            Probe("rule: a step of a loop, LAUNCH", unrolled, (long, 4 * long), rule["LAUNCH"]),
            Probe(
                "rule: a step of a kernel, STEP, INSTRUCTION",
                kernel,
                (long, 4 * long),
                rule["STEP, INSTRUCTION"],
            ),
            Probe("rule: a linear solve, ROUND", _solve, (0, 4 * long), rule["ROUND"]),
        ]
    return found


def rows(
    device: depth.Device, platform: str, quick: bool, seconds: float, effort: Effort
) -> Iterator[Row]:
    """A row for each probe that ``seconds`` suffice for."""
    end = time.monotonic() + seconds
    for probe in probes(platform, quick):
        if time.monotonic() > end:
            return
        PROGRESS.say(f"measuring {probe.constant.partition(':')[0]}")
        try:
            yield row(probe, device, measured(probe, platform, effort))
        except (jax.errors.JaxRuntimeError, CannotFuse) as error:
            yield {"constant": probe.constant, "note": f"failed: {str(error).splitlines()[0]}"}


def row(probe: Probe, device: depth.Device, seconds: float) -> Row:
    """Modelled and measured nanoseconds of a probe, and their ratio."""
    if probe.options:
        device = device.replace(node_latency=None)  # without graphs
    model = slope(probe, probe.modelled or partial(predicted, probe, device))
    cells: Row = {"constant": probe.constant, "modelled ns": 1e9 * model}
    cells |= {"measured ns": 1e9 * seconds}
    return cells | ({"measured / modelled": seconds / model} if model > 0 else {})


def measured(probe: Probe, platform: str, effort: Effort) -> float:
    """Seconds that one more of the size takes."""
    calls: dict[str, Callable[[], Any]] = {}
    options = probe.options if platform == "cuda" else {}
    for size in filter(None, probe.sizes):
        program, arguments = probe.make(size)
        calls[str(size)] = partial(build(program, *arguments, options=options).call, *arguments)
        jax.block_until_ready(calls[str(size)]())
    times = interleave(calls, effort)
    return slope(probe, lambda size: min(times[str(size)].seconds))


def slope(probe: Probe, seconds: Seconds) -> float:
    """The difference for one more of the size; the whole time if one of the sizes is 0."""
    few, many = probe.sizes
    return (seconds(many) - seconds(few)) / (many - few) if few else seconds(many)


def predicted(probe: Probe, device: depth.Device, size: int) -> float:
    """Seconds of a program by `depth`; a while loop makes as many trips as the size says."""
    program, arguments = probe.make(size)
    return call_seconds(analyze(program, *arguments, trips=size), device)


# -- programs


def _counted(trips: int) -> Made:
    return lambda x: lax.fori_loop(0, trips, lambda _, x: jnp.sin(x), x), (_ones(64),)


def _open(trips: int) -> Made:
    """Its end depends on a value that is known when it runs."""

    def count(end: Array) -> Array:
        return lax.while_loop(lambda x: x < end, lambda x: x + 1, _zeros(()))

    return count, (jnp.float32(trips),)


def _kernels(count: int) -> Made:
    """Products, of which none is fused with the one before it: each reads all of that."""

    def run(x: Array, w: Array) -> Array:
        for _ in range(count):
            x = x @ w
        return x

    return run, (_ones(WIDTH), _ones((WIDTH, WIDTH)) / WIDTH)


def _copy(entries: int) -> Made:
    return lambda x: x + 1, (jnp.zeros(entries, jnp.float32),)


def _product(count: int) -> Made:
    return jnp.matmul, (_ones((count * SIDE, SIDE)), _ones((SIDE, SIDE)))


def _loop(**options: Any) -> Callable[[int], Made]:
    """A chain of additions and multiplications of one number."""

    def step(z: Array, x: Array) -> tuple[Array, Array]:
        for _ in range(8):
            z = 0.5 * z * z - x
        return z, z

    def make(length: int) -> Made:
        method = deeppcr.Sequential(**options)
        return partial(deeppcr.scan, step, method=method), (
            _zeros(1),
            _ones((length, 1)),
        )

    return make


def _gru(**options: Any) -> Callable[[int], Made]:
    def make(length: int) -> Made:
        run = partial(deeppcr.scan, _cell(), method=deeppcr.Sequential(**options))
        return run, (_zeros(UNITS), _ones((length, UNITS)))

    return make


def _cell() -> Callable[[Array, Array], tuple[Array, Array]]:
    """A GRU with fixed weights."""
    drawn = np.random.default_rng(0).uniform(-0.5, 0.5, (3, UNITS, UNITS)).astype(np.float32)
    to_z, to_r, to_n = map(jnp.asarray, drawn)

    def step(h: Array, x: Array) -> tuple[Array, Array]:
        z, r = jax.nn.sigmoid(x + h @ to_z), jax.nn.sigmoid(x + h @ to_r)
        h = (1 - z) * h + z * jnp.tanh(x + r * (h @ to_n))
        return h, h

    return step


def _chain(length: int) -> Any:
    """The chain of `_gru`, traced."""
    xs = jax.ShapeDtypeStruct((length, UNITS), np.float32)
    return instance_of(_cell(), _zeros(UNITS), xs, None, False, 0).traced


def _solve(length: int) -> Made:
    """A linear recurrence with blocks as those of the GRU."""
    blocks = _ones((length, UNITS, UNITS)) / 10
    return deeppcr.solve_bidiagonal, (blocks, _ones((length, UNITS)))
