"""What does a call outside of jax.jit cost: the first, the second, later ones?

Every entry point is called eagerly, as in a notebook, with a function that is defined anew for each
call, beside `jax.lax.scan` or a Python loop; "one step" is `jax.lax.scan` of the same function each
time.
"""

import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import deeppcr
from experiments.bench import command
from experiments.bench.engine import Case
from experiments.bench.programs import SCAN
from experiments.bench.progress import PROGRESS
from experiments.bench.table import Row
from experiments.bench.timing import clock
from experiments.compiling.layers import by_hand

TAKES = "1 min"
WIDTH = 8
LATER, QUICK_LATER = 40, 10  # calls after the second
COLUMNS = {
    "entry": "what is called",
    "program": "by which library",
    "first ms": "time of the first call, in milliseconds",
    "second ms": "time of the second call",
    "later ms": "median time of later calls",
    "compiled": "programs that jax compiled for the first, for the second and for all later calls",
    "MB": "growth of the process during later calls, in MB",
    "error": "largest difference from the entry's first program",
}
COMPILED = "/jax/core/compile/backend_compile_duration"
Call = Callable[[], Any]


def entries(length: int, layers: int) -> dict[str, dict[str, Call]]:
    """Calls by entry point and by program, the one to compare with first."""
    keys = jax.random.split(jax.random.key(0), 4)
    weight = jax.random.normal(keys[0], (WIDTH, WIDTH)) / (2 * WIDTH**0.5)
    xs = jax.random.normal(keys[1], (length, WIDTH))
    A = jax.random.normal(keys[2], (length, WIDTH, WIDTH)) / (2 * WIDTH**0.5)
    weights = jax.random.normal(keys[3], (layers, WIDTH, WIDTH)) / (2 * WIDTH**0.5)
    start = jnp.zeros(WIDTH)
    stack = [partial(layer, each) for each in weights]

    def step_with(weight: Array) -> Callable[[Array, Array], tuple[Array, Array]]:
        def step(z: Array, x: Array) -> tuple[Array, Array]:
            z = jnp.tanh(weight @ z + x)
            return z, z

        return step

    def scanned(scan: Any, weight: Array = weight, start: Array = start) -> Array:
        return jnp.sum(scan(step_with(weight), start, xs)[1])

    def recurrence(scan: Any) -> Array:
        found: Array = scan(lambda y, row: ((y := row[0] @ y + row[1]), y), start, (A, xs))[1]
        return found

    newton, one_step = partial(deeppcr.scan, method="newton"), step_with(weight)
    scans = {SCAN: jax.lax.scan, "deeppcr": deeppcr.scan, "deeppcr, newton": newton}
    starts = jnp.ones((4, WIDTH))
    return {
        "scan": {name: partial(scanned, scan) for name, scan in scans.items()}
        | {f"{SCAN}, one step": lambda: jnp.sum(jax.lax.scan(one_step, start, xs)[1])},
        "gradient": {
            name: partial(jax.grad(partial(scanned, scan)), weight) for name, scan in scans.items()
        },
        "vmap": {
            name: partial(jax.vmap(partial(scanned, scan, weight)), starts)
            for name, scan in scans.items()
        },
        "forward": {
            "Python loop": partial(by_hand, stack, start),
            "deeppcr": partial(deeppcr.forward, stack, start),
            "deeppcr, newton": partial(deeppcr.forward, stack, start, method="newton"),
        },
        "solve_bidiagonal": {
            SCAN: partial(recurrence, jax.lax.scan),
            "deeppcr": partial(deeppcr.solve_bidiagonal, A, xs),
        },
    }


def layer(weight: Array, x: Array) -> Array:
    """A dense layer with tanh."""
    return jnp.tanh(weight @ x)


def measure(entry: str, calls: dict[str, Call], count: int) -> Iterator[Row]:
    """A row for each program, with nothing compiled before its first call."""
    compiled: list[float] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == COMPILED:
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        expected = None
        for program, call in calls.items():
            PROGRESS.say(f"calling {entry} by {program}")
            jax.clear_caches()
            compiled.clear()
            first = 1e3 * clock(call)
            after_first = len(compiled)
            second = 1e3 * clock(call)
            after_second, before = len(compiled), megabytes()
            later = [1e3 * clock(call) for _ in range(count)]
            result = call()
            expected = result if expected is None else expected
            yield {
                "entry": entry,
                "program": program,
                "first ms": first,
                "second ms": second,
                "later ms": statistics.median(later),
                "compiled": f"{after_first}, {after_second - after_first}, "
                f"{len(compiled) - after_second}",
                "MB": megabytes() - before,
                "error": float(np.abs(np.asarray(result) - expected).max()),
            }
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def megabytes() -> float:
    """The peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def samples() -> list[Case]:
    """See `experiments.bench.fresh`."""
    calls = {name: programs for name, programs in entries(64, 8).items() if name != "forward"}
    return [
        Case({"entry": entry}, [()], {}, {"deeppcr": programs["deeppcr"]})
        for entry, programs in calls.items()
    ]


def main(argv: list[str]) -> None:
    """Call every entry point."""
    options = command.parser("calls", __doc__).parse_args(argv)
    length, layers, count = (100, 16, QUICK_LATER) if options.quick else (1000, 128, LATER)
    cases = [partial(measure, *entry, count) for entry in entries(length, layers).items()]
    command.run(options, cases, {"": COLUMNS}, together=[""])
