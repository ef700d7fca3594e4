"""`Plan`: the choice of a method and its reason, the structure of a chain. Printed, a table."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from deeppcr._plan.candidate import AUTODIFF, Candidate, busy_seconds, is_whole, speedup
from deeppcr._plan.choose import MARGIN, NEAR
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

SHOWN = 3  # rows of a printed table
GIVEN = "as given"  # the source of a number of iterations that the caller knows
OF_AFFINE = "the step is affine in its state"  # which shapes alone show
OF_LIST = "of deeppcr.stack(layers); a list compiles faster and runs slower: see deeppcr.forward"
HEAD = ("forward", "depth", "work", "traffic", "memory", "predicted", "measured", "speedup")
MEASURED = HEAD.index("measured")


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """The plan of one chain. Printed, the choice, its structure, and the best candidates.

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
        expectation: the source of the number of iterations.
        samples: what Newton's method did on a sample of the chain, by linearisation.
        forward: the candidates for a forward pass, the best first.
        gradient: the candidates for a forward and a backward pass, the best first.
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
    iterations: int
    expectation: str
    samples: Mapping[str, Sample]
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
        """The best candidate for a forward pass by Newton's method."""
        return next((one for one in self.forward if isinstance(one.method, Newton)), None)

    @property
    def assumption(self) -> str:
        """What the speedup of the chosen method rests on without having been tried; or empty."""
        best = self.forward[0]
        if not isinstance(best.method, Newton) or best.measured is not None:
            return ""
        tried = str(best.method.linearize) in self.samples
        if tried or self.expectation == GIVEN:
            return ""
        if self.expectation == OF_AFFINE:
            return "if the chain does not amplify rounding errors"
        return "if the chain forgets its past"

    def __str__(self) -> str:
        return self._printed(SHOWN)

    def table(self) -> str:
        """The structure of the chain, and one row for each candidate."""
        return self._printed(None)

    def _printed(self, most: int | None) -> str:
        """With so many rows for a forward pass, and as many for a gradient; None for all."""
        forward, gradient = (self._by_time(kind, most) for kind in (self.forward, self.gradient))
        rows = self._rows(forward, self.forward, self.sequential)
        rows += [("gradient",), *self._rows(gradient, self.gradient, self.autodiff)]
        header: tuple[str, ...] = HEAD
        if not any(candidate.measured for candidate in (*self.forward, *self.gradient)):
            header, *rows = (row[:MEASURED] + row[MEASURED + 1 :] for row in (header, *rows))
        head = table((), list(self._found().items()), "<<")
        text = f"{head}\n\n{table(header, rows, '<' + '>' * (len(header) - 1) + '<')}"
        more = len(self.forward) + len(self.gradient) - len(forward) - len(gradient)
        return f"{text}\n{more} more: plan.table()" if more else text

    def _promise(self) -> str:
        """The choice and its speedups, and what they rest on."""
        best, gradient = self.forward[0], self.gradient[0]
        text = best.name
        if not best.is_sequential:
            text += f": {speedup(best, self.sequential):.1f}x"
            if self.assumption:
                text += f" {self.assumption}"
            if best.iterations and best.measured is None:
                slower = best.seconds + best.iterations * best.iteration_seconds
                twice = self.sequential.seconds / slower
                text += f" ({twice:.1f}x at twice the iterations)"
        if gradient.is_sequential:
            return text
        adjoint = gradient.name.partition(" / ")[2]
        return f"{text}; gradient {speedup(gradient, self.autodiff):.1f}x by {adjoint}"

    def _found(self) -> dict[str, str]:
        """The structure of the chain, and how Newton's method solves it."""
        batch = f", a batch of {self.batch}" if self.layout.batch_shape else ""
        rows = {
            "chosen": self._promise(),
            "chain": f"{self.length} steps, a state of {self.width} entries{batch}",
            "structure": str(self.structure),
        }
        if self.newton and isinstance(self.newton.method, Newton):
            choice = self.choice
            kind = "exact: Newton's method"
            if not choice.is_exact:
                kind = "not exact: a quasi-Newton method"
            full = self.length * self.width**2 * self.batch * self.layout.dtype.itemsize
            at_once = "all" if choice.window == self.length else str(choice.window)
            rows |= {
                "linearize": f"{choice.linearization} ({kind})",
                "blocks": f"{self.nbytes:,} bytes; full Jacobians of all steps: {full:,}",
                "window": f"{at_once} steps at once",
            }
            if choice.reason:
                rows["because"] = choice.reason
            rows["solver"] = name_of(self.newton.method.linear)
            rows["iterations"] = f"{self.newton.iterations} ({self.expectation})"
        if self.left_to_jax:
            rows["note"] = self.left_to_jax
        elif self.is_listed:
            rows["note"] = OF_LIST
        if self.sharding:
            each = -(-self.length // self.sharding.size)
            along = f"{self.sharding.size} along {self.sharding.mesh_axis!r}"
            rows["devices"] = f"{along}, up to {each} steps on each"
        return rows | {"device": self.device.name}

    def _by_time(self, found: tuple[Candidate, ...], most: int | None) -> list[Candidate]:
        """The fastest candidates, the chosen one among them; those that do not fit are last."""
        order = sorted(range(len(found)), key=lambda i: (not self._fits(found[i]), found[i].time))[
            :most
        ]
        if 0 not in order:
            order[-1] = 0
        return [found[i] for i in order]

    def _rows(
        self, shown: list[Candidate], found: tuple[Candidate, ...], sequential: Candidate
    ) -> list[tuple[str, ...]]:
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
            for candidate in shown
        ]

    def _verdict(
        self, candidate: Candidate, found: tuple[Candidate, ...], sequential: Candidate
    ) -> str:
        best = found[0]
        known = [each for each in found if self._fits(each) and not each.on_request]
        faster = [each for each in known if each.time < best.time]
        if candidate is not best:
            return reason(candidate, best, sequential, self.device)
        if best is not sequential:
            why = f", in less memory than what takes up to {NEAR:.2g}x less time" if faster else ""
            return f"chosen: {reason(best, best, sequential, self.device)}{why}"
        if len(found) == 1:
            return "chosen: the only one"
        if best.adjoint and is_whole(best, self.device):
            return "chosen: each of its loops is one function"
        if any(each.method == self.forward[0].method for each in faster if each.adjoint):
            return f"chosen: others gain less than {1 / MARGIN:.2g}x, which is not reliable"
        return "chosen: the least time"

    def _fits(self, candidate: Candidate) -> bool:
        """Whether it fits into the memory of the device."""
        return candidate.is_sequential or not candidate.memory > self.device.memory > 0

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
    """Which method and adjoint pay off, and why. Printed, the choice and the best candidates.

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

    def table(self) -> str:
        """The plan as text with all candidates, by time; ``str(plan)`` has three of each kind.

        The columns are depth (operations on unlimited processors), work (operations), traffic and
        memory (bytes), the predicted and, after trials, the measured time (seconds), the speedup,
        and the reason.

        Example:
            >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.zeros((4096, 64)))
            >>> plan = deeppcr.plan(chain, jnp.zeros(64), device="H200")
            >>> len(plan.table().splitlines()) > len(str(plan).splitlines())
            True
        """
        return self._joined([chain.table() for chain in self.chains])

    def __str__(self) -> str:
        return self._joined(list(map(str, self.chains)))

    def _joined(self, chains: list[str]) -> str:
        return "\n\n".join([*([str(self.layers)] if self.layers else []), *chains])


def reason(candidate: Candidate, best: Candidate, sequential: Candidate, device: Device) -> str:
    """Why a candidate wins or loses against the sequential program."""
    if candidate is sequential:
        return ""
    more = candidate.cost.work / max(sequential.cost.work, 1)
    less = sequential.cost.depth / max(candidate.cost.depth, 1)
    if candidate.memory > device.memory > 0:
        return f"{nbytes(candidate.memory)} do not fit into {nbytes(device.memory)}"
    if candidate.on_request:
        return "taken on request only"
    if candidate is best:
        if less > 1:
            return f"{less:.3g}x less depth pays for {more:.3g}x the arithmetic"
        return "less to wait for in every step"
    if candidate.time < best.time and candidate.method != best.method:
        return "its forward pass alone does not pay"
    if speedup(candidate, sequential) > 1:
        if best is sequential:
            if best.adjoint and is_whole(best, device):
                return "a loop that is one function is not beaten"
            return f"predicted speedups below {1 / MARGIN:.2g}x are not reliable"
        return "pays off, but less"
    busy = busy_seconds(candidate.cost, device)
    if busy > sequential.time:
        return f"{device.name} cannot pay for {more:.3g}x the arithmetic"
    return f"waits for {seconds(candidate.time - busy)} besides its arithmetic"
