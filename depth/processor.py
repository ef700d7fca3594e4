"""The seconds that a program of kernels and loops takes on a CPU, as XLA compiles it.

XLA calls a function for each array that is written, and a library for a product. A loop that moves
little memory and calls no library is one function instead. Its trip takes as long as the operations
that wait for one another from state to state, or as all of its operations, if that is longer.
"""

from depth.device import Device
from depth.kernels import (
    LIBRARY,
    Kernel,
    KernelChoice,
    KernelLoop,
    KernelProgram,
    OneKernelLoop,
    Part,
)

# XLA's count of the bytes of a trip over that of `KernelProgram.apart`: the counter, and the
# concatenation of what several steps write (jax 0.10.2, 80 loops of up to 4 kB).
COUNTED, COUNTED_UNROLLED, COUNTER = 1.1, 2.0, 28
# Operations of a product that one thread computes before others are awake (jax 0.12.0 and 0.10.2).
ALONE = 4.7e6
LANES = 8  # of a vector, each by itself: for what is not computed by vectors
FUNCTION = "function"  # a place: inside of a loop that is one function


class Processor:
    """The times of programs on one CPU, each computed once."""

    def __init__(self, device: Device):
        self.device = device
        self._wait = device.operation_latency or 0.0
        self._known: dict[tuple[KernelProgram, str], float] = {}

    def program(self, program: KernelProgram, place: str = "") -> float:
        """Seconds of the kernels and parts of a program, one after another."""
        key = program, place
        if key not in self._known:
            kernels = sum(count * self.kernel(kernel, place) for kernel, count in program.kernels)
            parts = sum(count * self.part(part, place) for part, count in program.parts)
            self._known[key] = kernels + parts
        return self._known[key]

    def part(self, part: Part, place: str) -> float:
        """Seconds of a program inside another."""
        match part:
            case KernelLoop():
                return self._loop(part, place)
            case OneKernelLoop():
                return self.program(part.loop, place)
            case KernelChoice(programs):
                return max(self.program(program, place) for program in programs)
        return self.program(part, place)

    def is_one_function(self, loop: KernelLoop) -> bool:
        """Whether a loop is compiled to one function, without a call for each kernel."""
        body = loop.body
        scale = COUNTED if loop.unroll == 1 else loop.unroll * COUNTED_UNROLLED
        inside = (
            isinstance(part, KernelLoop) and self.is_one_function(part) for part, _ in body.parts
        )
        is_small = scale * body.apart + COUNTER < self.device.small_loop
        return loop.whole or (is_small and not body.calls_library and all(inside))

    def _loop(self, loop: KernelLoop, place: str) -> float:
        device, body = self.device, loop.body
        # What a loop reads is mostly in the cache, where a trip reads ahead.
        step = (body.read / 2 + body.written) / device.bandwidth
        if place == FUNCTION or self.is_one_function(loop):
            work = sum(count * self._work(kernel) for kernel, count in body.kernels)
            step += max(work, body.path * self._wait)
            step += sum(count * self.part(part, FUNCTION) for part, count in body.parts)
        else:
            step += self.program(body) + len(body.stacks) * device.kernel_latency
        around = device.loop_latency if loop.counted else device.trip_latency
        test = self.program(loop.condition, place) if loop.condition and not loop.counted else 0.0
        return loop.trips * (step + around + test)

    def kernel(self, kernel: Kernel, place: str = "") -> float:
        """Seconds of one kernel: its calls, and the longest of its work, waits and traffic."""
        device = self.device
        work = max(self._work(kernel), kernel.waits * self._wait)
        if place == FUNCTION:
            return work
        calls = kernel.results * device.kernel_latency
        if kernel.kind in LIBRARY:
            calls += device.product_latency + (kernel.pieces - 1) * device.piece_latency
        elif kernel.kind == "factorization":
            calls += (kernel.pieces + 1) / 2 * device.piece_latency
        # What only copies reads and writes where others do.
        traffic = kernel.bytes / device.memory_rate(kernel.bytes) if kernel.vectors else 0.0
        return calls + max(work, traffic)

    def _work(self, kernel: Kernel) -> float:
        """Seconds of its arithmetic, by vectors."""
        device = self.device
        total = 0.0
        for kind, count in kernel.vectors:
            if kind == "product":
                shared = max(count - ALONE, 0.0)
                total += (count - shared + shared / device.threads) / device.rate(kernel.dtype)
            elif kind == "contraction":
                total += count / 2 / device.vector_rate("arithmetic", kernel.dtype)
            elif kind == "by entry":
                total += LANES * count / device.vector_rate("transcendental", kernel.dtype)
            else:
                total += count / device.vector_rate(kind, kernel.dtype)
        return total
