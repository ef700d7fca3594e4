"""`Plan`: what "auto" takes and why, the structure of a chain, predicted times."""

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence

from deeppcr.adjoint import Autodiff
from deeppcr.choose import AdjointOption, Method
from deeppcr.layers import Description
from deeppcr.linearize import Choice
from deeppcr.newton import Newton
from deeppcr.planning.instance import name_of_pair
from deeppcr.sequential import Sequential
from deeppcr.structure import Structure
from depth import Cost, Device
from depth.report import count, seconds, table

COLUMNS = 80  # of a line
HEAD = ("forward", "depth", "predicted", "speedup", "")
UNTRIED = ("  Newton", "", "", "", "not tried: cannot win here")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One combination of a method and an adjoint for a chain.

    Attributes:
        method: the method.
        adjoint: the adjoint; None for a forward pass.
        cost: its depth, work and traffic.
        seconds: the predicted time on the device.
        iterations: of Newton's method; 0 for others.
    """

    method: Method
    adjoint: AdjointOption
    cost: Cost
    seconds: float
    iterations: int = 0

    @property
    def name(self) -> str:
        """A short name."""
        return name_of_pair(self.method, self.adjoint)


def baseline(candidates: Sequence[Candidate]) -> Candidate:
    """The sequential program, and jax's own derivative of it."""
    plain = Sequential(), (None, Autodiff())
    return next(one for one in candidates if one.method == plain[0] and one.adjoint in plain[1])


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """The plan of one chain. Printed, the choice, its structure, and the candidates.

    Attributes:
        structure: which entries of the state influence each other, as its program proves.
        choice: the linearisation of Newton's method, its window, and the reason.
        device: the device that times are predicted for.
        found: what is printed above the candidates, by name.
        forward: the candidates for a forward pass, the chosen one first.
        gradient: the candidates for a forward and a backward pass, the chosen one first.
    """

    structure: Structure
    choice: Choice
    device: Device
    found: Mapping[str, str]
    forward: tuple[Candidate, ...]
    gradient: tuple[Candidate, ...]

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

    def __str__(self) -> str:
        head = table((), list(self.found.items()), "<<")
        rows = self._rows(self.forward) + ([] if self.newton else [UNTRIED])
        rows += [("gradient",), *self._rows(self.gradient)]
        body = table(HEAD, rows, "<>>><")
        last = body.index(HEAD[3]) + len(HEAD[3]) + 2
        return f"{_folded(head, max(map(len, self.found)) + 2)}\n\n{_folded(body, last)}"

    def _rows(self, found: tuple[Candidate, ...]) -> list[tuple[str, ...]]:
        """The chosen candidate first, then the fastest."""
        chosen, plain = found[0], baseline(found)
        rows: list[tuple[str, ...]] = []
        for one in sorted(found, key=lambda one: (one is not chosen, one.seconds)):
            faster, why = self._verdict(one, plain)
            verdict = ": ".join(filter(None, ("chosen" if one is chosen else faster, why)))
            numbers = count(one.cost.depth), seconds(one.seconds)
            rows.append((f"  {one.name}", *numbers, f"{plain.seconds / one.seconds:.2f}x", verdict))
        return rows

    def _verdict(self, one: Candidate, plain: Candidate) -> tuple[str, str]:
        """Whether it is faster or slower than the sequential program, and why."""
        if one is plain:
            return "", ""
        if one.seconds < plain.seconds:
            if plain.cost.depth <= 1.2 * one.cost.depth:
                return "faster", "cheaper steps"
            return "faster", "less depth" if self.device.platform == "cpu" else "fewer launches"
        more = one.cost.work / max(plain.cost.work, 1)
        return "slower", f"{digits(more)}x the work" if more > 1.2 else ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What "auto" takes and why, and what each candidate is predicted to take. Printed, a table.

    Attributes:
        layers: the chains and single layers in a list of layers, as `deeppcr.layers.describe`
            returns them; None for a `Chain`.
        chains: the plan of each chain: a list of layers may form several. All properties except the
            speedups are those of ``main``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
        >>> plan = deeppcr.plan(chain, jnp.zeros(64), device="H200")
        >>> plan.predicted_speedup > 2
        True
    """

    layers: Description | None
    chains: tuple[ChainPlan, ...]

    @property
    def main(self) -> ChainPlan:
        """The plan of the chain whose sequential program takes longest, with its candidates."""
        return max(self.chains, key=lambda chain: chain.sequential.seconds)

    @property
    def method(self) -> Method:
        """What "auto" takes, as a value of ``method=``; with a sample, what it should take."""
        return self.main.forward[0].method

    @property
    def adjoint(self) -> AdjointOption:
        """What "auto" takes, as a value of ``adjoint=``."""
        return self.main.gradient[0].adjoint

    @property
    def predicted_speedup(self) -> float:
        """Speedup of the forward pass over the sequential program, of all chains together."""
        return _speedup([chain.forward for chain in self.chains])

    @property
    def gradient_speedup(self) -> float:
        """Speedup of forward and backward pass over jax's own gradient, of all chains together."""
        return _speedup([chain.gradient for chain in self.chains])

    def __str__(self) -> str:
        layers = [_folded(str(self.layers), 4)] if self.layers else []
        return "\n\n".join([*layers, *map(str, self.chains)])


def _speedup(found: Sequence[Sequence[Candidate]]) -> float:
    plain = sum(baseline(candidates).seconds for candidates in found)
    return plain / sum(candidates[0].seconds for candidates in found)


def _folded(text: str, indent: int) -> str:
    """The text, whose long lines go on in the next one, indented."""
    fold = textwrap.TextWrapper(
        COLUMNS, subsequent_indent=" " * indent, break_on_hyphens=False
    ).fill
    return "\n".join(map(fold, text.splitlines()))


def digits(ratio: float) -> str:
    """A ratio with two digits or more: 0.65, 104."""
    return f"{ratio:.2g}" if ratio < 10 else count(ratio)
