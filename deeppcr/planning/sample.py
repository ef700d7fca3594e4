"""Newton's method on a sample of a chain: how many iterations will it take?

No bound from shapes or from the growth rate predicts the number of iterations: a chain that forgets
may hold iterates in the wrong basin for hundreds of iterations, and a linear chain takes one,
however it amplifies differences. So the method itself runs, on the CPU, on the first steps.
"""

import math
from typing import Any, NamedTuple

import jax

from deeppcr.linear import Sharded
from deeppcr.newton import Newton
from deeppcr.planning.instance import Instance
from deeppcr.step import on_no_mesh

MOST = 32  # iterations on the sample
STEPS = 1024  # of a sample, at most
ENTRIES = 1 << 21  # of its Jacobian blocks, at most


class Sample(NamedTuple):
    """What Newton's method did on a sample of a chain. Printed, one line.

    Attributes:
        steps: of the sample.
        length: L, of the chain.
        iterations: the number of iterations, or the most that were tried.
        prefix: states from the start that had converged; ``steps`` if all.
        rate: the growth rate of differences, natural logarithm per step; NaN if unknown.
    """

    steps: int
    length: int
    iterations: int
    prefix: int
    rate: float

    @property
    def converged(self) -> bool:
        """Whether all states of the sample converged."""
        return self.prefix == self.steps

    @property
    def forgets(self) -> bool:
        """Whether differences decay to a tenth of the digits within the sample."""
        return self.steps == self.length or self.rate * self.steps < -math.log(1e3)

    @property
    def forecast(self) -> int:
        """The number of iterations that the whole chain will take.

        A longer chain that forgets its past within the sample takes a few more; any other chain
        takes more in proportion to its length.
        """
        times = self.length / max(1, self.prefix)
        if self.converged and self.forgets:
            return min(self.iterations + round(math.log2(times) / 2), self.length + 1)
        return min(math.ceil(self.iterations * times), self.length + 1)

    def __str__(self) -> str:
        whole = self.steps == self.length
        part = "the whole chain" if whole else f"its first {self.steps} steps"
        text = f"as found on {part}"
        if not self.converged:
            text = (
                f"{self.prefix} of {self.steps} states converge in {self.iterations} iterations "
                f"on {part}"
            )
        if math.isnan(self.rate):
            return text
        trend = "grow" if self.rate > 0 else "decay"
        return f"{text}; small differences {trend} at a rate of {self.rate:+.3g} a step"


def sample(instance: Instance, method: Newton, block: int) -> Sample | None:
    """What ``method`` does on the first steps; None inside `jax.jit`, and without arrays.

    ``block``: the entries of the Jacobian blocks of one step.
    """
    if not instance.has_arrays:
        return None
    length = instance.length
    steps = min(length, max(8, min(STEPS, ENTRIES // max(1, block))))
    options: dict[str, Any] = {"max_iterations": MOST, "on_failure": "return", "record": True}
    tried = Newton(
        linearize=method.linearize,
        linear="auto" if isinstance(method.linear, Sharded) else method.linear,
        initial_guess=method.initial_guess,
        damping=method.damping,
        acceleration=method.acceleration,
        **options,
    )
    with jax.default_device(_cpu()), on_no_mesh():
        stats = instance.first(steps).solve(method=tried).stats
    rate = math.nan if stats.growth_rate is None else float(stats.growth_rate)
    return Sample(steps, length, int(stats.iterations), int(stats.prefix), rate)


def _cpu() -> jax.Device:
    """Where a sample runs: on a CPU a step of a narrow chain takes no more than a microsecond."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # this process was started without one
        return jax.local_devices()[0]
