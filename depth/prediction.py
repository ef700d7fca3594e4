"""The seconds that a program of kernels and loops takes on a `Device`.

Kernels run in order. The time of each is the maximum of three: its launch, its arithmetic, its
memory traffic.  The time of a loop is that of its body times the trips.  (Brent's bound, work over
processors plus span, is this with one kernel for each level of the program; Williams, Waterman and
Patterson's roofline, 2009, is this for one kernel.)
"""

import math

from depth.device import CALLED, Device
from depth.kernels import Choice, Kernel, Loop, Program, Recurrence

CROWD = 8  # kernels in a trip; on a CPU, XLA runs more of them on its thread pool
# On accelerators several steps are fused to one kernel, except for products that are not small;
# this many steps, counted in programs compiled for an H200; `python -m experiments kernels`
# contains some.
UNROLLED, FUSED_STEPS, FUSED_PRODUCT = "unrolled loop", 4, 4096  # operations
SHORT = 4  # terms of a short vector product
# Additional kernels in every trip: the counter, its copy, a copy of the carry.
BESIDE = 3
# XLA's count of the bytes of a trip over that of `Kernel.apart`: the counter, and the concatenation
# of what several steps write (jax 0.10.2, 80 loops of up to 4 kB).
COUNTED, COUNTED_UNROLLED, COUNTER = 1.1, 2.0, 28
# From this many kernels in a row on, XLA captures them in a CUDA graph: its option
# `xla_gpu_graph_min_graph_size`.
GRAPH = 5


class Seconds:
    """The times of programs on one device, each computed once."""

    def __init__(self, device: Device):
        self.device = device
        self._known: dict[tuple[Program, str, int], float] = {}

    def program(self, program: Program, place: str = "program", unroll: int = 1) -> float:
        """Seconds of the kernels and parts of a program, one after another.

        ``unroll``: how many such programs a trip of a loop consists of.
        """
        key = program, place, unroll
        if key not in self._known:
            in_graph = self._is_captured(program, place, unroll)
            launch = self.device.kernel_latency / unroll if in_graph else 0.0
            kernels = sum(
                count * self.kernel(kernel, place, in_graph) for kernel, count in program.kernels
            )
            parts = sum(count * self.part(part, place) for part, count in program.parts)
            self._known[key] = launch + kernels + parts
        return self._known[key]

    def _is_captured(self, program: Program, place: str, unroll: int) -> bool:
        """Whether its own kernels are a CUDA graph, as if none of its parts lay between."""
        if self.device.node_latency is None:
            return False
        launches = sum(count * self._share(kernel, place) for kernel, count in program.kernels)
        return unroll * launches >= GRAPH

    def part(self, part: Loop | Choice | Recurrence | Program, place: str) -> float:
        """Seconds of a program inside another."""
        match part:
            case Loop(trips, body, condition, counted, unroll, whole):
                if unroll > 1 and unroll >= trips:
                    return trips * self.program(body, place, trips)  # no loop is left
                inside = self._place(body, unroll, whole)
                around = self.device.loop_latency if counted else self.device.trip_latency
                step = self.program(body, inside, unroll if inside == UNROLLED else 1)
                if self.device.small_loop and trips * body.slices > self.device.cache:
                    step += body.slices / self.device.bandwidth
                if self.device.small_loop and inside != "loop":
                    around += (BESIDE + len(body.stacks)) * self.device.latency(
                        "elementwise", inside
                    )
                # The host runs a counted loop on a GPU, and does not evaluate its condition.
                is_free = counted and self.device.node_latency is not None
                test = self.program(condition, inside) if condition and not is_free else 0.0
                return trips * step + trips / unroll * (around + test)
            case Recurrence(waits, kernel, loop):
                wait = self.device.operation_latency
                if wait is None:
                    return self.program(loop, place)
                return max(self.kernel(kernel, place), self.device.kernel_latency + waits * wait)
            case Choice(programs):
                return max(self.program(program, place) for program in programs)
        return self.program(part, place)

    def is_one_function(self, loop: Loop) -> bool:
        """Whether a loop is compiled to one function, without a call for each kernel."""
        return self._place(loop.body, loop.unroll, loop.whole) == "loop"

    def _place(self, body: Program, unroll: int, whole: bool) -> str:
        """How a loop runs: unrolled, as one function, kernel by kernel, or on a thread pool."""
        small = self.device.small_loop
        if whole and small:
            return "loop"
        if unroll > 1 and not small:
            return UNROLLED
        counted = (COUNTED if unroll == 1 else unroll * COUNTED_UNROLLED) * body.apart + COUNTER
        if not (body.multiplies or (small and (body.parts or counted >= small))):
            return "loop"
        return (
            "crowded loop"
            if small and unroll * body.arrays + BESIDE > CROWD
            else "loop with product"
        )

    def kernel(self, kernel: Kernel, place: str, in_graph: bool = False) -> float:
        """Seconds of one kernel: its latency, and the longer of its arithmetic and its traffic."""
        device = self.device
        # On a CPU, XLA calls no library for batches of vector products: they are sums of products,
        # with no call for each.
        inline = bool(device.small_loop) and kernel.kind == "vector product" and kernel.pieces > 1
        operations = dict(kernel.operations)
        if kernel.is_sum and device.small_loop:
            operations.pop("move", None)  # it reads slices where they are
        work = sum(
            count / self._rate("contraction" if inline and kind == "product" else kind, kernel)
            for kind, count in operations.items()
        )
        traffic = kernel.bytes / device.memory_rate(kernel.bytes)
        apart = (
            kernel.results
            if device.small_loop and place in ("loop with product", "crowded loop")
            else 1
        )
        pieces = 0 if inline else kernel.pieces - 1
        return (
            apart * self._latency(kernel, place, in_graph)
            + pieces * device.piece_latency
            + max(work, traffic)
        )

    def _rate(self, kind: str, kernel: Kernel) -> float:
        """The rate of a class of operations in a kernel."""
        device = self.device
        if kind == "product" or (kind == "convolution" and kind not in device.vector_rates):
            return device.rate(kernel.dtype)
        return device.vector_rate(kind, kernel.dtype)

    def _share(self, kernel: Kernel, place: str) -> float:
        """How much of a launch a kernel is: in an unrolled loop, one fused with those beside it."""
        product = dict(kernel.operations).get("product", 0)
        alone = kernel.kind in (*CALLED, "own") or product > FUSED_PRODUCT
        return 1 if alone or place != UNROLLED else 1 / FUSED_STEPS

    def _latency(self, kernel: Kernel, place: str, in_graph: bool) -> float:
        """The latency of a kernel; in small loops it depends on the operations."""
        kind, latencies = kernel.kind, self.device.step_latencies
        if kind == "convolution" and place == "loop":
            kind = "reduction"  # written out
        if place == "crowded loop" and kernel.is_sum:
            place = "loop with product"  # fused with what is around it
        latency = self.device.latency(kind, place)
        if in_graph and self.device.node_latency is not None:
            latency = min(latency, self.device.node_latency)
        if place == UNROLLED:
            return self._share(kernel, place) * latency
        if place != "loop" or "elementwise" not in latencies:
            return latency
        if kernel.kind == "vector product" and "short vector product" in latencies:
            terms = math.sqrt(dict(kernel.operations)["product"] / 2)  # written out, one by one
            latency = min(latency, latencies["short vector product"] * terms / SHORT)
        own = latency if kind in latencies and kind != "elementwise" else 0.0
        return own + max(kernel.waits, not own) * latencies["elementwise"]
