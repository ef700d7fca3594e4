"""Measuring the device at hand: each figure of a `Device` from programs that little else decides, in under 20 seconds.

Every figure is a difference: of the same program with more of one thing and with less of it, each the least of several calls,
so that what they share drops out.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from depth.device import Device

SECONDS = 15.0  # when this much has passed, what is left is measured by fewer calls
VERSION = 6  # of the measurement: files of another one are not read
FLOAT = "float32"  # of all that is measured but products

Step = Callable[[Array], Array]


def cache_file() -> Path:
    """The file that keeps the measurement of this device, jax version and number of cores."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    kind = re.sub(r"[^a-z0-9]+", "-", jax.devices()[0].device_kind.lower()).strip("-")
    bits = "x64" if jax.config.read("jax_enable_x64") else "x32"
    return Path(base) / "depth" / f"{kind}-{cores()}-cores-jax-{jax.__version__}-{bits}-v{VERSION}.json"


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def calibrate(*, refresh: bool = False) -> Device:
    """The model of jax's default device, measured; kept in the user's cache folder and read from there the next time.

    The folder is ``$XDG_CACHE_HOME/depth`` or ``~/.cache/depth``; the file is named by the device, the version of jax and the
    number of cores. Where it cannot be written, the measurement is made again each time, with a warning. On a machine that is
    busy with other things, the figures are those of a slower machine: ``refresh=True`` measures anew.

    Returns:
        A `Device` with what was measured. It has no float64 rate unless ``jax_enable_x64`` is on.
    """
    path = cache_file()
    if not refresh and (known := _read(path)):
        return known
    device = measure()
    _write(path, device)
    return device


