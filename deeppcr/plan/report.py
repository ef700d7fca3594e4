"""`Plan`: what was scored, what is chosen, and why; printed, a table."""

import dataclasses
import json
from typing import Any

from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.plan.candidates import Candidate, speedup
from deeppcr.plan.choose import PROMISE
from deeppcr.plan.names import Fixed
from depth import Device
from depth.report import count, nbytes, seconds

HEAD = ("", "depth", "work", "traffic", "memory", "predicted", "measured", "speedup", "")


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """The plan of one chain.

    Attributes:
        length: L.
        width: w, the entries of a state of one example.
        examples: how many there are.
        device: what times are predicted for.
        iterations: of Newton's method, that are expected with exact Jacobians.
        expectation: where that number comes from.
        forward: the candidates for a forward pass, the best one first.
        gradient: those for a forward and a backward pass, the best one first.
    """

    length: int
    width: int
    examples: int
    device: Device
    iterations: int
    expectation: str
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

    def __str__(self) -> str:
        examples = f", {self.examples} examples" if self.examples > 1 else ""
        lines = [
            f"{self.length:,} steps, a state of {self.width} entries{examples}, on {self.device.name}",
            f"Newton is expected to take {self.iterations} iterations ({self.expectation})",
        ]
        rows = [("forward", *HEAD[1:]), *self._rows(self.forward, self.sequential)]
        rows += [("gradient", *[""] * 8), *self._rows(self.gradient, self.autodiff)]
        measured = any(row[6] for row in rows[1:])
        rows = [row if measured else (*row[:6], *row[7:]) for row in rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
        for row in rows:
            cells = [
                f"{row[0]:<{widths[0]}}",
                *(f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:], strict=True)),
            ]
            lines.append("  ".join([*cells, row[-1]]).rstrip())
        return "\n".join(lines)

    def _rows(self, found: tuple[Candidate, ...], sequential: Candidate) -> list[tuple[str, ...]]:
        rows = []
        for candidate in found:
            amount = candidate.amount
            cells = [
                count(amount.depth),
                count(amount.work),
                nbytes(amount.traffic),
                nbytes(candidate.memory),
            ]
            cells += [
                seconds(candidate.seconds),
                seconds(candidate.measured) if candidate.measured else "",
            ]
            cells.append(f"{speedup(candidate, sequential):.2f}x")
            rows.append(
                ("  " + candidate.name, *cells, self._verdict(candidate, found, sequential))
            )
        return rows

    def _verdict(
        self, candidate: Candidate, found: tuple[Candidate, ...], sequential: Candidate
    ) -> str:
        best = found[0]
        if (
            candidate is best is sequential
        ):  # then why nothing else: what is wrong with the next one
            rivals = [rival for rival in found if rival is not sequential]
            return "chosen" + (
                f": {reason(rivals[0], best, sequential, self.device)}" if rivals else ""
            )
        return ("chosen: " if candidate is best else "") + reason(
            candidate, best, sequential, self.device
        )

    def _json(
        self, candidate: Candidate, found: tuple[Candidate, ...], sequential: Candidate
    ) -> dict[str, Any]:
        return {
            "name": candidate.name,
            "depth": candidate.amount.depth,
            "work": candidate.amount.work,
            "bytes": candidate.amount.traffic,
            "memory": candidate.memory,
            "predicted_seconds": candidate.seconds,
            "measured_seconds": candidate.measured,
            "speedup": speedup(candidate, sequential),
            "iterations": candidate.iterations,
            "verdict": self._verdict(candidate, found, sequential),
        }

    def to_json(self) -> dict[str, Any]:
        """All of it as numbers and words."""
        return {
            "length": self.length,
            "width": self.width,
            "examples": self.examples,
            "device": self.device.name,
            "iterations": self.iterations,
            "expectation": self.expectation,
            "forward": [
                self._json(candidate, self.forward, self.sequential) for candidate in self.forward
            ],
            "gradient": [
                self._json(candidate, self.gradient, self.autodiff) for candidate in self.gradient
            ],
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which method and which adjoint pay off, and why; printed, a table of all candidates.

    Attributes:
        chains: the plan of every chain; layers may make several. What follows is of the one that takes longest.
    """

    chains: tuple[ChainPlan, ...]

    @property
    def main(self) -> ChainPlan:
        """The plan of the chain whose sequential program takes longest."""
        return max(self.chains, key=lambda chain: chain.sequential.time)

    @property
    def method(self) -> Fixed:
        """What to pass as ``method``: what "auto" takes."""
        return self.main.forward[0].method

    @property
    def adjoint(self) -> Adjoint | Backpropagation | Autodiff:
        """What to pass as ``adjoint``: what "auto" takes."""
        chosen = self.main.gradient[0].adjoint
        return Autodiff() if chosen is None else chosen

    @property
    def predicted_speedup(self) -> float:
        """How many times faster than the sequential program what is chosen runs forward; 1 if that is chosen."""
        return self._speedup("forward", "sequential")

    @property
    def gradient_speedup(self) -> float:
        """The same of a forward and a backward pass, against jax's own."""
        return self._speedup("gradient", "autodiff")

    @property
    def depth_speedup(self) -> float:
        """How many times less depth than the sequential program the shallowest candidate has: what unlimited processors gain."""
        chain = self.main
        return chain.sequential.amount.depth / max(
            1, min(candidate.amount.depth for candidate in chain.forward)
        )

    def _speedup(self, direction: str, sequential: str) -> float:
        before = sum(getattr(chain, sequential).time for chain in self.chains)
        return float(before / sum(getattr(chain, direction)[0].time for chain in self.chains))

    def to_json(self) -> str:
        """All of it as JSON."""
        scores = {
            name: getattr(self, name)
            for name in ("predicted_speedup", "gradient_speedup", "depth_speedup")
        }
        chosen = {"method": str(self.method), "adjoint": str(self.adjoint)}
        return json.dumps(
            {**chosen, **scores, "chains": [chain.to_json() for chain in self.chains]}
        )

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.chains))


def reason(candidate: Candidate, best: Candidate, sequential: Candidate, device: Device) -> str:
    """Why a candidate wins or loses against the sequential program, in words."""
    if candidate is sequential:
        return ""
    more = candidate.amount.work / max(sequential.amount.work, 1)
    less = sequential.amount.depth / max(candidate.amount.depth, 1)
    if candidate.memory > device.memory > 0:
        return f"{nbytes(candidate.memory)} do not fit into {nbytes(device.memory)}"
    if candidate is best:
        return (
            f"{less:.3g}x less depth pays for {more:.3g}x the arithmetic"
            if less > 1
            else "less to wait for in every step"
        )
    if candidate.time < best.time and candidate.method != best.method:
        return "its forward pass alone does not pay"
    if speedup(candidate, sequential) > 1:
        return (
            f"less than {1 / PROMISE:.2g}x is not to be relied upon"
            if best is sequential
            else "pays off, but less"
        )
    busy = candidate.amount.busy_seconds(device)
    if busy > sequential.time:
        return f"{device.name} cannot pay for {more:.3g}x the arithmetic"
    return f"waits for {seconds(candidate.time - busy)} beside its arithmetic"
