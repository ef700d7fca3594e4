"""What all tables have in common: outputs by a scan, and the gradient of their mean square."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

import deeppcr
import depth
from experiments.bench.engine import AUTO, Case, bench
from experiments.bench.programs import Scan, baselines, fused
from experiments.bench.table import Row
from experiments.bench.timing import Effort

Outputs = Callable[..., Array]  # of the arguments


@dataclass(frozen=True)
class Problem:
    """A recurrent program of one size.

    Attributes:
        labels: its first cells: part, kind, w, L, batch.
        outputs: makes the outputs, a function of the arguments, from a scan.
        arguments: tuples of them; the gradient is by the first.
        others: programs beside `jax.lax.scan` and the default.
        direction: "gradient" or "forward".
    """

    labels: Row
    outputs: Callable[[Scan], Outputs]
    arguments: list[tuple[Any, ...]]
    others: Mapping[str, Any] = field(default_factory=dict)
    direction: str = "gradient"

    def program(self, scan: Scan) -> Callable[..., Any]:
        """What is timed."""
        outputs = self.outputs(scan)
        return outputs if self.direction == "forward" else gradient(outputs)

    def case(self) -> Case:
        """Loops, the default, and what else there is."""
        loops = baselines(self.program, self.labels["L"], longest=0)
        return Case(
            {**self.labels, "direction": self.direction},
            self.arguments,
            loops | fused(self.program, self.arguments[0], batch_ndim=1),
            {AUTO: self.program(deeppcr.scan), **self.others},
        )

    def alone(self) -> "Problem":
        """Without other programs."""
        return replace(self, others={})

    def rows(self, device: depth.Device, effort: Effort) -> Iterator[Row]:
        """The rows of the case; that of the default says what the plan has chosen."""
        for row in bench(self.case(), device, effort):
            yield row | ({"chosen": self.chosen()} if row["program"] == AUTO else {})

    def chosen(self) -> str:
        """What the plans of its scans choose, each once."""
        plans: list[deeppcr.Plan] = []

        def planned(f: Any, init: Any, xs: Any) -> Any:
            plans.append(deeppcr.plan(f, init, xs))
            return lax.scan(f, init, xs)

        jax.eval_shape(self.outputs(planned), *self.arguments[0])
        return ", ".join(dict.fromkeys(getattr(plan, self.direction)[0].name for plan in plans))


def gradient(outputs: Outputs) -> Callable[..., Any]:
    """The mean square of outputs, and its gradient by the first argument."""
    return jax.value_and_grad(lambda *arguments: jnp.square(outputs(*arguments)).mean())


def checkpointed(f: Callable[..., Any], init: Any, xs: Any, most: int = 32) -> Any:
    """`jax.lax.scan` in nested loops, the inner one of up to 32 steps below a `jax.checkpoint`.

    Their number is the largest one that divides the length.
    """
    length = len(jax.tree.leaves(xs)[0])
    every = max(m for m in range(1, most + 1) if length % m == 0)
    parts = jax.tree.map(lambda x: x.reshape(-1, every, *x.shape[1:]), xs)
    inner = jax.checkpoint(partial(lax.scan, f), prevent_cse=False)
    carry, ys = lax.scan(inner, init, parts)
    return carry, jax.tree.map(lambda y: y.reshape(length, *y.shape[2:]), ys)