def measure() -> Device:
    """The model of jax's default device, measured now."""
    clock = _Clock()
    one = jnp.ones(8, FLOAT)
    call = clock.seconds(lambda x: x * 0.5 + 1, one)

    # A loop with one kernel, then with two more of a kind: a reduction ends a kernel, a product is one.
    thin = clock.turn(_thin, one, 4000)
    weights = jnp.eye(16, dtype=FLOAT)
    vector, matrix = jnp.ones(16, FLOAT), jnp.ones((8, 16), FLOAT)
    reduced = clock.turn(lambda x: _thin(_reduced(x)), one, 4000)
    beside = clock.turn(lambda x: _reduced(_reduced(_reduced(x @ weights))), matrix, 1000)
    step = {
        "elementwise": thin / 2,  # a turn with one kernel: half of it for the turn, half for the kernel
        "reduction": max(reduced - thin, thin / 2),
        "vector product": clock.turn(lambda x: x @ weights, vector, 2000),
        "product": clock.turn(lambda x: jnp.tanh(jnp.tanh(x @ weights) @ weights), matrix, 1000) / 2,
        "transposed product": clock.turn(lambda x: _thin(x) + (x.T @ x)[:8], matrix, 1000),
    }
    step["beside product"] = max((beside - step["product"]) / 6, step["elementwise"])
    batch = jnp.broadcast_to(weights, (64, 16, 16))
    pieces = [clock.turn(_batched(batch[:n]), batch[:n], 6400 // n) for n in (1, 64)]
    stack = jnp.broadcast_to(weights, (48, 16, 16))
    layers = clock.seconds(_layers, matrix, stack) - clock.seconds(_layers, matrix, stack[:16])
    waiting = clock.seconds(_waiting, one) - call

    rates = {}
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        if dtype != "float64" or jax.config.read("jax_enable_x64"):
            square = jnp.eye(256, dtype=dtype)
            rates[dtype] = 2 * 64 * 256**2 / clock.turn(_product(square), square[:64], 64)
    page = jnp.ones(1 << 13, FLOAT)
    rows = page.reshape(-1, 16)
    vector_rates = {
        "arithmetic": 16 * page.size / clock.turn(_polynomial, page, 200),
        "transcendental": 3 * page.size / clock.turn(lambda x: jnp.log(jnp.exp(-x) + jnp.tanh(x)), page, 100),
        "reduction": page.size / clock.turn(lambda x: x - jnp.sum(x, axis=-1, keepdims=True), rows, 100),
        "cumulative": page.size * 13 / clock.turn(jnp.cumsum, page, 100),
        "move": 6 * page.size / clock.turn(_columns, page.reshape(-1, 4), 100),
    }
    memory_rates = {
        2 * 4 << k: (2 * 4 << k) / clock.turn(_thin, jnp.ones(1 << k, FLOAT), 1 << max(1, 23 - k)) for k in range(16, 25, 2)
    }
    bandwidth, cache_bandwidth = memory_rates[max(memory_rates)], memory_rates[min(memory_rates)]
    return Device(
        name=f"{jax.devices()[0].device_kind}, {cores()} cores, as measured",
        call_latency=call,
        kernel_latency=max(layers, 0.0) / (32 * 3),
        loop_latency=thin / 2,
        turn_latency=max(waiting / 1000, 0.0),
        step_latencies=step,
        piece_latency=max((pieces[1] - pieces[0]) / 63 - 2 * 16**3 / rates["float32"], 0.0),
        rates=rates,
        vector_rates=vector_rates,
        bandwidth=bandwidth,
        cache_bandwidth=cache_bandwidth,
        cache=max(size for size, rate in memory_rates.items() if rate**2 >= bandwidth * cache_bandwidth),
        memory=_memory(),
        source=f"measured by depth.calibrate with jax {jax.__version__}",
    )


class _Clock:
    """Times compiled programs: the least of several calls."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def seconds(self, function: Callable[..., Any], *args: Array) -> float:
        """Of one call."""
        call = jax.jit(function).lower(*args).compile()
        jax.block_until_ready(call(*args))
        least, spent = float("inf"), 0.0
        late = time.perf_counter() - self.start > SECONDS
        for _ in range(3 if late else 100):
            start = time.perf_counter()
            jax.block_until_ready(call(*args))
            once = time.perf_counter() - start
            least, spent = min(least, once), spent + once
            if spent > 0.2:
                break
        return least

    def difference(self, program: Callable[[int], Step], x: Array, few: int, many: int) -> float:
        """Of one more of what ``program`` repeats."""
        return max(self.seconds(program(many), x) - self.seconds(program(few), x), 0.0) / (many - few)

    def turn(self, step: Step, x: Array, turns: int) -> float:
        """Of one turn of a counted loop."""

        def loop(turns: int) -> Step:
            return lambda x: lax.scan(lambda x, _: (step(x), None), x, length=turns)[0]

        return max(self.difference(loop, x, turns // 4, turns), 1e-10)


def _thin(x: Array) -> Array:
    return x * 0.5 + 1


def _reduced(x: Array) -> Array:
    return x - jnp.max(x)


def _layers(x: Array, weights: Array) -> Array:
    """Three kernels a layer: the slice, the product, and the rest."""
    for layer in range(len(weights)):
        x = jnp.tanh(x @ weights[layer] + 1)
    return x


def _waiting(x: Array) -> Array:
    return lax.while_loop(lambda x: x[0] < 1001, lambda x: x + 1, x)


def _product(y: Array) -> Step:
    return lambda x: x @ y


def _batched(y: Array) -> Step:
    return lambda x: jnp.einsum("bij,bjk->bik", x, y)


def _columns(x: Array) -> Array:
    """Two operations on columns that are taken apart and put together: three elements read and one written for each result."""
    return jnp.stack([x[:, i] * x[:, i - 1] + x[:, i - 2] for i in range(4)], axis=-1)


def _polynomial(x: Array) -> Array:
    """Sixteen operations on each element."""
    y = x
    for _ in range(8):
        y = y * x + 1
    return y


def _memory() -> float:
    """Bytes of the device's memory, or of the machine's."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return 0.0


def _read(path: Path) -> Device | None:
    """The device kept in ``path``; None if there is none, or none that can be read."""
    try:
        return Device(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write(path: Path, device: Device) -> None:
    """Keep ``device`` in ``path``, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".calibration-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(vars(device), file, indent=1)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        print(f"depth.calibrate: the measurement is not kept, since {path.parent}: {error.strerror}", file=sys.stderr)
