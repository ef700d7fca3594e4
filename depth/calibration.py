"""Measure the model of the device at hand.

Each figure of a `Device` comes from programs that are dominated by it. It is the difference between
two sizes of the same program, each the minimum of several calls, so that common costs cancel.

The result is stored in a file, together with the conditions of the measurement. Under other
conditions it is ignored, whatever the name of the file. So is a file that is truncated, unreadable
or not a calibration.
"""

import errno
import json
import math
import os
import re
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from depth.analysis import analyze
from depth.cost import predict
from depth.device import Device
from depth.models import SMALL_LOOP
from depth.platforms import default_device, platform
from depth.prediction import BESIDE, SHORT

SECONDS = 15.0  # after this time the remaining figures are measured by fewer calls
SHARE = 0.03  # seconds of the calls of one program, so that a short disturbance does not count
VERSION = 12  # of the measurement and its file; files of other versions are not read
LARGEST = 1 << 16  # bytes of a file that is read; calibrations take some thousand
GROUPS = 64  # of a convolution
FLOAT = "float32"  # dtype of all measurements but those of products

Step = Callable[[Any], Any]


def cache_file(device: jax.Device | None = None) -> Path:
    """The file of the calibration of a device, for this jax and number of cores."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):  # by the XDG specification relative paths are ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    name = "{device}-{cores}-cores-jax-{jax}-{bits}-v{version}".format(
        **_conditions(device or default_device())
    )
    return Path(base) / "depth" / f"{re.sub('[^a-z0-9.]+', '-', name.lower()).strip('-')}.json"


def _conditions(device: jax.Device) -> dict[str, str | int]:
    """The conditions of a measurement, as written in its file."""
    bits = "x64" if jax.config.read("jax_enable_x64") else "x32"
    return {
        "device": device.device_kind,
        "cores": cores(),
        "jax": jax.__version__,
        "bits": bits,
        "version": VERSION,
    }


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def calibrate(*, refresh: bool = False) -> Device:
    """Measure jax's default device, and store the result on disk.

    The first call takes some seconds; later calls read the file. Measure on an idle machine:
    otherwise the figures are those of a slower one.

    The file is in ``$XDG_CACHE_HOME/depth`` or ``~/.cache/depth``, and is named by the device, the
    version of jax and the number of cores. If it cannot be written, a warning is issued, and each
    call measures again.

    `at_hand`, and so every ``"auto"`` of deeppcr, uses the stored figures from then on, in this
    process and in later ones, as long as jax, the number of cores and ``jax_enable_x64`` stay the
    same.

    Args:
        refresh: Measure again, and replace the stored result.

    Returns:
        The measured `Device`. It has no float64 rate unless ``jax_enable_x64`` is set.

    Example:
        >>> depth.calibrate().rate("float32")  # doctest: +SKIP
        102350771004.2
    """
    device = default_device()
    if not refresh and (known := kept(device)):
        return known
    measured = measure()
    _keep(cache_file(device), {"conditions": _conditions(device), "device": vars(measured)})
    return measured


def kept(device: jax.Device) -> Device | None:
    """The stored calibration of ``device`` under the current conditions; None if there is none."""
    path = cache_file(device)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:  # reading a pipe would block
            return None
        stamp = found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        return _read(path, tuple(_conditions(device).items()), stamp)
    except OSError:
        return None


def measure() -> Device:
    """Measure the model of jax's default device."""
    clock = _Clock()
    one = jnp.ones(8, FLOAT)
    call = clock.seconds(_thin, one)

    # A loop with one kernel, then with two more of a kind: a reduction ends a kernel, a product is
    # one.
    thin = clock.trip(_thin, one, 4000)
    weights = jnp.eye(16, dtype=FLOAT)
    vector, matrix = jnp.ones(16, FLOAT), jnp.ones((8, 16), FLOAT)
    reduced = clock.trip(lambda x: _thin(_reduced(x)), one, 4000)
    few = clock.stacked(3, 2000) / (3 + 1 + BESIDE)
    step = {
        "elementwise": thin
        / 2,  # a trip with one kernel: half of it for the trip, half for the kernel
        "reduction": max(reduced - thin, thin / 2),
        "vector product": clock.trip(lambda x: x @ weights, vector, 2000),
        "short vector product": clock.trip(
            lambda x: x @ weights[:SHORT, :SHORT], vector[:SHORT], 4000
        ),
        "product": clock.trip(lambda x: jnp.tanh(jnp.tanh(x @ weights) @ weights), matrix, 1000)
        / 2,
        "transposed product": clock.trip(lambda x: _thin(x) + (x.T @ x)[:8], matrix, 1000),
    }
    step["transcendental"] = max(clock.trip(lambda x: jnp.tanh(_thin(x)), one, 4000) - thin, 0.0)
    step["beside product"] = max(few, step["elementwise"])
    batch = jnp.broadcast_to(weights, (64, 16, 16))
    pieces = [clock.trip(_batched(batch[:n]), batch[:n], 6400 // n) for n in (1, 64)]
    stack = jnp.broadcast_to(weights, (48, 16, 16))
    layers = clock.apart((_layers, matrix, stack), (_layers, matrix, stack[:16]))
    waiting = clock.apart((_waiting, one), (_thin, one))

    rates = {}
    for dtype in ("float32", "float64", "bfloat16", "float16"):
        if dtype != "float64" or jax.config.read("jax_enable_x64"):
            square = jnp.eye(256, dtype=dtype)
            rates[dtype] = 2 * 64 * 256**2 / clock.trip(_product(square), square[:64], 64)
    page = jnp.ones(1 << 13, FLOAT)
    rows = page.reshape(-1, 16)
    vector_rates = {
        "arithmetic": 16 * page.size / clock.trip(_polynomial, page, 200),
        "transcendental": 3
        * page.size
        / clock.trip(lambda x: jnp.log(jnp.exp(-x) + jnp.tanh(x)), page, 100),
        "reduction": page.size
        / clock.trip(lambda x: x - jnp.sum(x, axis=-1, keepdims=True), rows, 100),
        "contraction": 16 * rows.size / clock.trip(_written_out(weights), rows, 100),
        "cumulative": page.size * 13 / clock.trip(jnp.cumsum, page, 100),
        "move": 6 * page.size / clock.trip(_columns, page.reshape(-1, 4), 100),
    }
    memory_rates = {
        2 * 4 << k: (2 * 4 << k) / clock.trip(_thin, jnp.ones(1 << k, FLOAT), 1 << max(1, 23 - k))
        for k in range(16, 25, 2)
    }
    if default_device().platform == "cpu":
        signals, filters = jnp.ones((GROUPS, 1, 16, 4), FLOAT), jnp.ones((GROUPS, 3, 4, 4), FLOAT)
        work = 2 * GROUPS * 16 * 3 * 4 * 4
        vector_rates["expanded"] = (GROUPS - 1) * work / clock.trip(_grouped(filters), signals, 16)
        alone, vector_rates["convolution"] = _convolution(clock)
        step["convolution"] = max(alone, step["elementwise"])
    bandwidth, cache_bandwidth = memory_rates[max(memory_rates)], memory_rates[min(memory_rates)]
    cache = max(
        size for size, rate in memory_rates.items() if rate**2 >= bandwidth * cache_bandwidth
    )
    if default_device().platform == "cpu":
        bandwidth = _sliced(clock)
    device = Device(
        name=f"{default_device().device_kind}, {cores()} cores, as measured",
        call_latency=call,
        kernel_latency=max(layers / (32 * 3), step["beside product"]),
        loop_latency=thin / 2,
        trip_latency=max(waiting / 1000, thin / 2),
        step_latencies=step,
        piece_latency=max((pieces[1] - pieces[0]) / 63 - 2 * 16**3 / rates["float32"], 0.0),
        rates=rates,
        vector_rates=vector_rates,
        bandwidth=bandwidth,
        cache_bandwidth=cache_bandwidth,
        cache=cache,
        memory=_memory(),
        small_loop=SMALL_LOOP if default_device().platform == "cpu" else 0.0,
        source=f"measured by depth.calibrate with jax {jax.__version__}",
        platform=platform(),
    )
    return device.replace(step_latencies=step | {"crowded": _crowded(clock, device)})


def _crowded(clock: "_Clock", device: Device) -> float:
    """The latency of a kernel in a loop of many.

    The measured time of the gradient of a small network, minus the time predicted without this
    latency.

    The share of its kernels that depend on each other, and so do not run on other threads, is that
    of other gradients.
    """
    long, short = (_network(length) for length in (2000, 500))
    costs = [analyze(_gradient, *given) for given in (long, short)]

    def predicted(crowded: float) -> float:
        model = device.replace(step_latencies={**device.step_latencies, "crowded": crowded})
        return predict(costs[0], model) - predict(costs[1], model)

    taken, bare = clock.apart((_gradient, *long), (_gradient, *short)), predicted(0.0)
    kernels = predicted(1.0) - bare
    return max(
        (taken - bare) / kernels if kernels else 0.0, device.step_latencies["beside product"]
    )


def _convolution(clock: "_Clock") -> tuple[float, float]:
    """Seconds of a small convolution in a loop, and operations per second in a larger one."""
    filters = jnp.ones((3, 4, 4), FLOAT) / 12

    def step(x: Array) -> Array:
        return lax.conv_general_dilated(
            x, filters, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )

    few, many = jnp.ones((8, 2, 4), FLOAT), jnp.ones((64, 32, 4), FLOAT)
    work = 2 * 3 * 4  # operations for an element
    short, long = clock.trip(step, few, 2000), clock.trip(step, many, 64)
    rate = work * (many.size - few.size) / max(long - short, 1e-10)
    return short - work * few.size / rate, rate


def _sliced(clock: "_Clock") -> float:
    """Bytes per second of a loop over the slices of a large array."""
    rows, width = 2048, 8192
    array = jnp.ones((rows, width), FLOAT)

    def total(array: Array) -> Array:
        return lax.scan(lambda x, y: (x + y, None), jnp.zeros(width, FLOAT), array)[0]

    seconds = clock.apart((total, array), (total, array[: rows // 4]))
    return 4 * width * (rows - rows // 4) / max(seconds, 1e-9)


class _Clock:
    """Times compiled programs: the minimum of several calls."""

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def seconds(self, function: Callable[..., Any], *args: Any) -> float:
        """Seconds of one call."""
        return self._least((function, *args))[0]

    def apart(self, longer: tuple[Any, ...], shorter: tuple[Any, ...]) -> float:
        """Seconds that one call takes longer than another; calls alternate."""
        more, less = self._least(longer, shorter)
        return max(more - less, 0.0)

    def _least(self, *programs: tuple[Any, ...]) -> list[float]:
        """The least seconds of a call of each program, given as a function with its arguments."""
        calls = []
        for function, *args in programs:
            call = jax.jit(function).lower(*args).compile()
            jax.block_until_ready(call(*args))
            calls.append((call, args))
        least, spent, done = [math.inf] * len(calls), 0.0, 0
        late = time.perf_counter() - self.start > SECONDS
        while done < 3 or (spent < SHARE * len(calls) and not late):
            for number, (call, args) in enumerate(calls):
                start = time.perf_counter()
                jax.block_until_ready(call(*args))
                once = time.perf_counter() - start
                least[number], spent = min(least[number], once), spent + once
            done += 1
        return least

    def difference(self, program: Callable[[int], Step], x: Any, few: int, many: int) -> float:
        """Seconds of one more repetition in ``program``."""
        return self.apart((program(many), x), (program(few), x)) / (many - few)

    def trip(self, step: Step, x: Any, trips: int) -> float:
        """Seconds of one trip of a counted loop."""

        def loop(trips: int) -> Step:
            return lambda x: lax.scan(lambda x, _: (step(x), None), x, length=trips)[0]

        return max(self.difference(loop, x, trips // 4, trips), 1e-10)

    def stacked(self, count: int, trips: int) -> float:
        """Seconds of one trip of a loop that writes ``count`` arrays."""
        x, ys = jnp.ones(64, FLOAT), jnp.ones((trips, 64), FLOAT)
        few, program = trips // 4, _stacked(count)
        return self.apart((program, x, ys), (program, x, ys[:few])) / (trips - few)


def _stacked(count: int) -> Callable[[Array, Array], Any]:
    """A loop that writes ``count`` arrays per trip, too large to be compiled to one function."""

    def step(x: Array, y: Array) -> tuple[Array, tuple[Array, ...]]:
        return _thin(x), tuple(x * (2.0 + k) + y for k in range(count))

    return lambda x, ys: lax.scan(step, x, ys)


def _network(length: int) -> tuple[Array, Array, Array]:
    """An input, and the weights and biases of layers of 8 units."""
    weights = jnp.broadcast_to(jnp.eye(8, dtype=FLOAT), (length, 8, 8))
    return jnp.ones((1, 8), FLOAT), weights, jnp.ones((length, 1, 8), FLOAT)


def _gradient(x: Array, weights: Array, biases: Array) -> Any:
    """The gradient of a network, by a forward and a backward loop."""

    def loss(*given: Array) -> Array:
        x, *layers = given
        return jnp.square(
            lax.scan(lambda x, layer: (jnp.tanh(x @ layer[0] + layer[1]), None), x, layers)[0]
        ).mean()

    return jax.grad(loss, (0, 1, 2))(x, weights, biases)


def _thin(x: Array) -> Array:
    return x * 0.5 + 1


def _reduced(x: Array) -> Array:
    return x - jnp.max(x)


def _layers(x: Array, weights: Array) -> Array:
    """Three kernels per layer: the slice, the product, and the rest."""
    for layer in range(len(weights)):
        x = jnp.tanh(x @ weights[layer] + 1)
    return x


def _waiting(x: Array) -> Array:
    return lax.while_loop(lambda x: x[0] < 1001, lambda x: x + 1, x)


def _product(y: Array) -> Step:
    return lambda x: x @ y


def _written_out(y: Array) -> Step:
    """A product with 16 x 16 weights as a sum of products."""
    return lambda x: (x[:, :, None] * y[None]).sum(axis=1)


def _grouped(filters: Array) -> Step:
    """Convolutions, each with a filter of its own."""

    def one(x: Array, y: Array) -> Array:
        return lax.conv_general_dilated(x, y, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))

    return lambda x: jax.vmap(one)(x, filters)


def _batched(y: Array) -> Step:
    return lambda x: jnp.einsum("bij,bjk->bik", x, y)


def _columns(x: Array) -> Array:
    """Two operations on columns that are sliced and concatenated.

    Reads three elements and writes one for each result.
    """
    return jnp.stack([x[:, i] * x[:, i - 1] + x[:, i - 2] for i in range(4)], axis=-1)


def _polynomial(x: Array) -> Array:
    """Sixteen operations on each element."""
    y = x
    for _ in range(8):
        y = y * x + 1
    return y


def _memory() -> float:
    """Bytes of the device's memory, or of the machine's."""
    stats = default_device().memory_stats() or {}
    if "bytes_limit" in stats:
        return float(stats["bytes_limit"])
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return 0.0


@lru_cache(maxsize=16)
def _read(
    path: Path, conditions: tuple[tuple[str, str | int], ...], stamp: tuple[int, ...]
) -> Device | None:
    """The device stored in ``path`` if it was measured under ``conditions``.

    Read once for each ``stamp`` of the file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["conditions"] != dict(conditions):
            return None
        device = Device(**content["device"])
        return device if _sensible(device) else None
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        RecursionError,
    ):  # whatever another file may hold
        return None


def _sensible(device: Device) -> bool:
    """Whether a device from a file has strings for texts, and finite figures."""
    figures = [value for value in vars(device).values() if isinstance(value, int | float)]
    figures += [
        *device.rates.values(),
        *device.vector_rates.values(),
        *device.step_latencies.values(),
    ]
    return (
        isinstance(device.name, str)
        and isinstance(device.source, str)
        and all(map(math.isfinite, figures))
    )


def _keep(path: Path, content: dict[str, Any]) -> None:
    """Write the file of the calibration, or warn why not."""
    try:
        write_whole(path, content)
    except OSError as error:
        print(
            f"depth.calibrate: the measurement is not kept, since {path.parent}: {error.strerror}",
            file=sys.stderr,
        )
    _read.cache_clear()  # the stamp of the new file may be that of one before the last


def write_whole(path: Path, content: Any) -> None:
    """Write ``content`` as JSON, atomically.

    Concurrent readers see the old file or the new one.

    Raises:
        OSError: It cannot be written; the old file is unchanged.
    """
    if not path.is_absolute():
        raise FileNotFoundError(errno.ENOENT, "No home folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".calibration-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
