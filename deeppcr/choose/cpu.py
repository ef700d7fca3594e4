"""Gradients on a CPU: a table, of which the first row that is for a chain holds.

The gradients of arrays are summed step by step, which compiles as fast as jax's; or at once, if
their products are worth compiling another program. jax's own derivative is for small loops that XLA
compiles well, and large states, if it keeps little, or some steps at a time.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from deeppcr import lower
from deeppcr.adjoint import Autodiff, Backpropagation
from deeppcr.arrays import floating
from deeppcr.chain.chain import TracedChain
from deeppcr.programs.dependence import work_of_products, work_with_matrices
from depth.counts import nbytes
from depth.jaxprs import equations, moved_by
from depth.primitives import primitive

ON_CPUS = "on a CPU the fastest for most chains; deeppcr.tune measures"
# Gradients of arrays are computed at once from so many operations of products with matrices of so
# many entries on, for each pair of operations of a step: the compiler takes so long for these.
# LSTM, 32 units, batch 16, 200 steps, 470 thousand: 0.7 of the time, and 1.2 of that to compile;
# 5 LSTMs with `jax.checkpoint`, 2.3 thousand: 0.7 and 2 (jax 0.10.2 and 0.12.0).
WORTH_AT_ONCE, LEAST_MATRIX = 2500, 64
WIDE_STATE = 1 << 14  # bytes of a state from which on any product counts: filters of 3 x 4 x 4: 0.5
# Of so few steps for its operations a chain gains nothing: the smoother of a pendulum, 12 steps of
# 180 operations, takes 0.7 of the time by jax (jax 0.12.0).
FEWEST_STEPS = 8

# Bytes of the states of all steps from which on a CPU leaves the derivative to jax, if that keeps
# of a step less than so much of its state. Entries of a buffer: 0; linear attention, 16 x 64: 0.1.
STATES, PART = 1 << 20, 0.5

# A step is memory traffic if jax's derivative keeps of it at most so many times its state, and its
# products have at most so many operations for each byte of that: gated delta rule, linear attention
# and Mamba: 2 to 3.2 times and 0.2 to 0.4 operations; tanh, 8 units, a batch of 128: 2 and 2.
# Burgers' equation by RK4: 8 times, where ours takes 0.6 of the time; GRU: 9 times. From so many
# bytes of a state on such a derivative is left to jax; from so many of all steps on, some steps at
# a time are computed again: Mamba, 64 x 16, 6 MB: 0.8 and 1.0 of our time; 100 MB: 1.0 and 0.5;
# 16 x 16, 52 MB: 0.8 and 0.5; 4 x 16, 27 MB: 1.1 and 0.7 (jax 0.12.0; 0.10.2: 3.4 and 3.9).
TIMES, WORK, LARGE, TRAFFIC_FROM = 3.5, 2.5, 1 << 12, 1 << 24
FEWEST_AGAIN, MOST_AGAIN = 16, 64  # steps of a segment, as many as the cache holds


class Row(NamedTuple):
    """A row of the rule for gradients on a CPU; the first that is for a chain holds.

    Attributes:
        is_for: whether it is for a chain.
        adjoint: what it takes.
        reason: why, as plans say it.
        measured: what shows it, beside what a later row would take, and the version of jax.
    """

    is_for: Callable[[TracedChain], object]
    adjoint: Callable[[TracedChain], Autodiff | Backpropagation]
    reason: str
    measured: str


def is_left_to_xla(chain: TracedChain) -> bool:
    """Whether XLA compiles a loop that keeps little, and its gradient, well by itself."""
    is_small = chain.length * chain.step.bytes_of_results < TRAFFIC_FROM
    return is_small and lower.is_left_to_xla(chain.step.jaxpr)


def multiplies_much(chain: TracedChain) -> bool:
    """Whether the gradients of arrays take less time at once, enough to compile them apart."""
    step, least = chain.step, LEAST_MATRIX if chain.step.state_bytes < WIDE_STATE else 1
    by_state = moved_by(step.jaxpr, step.jaxpr.invars[: step.states])
    work = chain.length * work_with_matrices(step.jaxpr, by_state, least)
    return work >= WORTH_AT_ONCE * step.operations**2


def reads_little(chain: TracedChain) -> bool:
    """Whether the states of all steps are large, and jax's derivative keeps little of them."""
    step, state = chain.step, chain.step.state_bytes
    if chain.length * state < STATES:
        return False
    # Those of these operations are kept; inside a `jax.checkpoint` none are.
    transcendental = [each for each in step.jaxpr.eqns if primitive(each).transcendental]
    least = sum(nbytes(each.outvars[0]) for each in transcendental)
    return least <= PART * state and step.bytes_kept_by_jax <= PART * state


