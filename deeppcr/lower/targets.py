"""The facts of a device that programs depend on, where no compiler can be left to decide."""

from typing import NamedTuple

from deeppcr.lower.variants import GPUS, platforms


class Target(NamedTuple):
    """What programs need to know of the devices that they are traced for.

    Attributes:
        launches: whether a kernel takes longer to start than a small one to run. Then the fewest
            kernels are the fastest program; else the least work is.
        waits: whether the host waits for the condition of each trip of a loop, or of a branch.
        cache: the bytes of arrays that stay in the cache, if work in chunks gains by it.
        widest: the width of matrices up to which products of them are written out as sums.
    """

    launches: bool = True
    waits: bool = False
    cache: int | None = None
    widest: int = 16


# Up to a width of 7 such sums beat a batched matrix product on a CPU: they take 0.5 to 0.8 of the
# time in a loop, 0.7 to 1.2 for 2x2 (jax 0.10.2, 2 cores).
CPU = Target(launches=False, cache=1 << 22, widest=7)


def target() -> Target:
    """Those that programs are traced for now."""
    first = platforms()[0]
    return CPU if first == "cpu" else Target(waits=first in GPUS)
