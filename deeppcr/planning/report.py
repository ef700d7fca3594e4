"""`Plan`: what "auto" takes and why, the structure of a chain, predicted times."""

import dataclasses
from collections.abc import Mapping

from deeppcr.adjoint import Autodiff
from deeppcr.choose import AdjointOption, Method
from deeppcr.layers import Description
from deeppcr.linearize import Choice
from deeppcr.newton import Newton
from deeppcr.planning.instance import name_of_pair
from deeppcr.sequential import Sequential
from deeppcr.structure import Structure
from depth import Cost, Device
from depth.report import count, nbytes, seconds, table

HEAD = ("forward", "depth", "work", "traffic", "predicted", "speedup", "")
UNTRIED = ("  Newton", *[""] * 5, "not tried: Newton cannot win here")


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

    @property
    def is_sequential(self) -> bool:
        """Whether it is the sequential program, and jax's own derivative of it."""
        return self.method == Sequential() and self.adjoint in (None, Autodiff())

    def verdict(self, sequential: "Candidate", platform: str | None) -> str:
        """In words, what makes it faster or slower than the sequential program."""
        if self is sequential:
            return ""
        if self.seconds < sequential.seconds:
            if sequential.cost.depth <= 1.2 * self.cost.depth:
                return "faster: less to wait for in a step"
            return f"faster: fewer {'operations in order' if platform == 'cpu' else 'launches'}"
        more = self.cost.work / max(sequential.cost.work, 1)
        return f"slower: {digits(more)} times the arithmetic" if more > 1.2 else "slower"


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
        return next(candidate for candidate in self.forward if candidate.is_sequential)

    @property
    def autodiff(self) -> Candidate:
        """The sequential program with jax's own derivatives."""
        return next(candidate for candidate in self.gradient if candidate.is_sequential)

    @property
    def newton(self) -> Candidate | None:
        """The candidate for a forward pass by Newton's method; None if it is not tried."""
        return next((one for one in self.forward if isinstance(one.method, Newton)), None)

    def __str__(self) -> str:
        rows = self._rows(self.forward, self.sequential) + ([] if self.newton else [UNTRIED])
        rows += [("gradient",), *self._rows(self.gradient, self.autodiff)]
        head = table((), list(self.found.items()), "<<")
        return f"{head}\n\n{table(HEAD, rows, '<>>>>><')}"

    def _rows(self, found: tuple[Candidate, ...], sequential: Candidate) -> list[tuple[str, ...]]:
        """The chosen candidate first, then the fastest."""
        first, *others = found
        rows: list[tuple[str, ...]] = []
        for one in (first, *sorted(others, key=lambda one: one.seconds)):
            numbers = count(one.cost.depth), count(one.cost.work), nbytes(one.cost.traffic)
            speedup = f"{sequential.seconds / one.seconds:.2f}x"
            said = ["chosen"] * (one is first) + [one.verdict(sequential, self.device.platform)]
            verdict = "; ".join(filter(None, said))
            rows.append((f"  {one.name}", *numbers, seconds(one.seconds), speedup, verdict))
        return rows


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
        >>> isinstance(plan.method, deeppcr.Newton), plan.predicted_speedup > 2
        (True, True)
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
        before = sum(chain.sequential.seconds for chain in self.chains)
        return before / sum(chain.forward[0].seconds for chain in self.chains)

    @property
    def gradient_speedup(self) -> float:
        """Speedup of forward and backward pass over jax's own gradient, of all chains together."""
        before = sum(chain.autodiff.seconds for chain in self.chains)
        return before / sum(chain.gradient[0].seconds for chain in self.chains)

    @property
    def depth_speedup(self) -> float:
        """Speedup of the candidate of least depth on unlimited processors: the ratio of depths."""
        least = min(candidate.cost.depth for candidate in self.main.forward)
        return self.main.sequential.cost.depth / max(1, least)

    def __str__(self) -> str:
        return "\n\n".join(map(str, [*([self.layers] if self.layers else []), *self.chains]))


def digits(ratio: float) -> str:
    """A ratio with two digits or more: 0.65, 104."""
    return f"{ratio:.2g}" if ratio < 10 else count(ratio)
