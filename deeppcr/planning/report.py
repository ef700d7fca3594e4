"""`Plan`: what "auto" takes and why, the structure of a chain, predicted times."""

import dataclasses
from collections.abc import Mapping, Sequence

from deeppcr.checks import folded
from deeppcr.choose import AdjointOption, Method
from deeppcr.linearize import Choice
from deeppcr.newton import Newton
from deeppcr.planning.candidate import Candidate, baseline
from deeppcr.structure import Structure
from depth import Device
from depth.report import count, seconds, table

HEAD = ("forward", "depth", "predicted", "speedup", "")
UNTRIED = ("  Newton", "", "", "", "not tried: cannot win here")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What "auto" takes and why, and what each candidate is predicted to take. Printed, a table.

    Attributes:
        structure: which entries of the state influence each other, as its program proves.
        choice: the linearisation of Newton's method, its window, and the reason.
        device: the device that times are predicted for.
        found: what is printed above the candidates, by name.
        forward: the candidates for a forward pass, the chosen one first.
        gradient: the candidates for a forward and a backward pass, the chosen one first.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> plan = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> plan.predicted_speedup > 2
        True
    """

    structure: Structure
    choice: Choice
    device: Device
    found: Mapping[str, str]
    forward: tuple[Candidate, ...]
    gradient: tuple[Candidate, ...]

    @property
    def method(self) -> Method:
        """What "auto" takes, as a value of ``method=``; with a sample, what it should take."""
        return self.forward[0].method

    @property
    def adjoint(self) -> AdjointOption:
        """What "auto" takes, as a value of ``adjoint=``."""
        return self.gradient[0].adjoint

    @property
    def sequential(self) -> Candidate:
        """The sequential program among the candidates for a forward pass."""
        return baseline(self.forward)

    @property
    def autodiff(self) -> Candidate:
        """The sequential program with jax's own derivatives."""
        return baseline(self.gradient)

    @property
    def newton(self) -> Candidate | None:
        """The candidate for a forward pass by Newton's method; None if it is not tried."""
        return next((one for one in self.forward if isinstance(one.method, Newton)), None)

    @property
    def predicted_speedup(self) -> float:
        """Speedup of the forward pass over the sequential program."""
        return self.sequential.seconds / self.forward[0].seconds

    @property
    def gradient_speedup(self) -> float:
        """Speedup of forward and backward pass over jax's own gradient of that program."""
        return self.autodiff.seconds / self.gradient[0].seconds

    def __str__(self) -> str:
        rows = _rows(self.forward) + ([] if self.newton else [UNTRIED])
        body = table(HEAD, [*rows, ("gradient",), *_rows(self.gradient)], "<>>><")
        head = table((), [*self.found.items()], "<<")
        return f"{folded(head, max(map(len, self.found)) + 2)}\n\n{folded(body, 52)}"


def _rows(found: Sequence[Candidate]) -> list[tuple[str, ...]]:
    """The chosen candidate first, then the fastest."""
    chosen, plain = found[0], baseline(found)
    rows: list[tuple[str, ...]] = []
    for one in sorted(found, key=lambda one: (one is not chosen, one.seconds)):
        faster, why = ("", "") if one is plain else _verdict(one, plain)
        words = ": ".join(filter(None, ("chosen" if one is chosen else faster, why)))
        numbers = count(one.cost.depth), seconds(one.seconds)
        rows.append((f"  {one.name}", *numbers, f"{plain.seconds / one.seconds:.2f}x", words))
    return rows


def _verdict(one: Candidate, plain: Candidate) -> tuple[str, str]:
    """Whether it is faster or slower than the sequential program, and why."""
    if one.seconds < plain.seconds:
        is_shallower = plain.cost.depth > 1.2 * one.cost.depth
        return "faster", "less depth" if is_shallower else "cheaper steps"
    more = one.cost.work / max(plain.cost.work, 1)
    return "slower", f"{digits(more)}x the work" if more > 1.2 else ""


def digits(ratio: float) -> str:
    """A ratio with two digits or more: 0.65, 104."""
    return f"{ratio:.2g}" if ratio < 10 else count(ratio)