def segment(chain: TracedChain) -> int:
    """The steps of a segment of which a CPU keeps the first state alone; 0 for none.

    That takes less time if to keep what the derivative reads is more work than the steps are.
    """
    length, step = chain.length, chain.step
    most = length * step.bytes_of_results
    if chain.axis.size > 1 or length <= MOST_AGAIN or most < TRAFFIC_FROM:
        return 0
    if not is_traffic(chain, LARGE // 4) or length * step.bytes_kept_by_jax < TRAFFIC_FROM:
        return 0
    size = 2 * lower.steps_in_cache(step.bytes_kept_by_jax + step.state_bytes)
    return lower.even_chunk(length, min(MOST_AGAIN, max(FEWEST_AGAIN, size)))


def is_traffic(chain: TracedChain, least: int) -> bool:
    """Whether a step is memory traffic more than work, with a state of so many bytes or more."""
    step, state, work = chain.step, chain.step.state_bytes, work_of_products(chain.step.jaxpr)
    if state < least or work > WORK * 2 * step.bytes_of_results:  # of which it keeps a part
        return False
    return step.bytes_kept_by_jax <= TIMES * state and work <= WORK * step.bytes_kept_by_jax


def sorts(chain: TracedChain) -> bool:
    """Whether a step sorts numbers: jax keeps their order, which ours finds once more."""
    return any(
        each.primitive.name == "sort" and any(floating(each.outvars))
        for each in equations(chain.step.jaxpr)
    )


def is_short(chain: TracedChain) -> bool:
    """Whether a chain has few steps for the operations of each."""
    return FEWEST_STEPS * chain.length <= chain.step.operations


GRADIENTS_ON_A_CPU = (
    Row(
        is_left_to_xla,
        lambda _: Autodiff(),
        "on a CPU, for a small loop that XLA compiles by itself",
        "backpropagation of ours takes 1.06 of its time (jax 0.12.0)",
    ),
    Row(
        segment,
        lambda chain: Autodiff(checkpoint=segment(chain)),
        "on a CPU, for large states: {adjoint.checkpoint} steps at a time are computed again",
        "Mamba, 16 x 16, 52 MB: 0.5 of the time (jax 0.12.0)",
    ),
    Row(
        reads_little,
        lambda _: Autodiff(),
        "on a CPU, for large states that it need not keep",
        "of a buffer that takes an entry a step, jax keeps nothing (jax 0.12.0)",
    ),
    Row(
        partial(is_traffic, least=LARGE),
        lambda _: Autodiff(),
        "on a CPU, for large states and little work",
        "Mamba, 64 x 16, 6 MB: 0.8 of the time (jax 0.12.0)",
    ),
    Row(
        sorts,
        lambda _: Autodiff(),
        "on a CPU, for steps that sort: it keeps the order",
        "sort, median, 8 and 32 entries: 0.4 to 0.6 of the time (jax 0.12.0; 0.10.2: 0.4 to 0.8)",
    ),
    Row(
        multiplies_much,
        lambda _: Backpropagation(),
        ON_CPUS,
        "LSTM, 32 units, batch 16, 200 steps: 0.7 of the time (jax 0.10.2 and 0.12.0)",
    ),
    Row(
        is_short,
        lambda _: Autodiff(),
        "on a CPU, for few steps of many operations",
        "smoother of a pendulum, 12 steps of 180 operations: 0.7 of the time (jax 0.12.0)",
    ),
    Row(
        lambda _: True,
        lambda _: Backpropagation(at_once=False),
        "on a CPU, for little work: it compiles faster",
        "5 LSTMs with jax.checkpoint: half the time to compile (jax 0.10.2 and 0.12.0)",
    ),
)
