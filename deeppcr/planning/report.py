"""`Plan`: what "auto" takes and why, the structure of a chain, predicted times."""

import dataclasses

from deeppcr.axis import ChainSharding
from deeppcr.choose import AdjointOption, Method
from deeppcr.layers.segments import Description as LayersFound
from deeppcr.linear import name_of
from deeppcr.linearize import Choice
from deeppcr.newton import Newton
from deeppcr.planning.candidates import Candidate
from deeppcr.planning.sample import Sample
from deeppcr.state import StateLayout
from deeppcr.structure import Structure
from depth import Device
from depth.report import count, nbytes, seconds, table

GIVEN = "as given"  # the source of a number of iterations that the caller knows
OF_AFFINE = "the step is affine in its state"  # which shapes alone show
USUAL = "usual for chains that forget their past"
OF_LIST = "of deeppcr.stack(layers); a list compiles faster and runs slower: see deeppcr.forward"
HEAD = ("forward", "depth", "work", "traffic", "predicted", "speedup", "")


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """The plan of one chain. Printed, the choice, its structure, and the candidates.

    Attributes:
        length: L.
        layout: of its state.
        structure: which entries of the state influence each other, as its program proves.
        choice: the linearisation of Newton's method, its window, and the reason.
        nbytes: bytes of all Jacobian blocks in a window.
        sharding: the devices that share the chain; None for one device.
        left_to_jax: why the chain, or its derivative, is left to jax; empty if neither is.
        device: the device that times are predicted for.
        reason: why the method is chosen.
        expectation: the source of the number of iterations.
        sample: what Newton's method did on the first steps; None if it was not tried.
        forward: the candidates for a forward pass, the chosen one first.
        gradient: the candidates for a forward and a backward pass, the chosen one first.
        is_listed: whether it is a chain of listed layers on a CPU, where "auto" compiles quickly.
    """

    length: int
    layout: StateLayout
    structure: Structure
    choice: Choice
    nbytes: int
    sharding: ChainSharding | None
    left_to_jax: str
    device: Device
    reason: str
    expectation: str
    sample: Sample | None
    forward: tuple[Candidate, ...]
    gradient: tuple[Candidate, ...]
    is_listed: bool = False

    @property
    def width(self) -> int:
        """w, the entries of a state of one example."""
        return self.layout.width

    @property
    def batch(self) -> int:
        """The number of examples."""
        return self.layout.batch_size

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
        """The candidate for a forward pass by Newton's method; None if there is none."""
        return next((one for one in self.forward if isinstance(one.method, Newton)), None)

    def __str__(self) -> str:
        rows = self._rows(self.forward, self.sequential)
        rows += [("gradient",), *self._rows(self.gradient, self.autodiff)]
        head = table((), list(self._found().items()), "<<")
        return f"{head}\n\n{table(HEAD, rows, '<' + '>' * (len(HEAD) - 2) + '<')}"

    def _promise(self) -> str:
        """The choice and its speedups, and what they rest on."""
        best, gradient = self.forward[0], self.gradient[0]
        text = best.name
        if not best.is_sequential:
            text += f": {self.sequential.seconds / best.seconds:.2g}x"
            if best.iterations and self.expectation == USUAL:
                text += " if the chain forgets its past"
            if best.iterations and self.expectation == OF_AFFINE:
                text += " if the chain does not amplify rounding errors"
        if gradient.is_sequential:
            return text
        by = gradient.name.partition(" / ")[2]
        return f"{text}; gradient {self.autodiff.seconds / gradient.seconds:.2g}x by {by}"

    def _found(self) -> dict[str, str]:
        """The choice, the structure of the chain, and how Newton's method would solve it."""
        batch = f", a batch of {self.batch}" if self.layout.batch_shape else ""
        rows = {
            "chosen": self._promise(),
            "because": self.reason,
            "chain": f"{self.length} steps, a state of {self.width} entries{batch}",
            "structure": str(self.structure),
        }
        if self.newton:
            method, choice = self.newton.method, self.choice
            assert isinstance(method, Newton)
            kind = "exact: Newton's method"
            if not choice.is_exact:
                kind = "not exact: a quasi-Newton method"
            at_once = "all" if choice.window == self.length else str(choice.window)
            rows |= {
                "linearize": f"{choice.linearization} ({kind})",
                "blocks": f"{self.nbytes:,} bytes",
                "window": f"{at_once} steps at once",
            }
            if choice.reason:
                rows["window"] += f": {choice.reason}"
            rows["solver"] = name_of(method.linear)
            rows["iterations"] = f"{self.newton.iterations} ({self.expectation})"
        if self.left_to_jax and self.left_to_jax != self.reason:
            rows["note"] = self.left_to_jax
        elif self.is_listed:
            rows["note"] = OF_LIST
        if self.sharding:
            each = -(-self.length // self.sharding.size)
            along = f"{self.sharding.size} along {self.sharding.mesh_axis!r}"
            rows["devices"] = f"{along}, up to {each} steps on each"
        return rows | {"device": self.device.name}

    def _rows(self, found: tuple[Candidate, ...], sequential: Candidate) -> list[tuple[str, ...]]:
        first, *others = found
        return [
            (
                f"  {candidate.name}",
                count(candidate.cost.depth),
                count(candidate.cost.work),
                nbytes(candidate.cost.traffic),
                seconds(candidate.seconds),
                f"{sequential.seconds / candidate.seconds:.2f}x",
                self._verdict(candidate, first, sequential),
            )
            for candidate in (first, *sorted(others, key=lambda one: one.seconds))
        ]

    def _verdict(self, candidate: Candidate, chosen: Candidate, sequential: Candidate) -> str:
        """In words: what is chosen, and what makes others faster or slower."""
        mark = "chosen" if candidate is chosen else ""
        if candidate is sequential:
            return mark
        more = candidate.cost.work / max(sequential.cost.work, 1)
        less = sequential.cost.depth / max(candidate.cost.depth, 1)
        if candidate.seconds < sequential.seconds:
            why = f"{less:.2g}x less depth" if less > 1.05 else "less to wait for in every step"
            why = f"faster: {why}"
        else:
            why = (
                f"slower: {more:.2g}x the arithmetic" if more > 1.2 else "slower: more to wait for"
            )
        return f"{mark}; {why}" if mark else why


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

    layers: LayersFound | None
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
        return self._speedup("forward", "sequential")

    @property
    def gradient_speedup(self) -> float:
        """Speedup of forward and backward pass over jax's own gradient, of all chains together."""
        return self._speedup("gradient", "autodiff")

    @property
    def depth_speedup(self) -> float:
        """Speedup of the candidate of least depth on unlimited processors: the ratio of depths."""
        least = min(candidate.cost.depth for candidate in self.main.forward)
        return self.main.sequential.cost.depth / max(1, least)

    def _speedup(self, direction: str, sequential: str) -> float:
        before = sum(getattr(chain, sequential).seconds for chain in self.chains)
        return float(before / sum(getattr(chain, direction)[0].seconds for chain in self.chains))

    def __str__(self) -> str:
        chains = map(str, self.chains)
        return "\n\n".join([*([str(self.layers)] if self.layers else []), *chains])
