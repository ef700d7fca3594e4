"""`Plan`: the structure of a chain, the choice of a method, and its reason. Printed, a table."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from deeppcr._plan.candidates import AUTODIFF, Candidate, busy_seconds, speedup
from deeppcr._plan.choose import MARGIN
from deeppcr._plan.names import Fixed
from deeppcr.adjoint import Adjoint
from deeppcr.axis import ChainSharding
from deeppcr.layers.segments import Description as LayersFound
from deeppcr.linear import name_of
from deeppcr.linearize import Choice
from deeppcr.newton import Newton
from deeppcr.newton.sample import Sample
from deeppcr.state import StateLayout
from deeppcr.structure import Structure
from depth import Device
from depth.report import count, nbytes, seconds, table

HEAD = ("forward", "depth", "work", "traffic", "memory", "predicted", "measured", "speedup")
MEASURED = HEAD.index("measured")


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """The plan of one chain. Printed, its structure and one row for each candidate.

    Attributes:
        length: L.
        layout: of its state.
        structure: which entries of the state influence each other, as its program proves.
        choice: the linearisation of Newton's method, its window, and the reason.
        nbytes: bytes of all Jacobian blocks in a window.
        sharding: the devices that share the chain; None for one device.
        left_to_jax: why only the sequential program, or jax's own derivative of it, is a candidate;
            empty if there are others.
        device: the device that times are predicted for.
        iterations: the expected number of Newton iterations with exact Jacobians.
        expectation: the source of that number, without a sample.
        samples: what Newton's method did on a sample of the chain, by linearisation.
        forward: the candidates for a forward pass, the best first.
        gradient: the candidates for a forward and a backward pass, the best first.
    """

    length: int
    layout: StateLayout
    structure: Structure
    choice: Choice
    nbytes: int
    sharding: ChainSharding | None
    left_to_jax: str
    device: Device
    iterations: int
    expectation: str
    samples: Mapping[str, Sample]
    forward: tuple[Candidate, ...]
    gradient: tuple[Candidate, ...]

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
        """The best candidate for a forward pass by Newton's method."""
        return next((one for one in self.forward if isinstance(one.method, Newton)), None)

    def __str__(self) -> str:
        rows = self._rows(self.forward, self.sequential)
        rows += [("gradient",), *self._rows(self.gradient, self.autodiff)]
        header: tuple[str, ...] = HEAD
        if not any(candidate.measured for candidate in (*self.forward, *self.gradient)):
            header, *rows = (row[:MEASURED] + row[MEASURED + 1 :] for row in (header, *rows))
        head = table((), list(self._found().items()), "<<")
        return f"{head}\n\n{table(header, rows, '<' + '>' * (len(header) - 1) + '<')}"

    def _source(self, newton: Candidate) -> str:
        """Where the expected number of iterations of Newton's method comes from."""
        assert isinstance(newton.method, Newton)
        return str(self.samples.get(str(newton.method.linearize), self.expectation))

    def _found(self) -> dict[str, str]:
        """The structure of the chain, and how Newton's method solves it."""
        batch = f", a batch of {self.batch}" if self.layout.batch_shape else ""
        rows = {
            "chain": f"{self.length} steps, a state of {self.width} entries{batch}",
            "structure": str(self.structure),
        }
        if self.newton and isinstance(self.newton.method, Newton):
            choice = self.choice
            every = self.newton.method.jacobian_every
            kept = f", kept for {every} iterations" if every > 1 else ""
            kind = "exact: Newton's method"
            if not choice.is_exact or kept:
                kind = "not exact: a quasi-Newton method"
            full = self.length * self.width**2 * self.batch * self.layout.dtype.itemsize
            at_once = "all" if choice.window == self.length else str(choice.window)
            rows |= {
                "linearize": f"{choice.linearization}{kept} ({kind})",
                "blocks": f"{self.nbytes:,} bytes; full Jacobians of all steps: {full:,}",
                "window": f"{at_once} steps at once",
            }
            if choice.reason:
                rows["because"] = choice.reason
            rows["solver"] = name_of(self.newton.method.linear)
            rows["iterations"] = f"{self.newton.iterations} ({self._source(self.newton)})"
        if self.left_to_jax:
            rows["note"] = self.left_to_jax
        if self.sharding:
            each = -(-self.length // self.sharding.size)
            along = f"{self.sharding.size} along {self.sharding.mesh_axis!r}"
            rows["devices"] = f"{along}, up to {each} steps on each"
        return rows | {"device": self.device.name}

    def _rows(self, found: tuple[Candidate, ...], sequential: Candidate) -> list[tuple[str, ...]]:
        return [
            (
                f"  {candidate.name}",
                count(candidate.cost.depth),
                count(candidate.cost.work),
                nbytes(candidate.cost.traffic),
                nbytes(candidate.memory),
                seconds(candidate.seconds),
                seconds(candidate.measured) if candidate.measured else "",
                f"{speedup(candidate, sequential):.2f}x",
                self._verdict(candidate, found, sequential),
            )
            for candidate in found
        ]

    def _verdict(
        self, candidate: Candidate, found: tuple[Candidate, ...], sequential: Candidate
    ) -> str:
        best = found[0]
        if candidate is not best:
            return reason(candidate, best, sequential, self.device)
        if best is not sequential:
            return f"chosen: {reason(best, best, sequential, self.device)}"
        rivals = [rival for rival in found if rival is not sequential]
        if not rivals:
            return "chosen"
        # Why the next one loses.
        return f"chosen: {reason(rivals[0], best, sequential, self.device)}"

    def to_json(self) -> dict[str, Any]:
        """The plan as a dict of numbers and strings."""
        directions = {"forward": self.sequential, "gradient": self.autodiff}
        return {
            "length": self.length,
            "width": self.width,
            "batch": self.batch,
            "found": self._found(),
            "device": self.device.name,
            "iterations": self.iterations,
            "expectation": self.expectation,
        } | {
            direction: [
                {
                    "name": candidate.name,
                    "depth": candidate.cost.depth,
                    "work": candidate.cost.work,
                    "bytes": candidate.cost.traffic,
                    "memory": candidate.memory,
                    "predicted_seconds": candidate.seconds,
                    "measured_seconds": candidate.measured,
                    "speedup": speedup(candidate, sequential),
                    "iterations": candidate.iterations,
                    "verdict": self._verdict(candidate, getattr(self, direction), sequential),
                }
                for candidate in getattr(self, direction)
            ]
            for direction, sequential in directions.items()
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which method and adjoint pay off, and why. Printed, a table of all candidates.

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
        return max(self.chains, key=lambda chain: chain.sequential.time)

    @property
    def method(self) -> Fixed:
        """The best method, as a value of ``method=``; the choice of "auto"."""
        return self.main.forward[0].method

    @property
    def adjoint(self) -> Adjoint | str:
        """The best adjoint, as a value of ``adjoint=``; the choice of "auto"."""
        return self.main.gradient[0].adjoint or AUTODIFF

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
        before = sum(getattr(chain, sequential).time for chain in self.chains)
        return float(before / sum(getattr(chain, direction)[0].time for chain in self.chains))

    def to_json(self) -> str:
        """The plan as a JSON string, times in seconds and sizes in bytes."""
        names = ("predicted_speedup", "gradient_speedup", "depth_speedup")
        chosen = {"method": str(self.method), "adjoint": str(self.adjoint)}
        scores = {name: getattr(self, name) for name in names}
        return json.dumps(chosen | scores | {"chains": [each.to_json() for each in self.chains]})

    def __str__(self) -> str:
        return "\n\n".join(map(str, [*([self.layers] if self.layers else []), *self.chains]))


def reason(candidate: Candidate, best: Candidate, sequential: Candidate, device: Device) -> str:
    """Why a candidate wins or loses against the sequential program."""
    if candidate is sequential:
        return ""
    more = candidate.cost.work / max(sequential.cost.work, 1)
    less = sequential.cost.depth / max(candidate.cost.depth, 1)
    if candidate.memory > device.memory > 0:
        return f"{nbytes(candidate.memory)} do not fit into {nbytes(device.memory)}"
    if candidate is best:
        if less > 1:
            return f"{less:.3g}x less depth pays for {more:.3g}x the arithmetic"
        return "less to wait for in every step"
    if candidate.time < best.time and candidate.method != best.method:
        return "its forward pass alone does not pay"
    if speedup(candidate, sequential) > 1:
        if best is sequential:
            return f"predicted speedups below {1 / MARGIN:.2g}x are not reliable"
        return "pays off, but less"
    busy = busy_seconds(candidate.cost, device)
    if busy > sequential.time:
        return f"{device.name} cannot pay for {more:.3g}x the arithmetic"
    return f"waits for {seconds(candidate.time - busy)} besides its arithmetic"
