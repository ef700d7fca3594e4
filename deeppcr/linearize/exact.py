"""Linearisations by name, and the rule behind the name "auto"."""

import dataclasses
import os
import warnings
from typing import Any

import jax

from deeppcr.arrays import StateLayout
from deeppcr.chain.step import Step
from deeppcr.checks import check_name
from deeppcr.linearize.linearization import BlockDiagonal, Dense, Diagonal, Linearization, constant
from deeppcr.linearize.scalar import Scalar, Zero
from deeppcr.structure import MIXED, find_structure
from depth.report import nbytes

LINEARIZATIONS: dict[str, Linearization] = {
    "dense": Dense(),
    "diagonal": Diagonal(),
    "identity": Scalar(),
    "zero": Zero(),
}
COPIES = 4  # of the blocks in the working memory of a parallel solver
SHORTEST = 64  # steps of a window: shorter ones offer little parallelism


@dataclasses.dataclass(frozen=True)
class LinearizationChoice:
    """How a chain is linearised.

    Attributes:
        linearization: the source of the blocks.
        window: the number of steps that are solved at once.
        is_exact: whether the blocks are proven to be the full derivative.
        reason: why it does not use the exact Jacobians of all steps at once; empty if it does.
        mixes: whether blocks are not exact because examples of a batch influence each other.
    """

    linearization: Linearization
    window: int
    is_exact: bool
    reason: str
    mixes: bool

    def bind(self) -> Linearization:
        """The source of the blocks, for a call, which warns if examples of a batch mix."""
        if self.mixes:
            warnings.warn(
                f"{MIXED}, so the {self.linearization} Jacobian of each is approximate: more "
                "iterations, the same answer. If they do, batch_ndim=0 makes the whole batch one "
                "state. If they do not, jax.vmap around a call for one example shows it.",
                stacklevel=1,  # one place, so that Python shows it once
            )
        return constant(self.linearization)


def find_linearization(linearize: Any) -> Linearization | None:
    """The linearisation itself, or the one of that name; None for "auto"."""
    if isinstance(linearize, Linearization):
        return linearize
    without_name = "BlockDiagonal(k), Diagonal(), Scalar(c), Surrogate(g), Clipped(...)"
    check_name("linearize", linearize, ["auto", *LINEARIZATIONS], without_name)
    return LINEARIZATIONS.get(linearize)


def choose_linearization(
    linearize: str | Linearization,
    step: Step,
    layout: StateLayout,
    length: int,
    window: int | None,
    memory: int | None,
) -> LinearizationChoice:
    """The linearisation and the window for ``length`` steps of a chain.

    "auto" takes the exact Jacobian in the narrowest form that the step's structure proves:
    diagonal, block-diagonal or dense. If the blocks of all steps take more than ``memory`` bytes
    (None: see `memory_budget`), a window slides along the chain. If not even 64 steps fit, it takes
    only the diagonal, which is a quasi-Newton method.
    """
    named = find_linearization(linearize)
    budget = memory_budget() if memory is None else memory
    linearization = named or exact_linearization(step, layout)
    reasons = []
    size = COPIES * max(1, linearization.bytes_per_step(step, layout))
    if (
        named is None
        and window is None
        and length * size > budget
        and budget // size < min(SHORTEST, length)
    ):
        reasons.append(
            f"{length} exact Jacobians would take {nbytes(length * size)} of {nbytes(budget)}, "
            "so only the diagonal is used"
        )
        linearization = Diagonal()
        size = COPIES * max(1, linearization.bytes_per_step(step, layout))
    if window is None and length * size > budget:
        window = max(1, budget // size)
        reasons.append(
            f"all {length} steps would take {nbytes(length * size)} of {nbytes(budget)}, "
            f"so {window} at once"
        )
    is_exact = linearization.is_exact(step, layout)
    is_part = isinstance(linearization, Dense | Diagonal | BlockDiagonal)
    mixes = is_part and find_structure(step, layout).mixes
    return LinearizationChoice(
        linearization, min(length, window or length), is_exact, "; ".join(reasons), mixes
    )


def exact_linearization(step: Step, layout: StateLayout) -> Linearization:
    """The exact Jacobian, in the narrowest form that the step's structure proves."""
    count, size = find_structure(step, layout).groups.shape
    if size == 1:
        return Diagonal()
    return Dense() if count * size**2 * 2 > (count * size) ** 2 else BlockDiagonal(size)


def memory_budget() -> int:
    """Bytes for Jacobian blocks: half of an accelerator's memory, or a quarter of the machine's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"]) // 2
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (ValueError, OSError, AttributeError):
        return 1 << 32
