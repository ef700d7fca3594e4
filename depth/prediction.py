"""The seconds that a program of kernels and loops takes on a `Device`.

Those of a CPU are in `depth.processor`; what follows is for accelerators.

Kernels run in order. The time of each is the maximum of three: its launch, its arithmetic, its
memory traffic.  The time of a loop is that of its body times the trips.  (Brent's bound, work over
processors plus span, is this with one kernel for each level of the program; Williams, Waterman and
Patterson's roofline, 2009, is this for one kernel.)
"""

from depth.device import CALLED, Device
from depth.kernels import Kernel, KernelChoice, KernelLoop, KernelProgram, OneKernelLoop, Part
from depth.processor import Processor

# On accelerators several steps are fused to one kernel, except for products that are not small;
# this many steps, counted in programs compiled for an H200; `python -m experiments kernels`
# contains some.
FUSED_STEPS, FUSED_PRODUCT = 4, 4096  # operations
# From this many kernels in a row on, XLA captures them in a CUDA graph: its option
# `xla_gpu_graph_min_graph_size`.
GRAPH = 5


def seconds_of(program: KernelProgram, device: Device) -> float:
    """Seconds of all kernels and loops of a program, without the latency of a call."""
    return (Processor if device.platform == "cpu" else Seconds)(device).program(program)


class Seconds:
    """The times of programs on one device, each computed once."""

    def __init__(self, device: Device):
        self.device = device
        self._known: dict[tuple[KernelProgram, bool, int], float] = {}

    def program(self, program: KernelProgram, unrolled: bool = False, unroll: int = 1) -> float:
        """Seconds of the kernels and parts of a program, one after another.

        ``unrolled``: whether it is in an unrolled loop. ``unroll``: how many such programs a trip
        of a loop consists of.
        """
        key = program, unrolled, unroll
        if key not in self._known:
            in_graph = self._is_captured(program, unrolled, unroll)
            launch = self.device.kernel_latency / unroll if in_graph else 0.0
            kernels = sum(
                count * self.kernel(kernel, unrolled, in_graph) for kernel, count in program.kernels
            )
            parts = sum(count * self.part(part, unrolled) for part, count in program.parts)
            self._known[key] = launch + kernels + parts
        return self._known[key]

    def _is_captured(self, program: KernelProgram, unrolled: bool, unroll: int) -> bool:
        """Whether its own kernels are a CUDA graph, as if none of its parts lay between."""
        if self.device.node_latency is None:
            return False
        launches = sum(count * self._share(kernel, unrolled) for kernel, count in program.kernels)
        return unroll * launches >= GRAPH

    def part(self, part: Part, unrolled: bool) -> float:
        """Seconds of a program inside another."""
        match part:
            case KernelLoop(trips, body, condition, counted, unroll):
                if unroll > 1 and unroll >= trips:
                    return trips * self.program(body, unrolled, trips)  # no loop is left
                around = self.device.loop_latency if counted else self.device.trip_latency
                step = self.program(body, unroll > 1, unroll)
                # The host runs a counted loop on a GPU, and does not evaluate its condition.
                is_free = counted and self.device.node_latency is not None
                test = self.program(condition) if condition and not is_free else 0.0
                return trips * step + trips / unroll * (around + test)
            case OneKernelLoop(waits, kernel, loop):
                wait = self.device.operation_latency
                if wait is None:
                    return self.program(loop, unrolled)
                return max(self.kernel(kernel, unrolled), self.device.kernel_latency + waits * wait)
            case KernelChoice(programs):
                return max(self.program(program, unrolled) for program in programs)
        return self.program(part, unrolled)

    def kernel(self, kernel: Kernel, unrolled: bool, in_graph: bool = False) -> float:
        """Seconds of one kernel: its latency, and the longer of its arithmetic and its traffic."""
        device = self.device
        work = sum(count / self._rate(kind, kernel) for kind, count in kernel.operations)
        traffic = kernel.bytes / device.memory_rate(kernel.bytes)
        pieces = (kernel.pieces - 1) * device.piece_latency
        latency = device.kernel_latency
        if in_graph and device.node_latency is not None:
            latency = min(latency, device.node_latency)
        return self._share(kernel, unrolled) * latency + pieces + max(work, traffic)

    def _rate(self, kind: str, kernel: Kernel) -> float:
        """The rate of a class of operations in a kernel."""
        device = self.device
        if kind == "product" or (kind == "convolution" and kind not in device.vector_rates):
            return device.rate(kernel.dtype)
        return device.vector_rate(kind, kernel.dtype)

    def _share(self, kernel: Kernel, unrolled: bool) -> float:
        """How much of a launch a kernel is: in an unrolled loop, one fused with those beside it."""
        product = dict(kernel.operations).get("product", 0)
        alone = kernel.kind in (*CALLED, "own") or product > FUSED_PRODUCT
        return 1 if alone or not unrolled else 1 / FUSED_STEPS
