"""From a `Cost` and a `Device` to seconds.

Kernels run one after another, each for the time that the slowest of three takes: its launch, its arithmetic, its memory
traffic.  Loops take that of their body as often as they turn.  (Brent's bound, work over processors plus span, is this with
one kernel for each level of the program; Williams, Waterman and Patterson's roofline, 2009, is this for one kernel.)
"""

from depth.cost import Cost
from depth.device import Device, find_device
from depth.kernels import Choice, Kernel, Loop, Program


def predict(cost: Cost, device: Device | str) -> float:
    """The seconds that a call of the compiled program takes on ``device``.

    What it cannot see: which operations the compiler fuses (`depth.kernels` guesses, the same for every device), how well a
    library's product of a given shape uses the device, what stays in which cache, work that overlaps, and layouts. Expect a
    factor of 1.5 for half of all programs and 2 to 3 for most others on a device that was calibrated; on one of `devices`,
    whose latencies are estimates, expect less. Where ``cost`` is a lower bound, so is this.

    Args:
        cost: As `depth.analyze` returns it.
        device: A `Device`, as `depth.calibrate` returns it, or the name of one of `depth.devices`.

    Returns:
        Seconds.

    Raises:
        TypeError: If ``cost`` is no `Cost`.
        ValueError: If ``device`` is no `Device` and no name of one.

    Example:
        >>> import depth, jax
        >>> x = jax.ShapeDtypeStruct((1024, 1024), "float32")
        >>> cost = depth.analyze(lambda x: x @ x, x)
        >>> 1e-5 < depth.predict(cost, "H100") < 1e-3
        True
    """
    if not isinstance(cost, Cost):
        raise TypeError(f"cost must be a depth.Cost, as of depth.analyze, but it is {type(cost).__name__}")
    model = find_device(device)
    return model.call_latency + Seconds(model).program(cost.program)


class Seconds:
    """The times of programs on one device, each computed once."""

    def __init__(self, device: Device):
        self.device = device
        self._known: dict[tuple[Program, str], float] = {}

    def program(self, program: Program, place: str = "program") -> float:
        """Seconds of the kernels and parts of a program, one after another."""
        key = program, place
        if key not in self._known:
            kernels = sum(count * self.kernel(kernel, place) for kernel, count in program.kernels)
            self._known[key] = kernels + sum(count * self.part(part, place) for part, count in program.parts)
        return self._known[key]

    def part(self, part: Loop | Choice | Program, place: str) -> float:
        """Seconds of a program inside another."""
        match part:
            case Loop(turns, body, condition, counted):
                inside = "loop with product" if body.multiplies else "loop"
                latency = self.device.loop_latency if counted else self.device.turn_latency
                test = self.program(condition, inside) if condition else 0.0
                return turns * (latency + test + self.program(body, inside))
            case Choice(programs):
                return max(self.program(program, place) for program in programs)
        return self.program(part, place)

    def kernel(self, kernel: Kernel, place: str) -> float:
        """Seconds of one kernel: its launch, and its arithmetic or its traffic, whichever takes longer."""
        device = self.device
        work = sum(
            count / (device.rate(kernel.dtype) if kind == "product" else device.vector_rate(kind, kernel.dtype))
            for kind, count in kernel.operations
        )
        traffic = kernel.bytes / device.memory_rate(kernel.bytes)
        return device.latency(kernel.kind, place) + (kernel.pieces - 1) * device.piece_latency + max(work, traffic)
