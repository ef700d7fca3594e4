"""The rule behind "auto": which method computes the states, and which adjoint the derivatives.

- What cannot be solved in parallel is `jax.lax.scan`.
- On a CPU: the loop, and backpropagation. No parallel forward pass was faster; a parallel adjoint
  was for some narrow chains. The gradients of arrays are summed step by step, which compiles as
  fast as jax's; or at once, if their products are worth compiling another program. jax's own is for
  small loops that XLA compiles well, and large states, if it keeps little, or some steps at a time.
- On an accelerator: the least of three times, in seconds. A loop launches some kernels in each
  step. One kernel runs all steps, and takes as long as its instructions. Newton's method takes some
  iterations, each a few launches for each of the log2 L rounds of its solver, and the traffic of
  its Jacobian blocks: it is for few long chains and small blocks. Picard iteration has no blocks:
  it is for residual layers whose program says that they are small.

`deeppcr.plan` prints what the rule takes and why, and `deeppcr.tune` measures.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from deeppcr import lower
from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.chain.chain import TracedChain
from deeppcr.checks import check_name, suggests_keywords
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction
from deeppcr.linear.named import FEW_PRODUCTS, pcr_suits
from deeppcr.linearize import exact_linearization
from deeppcr.newton import Newton
from deeppcr.newton.convergence import QUASI, USUAL
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.guess import Guess
from deeppcr.programs.terms import products_of, products_with
from deeppcr.progress import Progress
from deeppcr.sequential import Sequential, kernel_of
from deeppcr.structure import find_structure
from depth.counts import ceil_log2, nbytes
from depth.jaxprs import equations, is_literal, moved_by
from depth.primitives import primitive

ON_CPUS = "on a CPU the fastest for most chains; deeppcr.tune measures"
# Gradients of arrays are computed at once from so many operations of products with matrices of so
# many entries on, for each pair of operations of a step: the compiler takes so long for these.
# LSTM, 32 units, batch 16, 200 steps, 470 thousand: 0.7 of the time, and 1.2 of that to compile;
# 5 LSTMs with `jax.checkpoint`, 2.3 thousand: 0.7 and 2 (jax 0.10.2 and 0.12.0).
WORTH, MATRIX = 2500, 64
WIDE = 1 << 14  # bytes of a state from which on any product counts: filters of 3 x 4 x 4: 0.5
# Of so few steps for its operations a chain gains nothing: the smoother of a pendulum, 12 steps of
# 180 operations, takes 0.7 of the time by jax (jax 0.12.0).
FEW = 8

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

# Measured on an H100 (jax 0.11.2), in seconds.
CALL = 72e-6  # of x + 1
LAUNCH = 1.2e-6  # of a kernel, in a loop of which 16 steps are one CUDA graph: GRU, 16 units: 1.4
MEASURED = 8  # entries of a state or a block, up to which loops in one kernel and PCR have been
STEP, INSTRUCTION = 50e-9, 0.57e-9  # of a loop by Pallas: Van der Pol 67 ns; GRU, 4 units: 303
ROUND = 4e-6  # of a solver: GRU, 1 unit, L = 1e5: 4.2 for each of 4 * 17
# Bytes a second of Jacobian blocks: GRU, 4 units, 64 chains of 16384 steps: 1.4; of 1 unit: 2.5.
TRAFFIC, OF_NUMBERS = 1.5e12, 3e12
# The share of a loop's time that a kernel or Newton's method may take: nothing is known that well.
MARGIN = 0.8
UNROLL = 16  # steps of a loop in one CUDA graph
MOST_UNROLLED = 64  # equations of a step that is unrolled, since XLA compiles each so many times
# The gradient of a loop by jax, over the loop: GRU and tanh layers, 1 to 128 units: 2 to 7.
BACKWARD = 4


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class Auto:
    """The method that a rule takes for the chain and the platform; "auto" is ``Auto()``.

    The attributes are options of `Newton` and `Sequential`, for where that method is chosen.

    Attributes:
        initial_guess: as in `Newton`.
        damping: as in `Newton`.
        window: as in `Newton`.
        progress: as in `Newton` and `Sequential`: also what "auto" runs step by step is reported.
        unroll: as in `Sequential`; None: what the rule takes.

    Raises:
        TypeError: an option has a wrong type.
        ValueError: a name is unknown, or a number is out of range.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> method = deeppcr.Auto(damping=deeppcr.TrustRegion())
        >>> bool(deeppcr.solve(chain, jnp.array(0.5), method=method).converged)
        True
    """

    initial_guess: Guess = "apply"
    damping: TrustRegion | None = None
    window: int | None = None
    progress: Progress = None
    unroll: int | None = None

    def __post_init__(self) -> None:
        self.with_options(Newton())  # which checks them

    def with_options(self, method: "Method") -> "Method":
        """The chosen method, with those options that it has."""
        names = {field.name for field in dataclasses.fields(method)}
        if self.unroll is None:
            names -= {"unroll"}
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return dataclasses.replace(method, **{name: own[name] for name in own.keys() & names})


Method = Sequential | Newton
MethodOption = Sequential | Newton | Auto
"""A method as requested."""

METHODS: dict[str, MethodOption] = {
    "auto": Auto(),
    "sequential": Sequential(),
    "newton": Newton(),
    "picard": Newton(linearize="identity"),
    "pcr": Newton(linear=ParallelCyclicReduction()),
}

AdjointOption = Adjoint | Backpropagation | Autodiff | None
"""An adjoint as requested; None for "auto"."""

ADJOINTS: dict[str, AdjointOption] = {
    "auto": None,
    "autodiff": Autodiff(),
    "backprop": Backpropagation(),
    **{name: Adjoint(linear=name) for name in SOLVERS if name != "auto"},
}


def find_method(method: Any) -> MethodOption:
    """The method itself, or the one of that name."""
    if isinstance(method, MethodOption):
        return method
    check_name("method", method, METHODS, "Sequential(), Newton(...), Auto(...)")
    return METHODS[method]


def find_adjoint(adjoint: Any) -> AdjointOption:
    """The adjoint itself, or the one of that name; None for "auto"."""
    if isinstance(adjoint, Adjoint | Backpropagation | Autodiff):
        return adjoint
    if isinstance(adjoint, LinearSolver):
        return Adjoint(linear=adjoint)
    check_name("adjoint", adjoint, ADJOINTS, "Adjoint(...), a linear solver such as Recurrence()")
    return ADJOINTS[adjoint]


class Choice(NamedTuple):
    """What the rule takes. Printed, the reason.

    Attributes:
        option: the method, or the adjoint.
        seconds: the times that it is the least of, by name; empty where nothing is compared.
        reason: why, if nothing is compared.
    """

    option: Any
    seconds: Mapping[str, float]
    reason: str = ""

    def __str__(self) -> str:
        times = ", ".join(f"{name} {1e3 * t:.3g} ms" for name, t in self.seconds.items())
        return self.reason or f"rule for an H100: {times}"


def always_loops(method: Any, adjoint: Any) -> bool:
    """Whether a loop computes the states of every chain, and its derivative."""
    return (method, adjoint) == ("auto", "auto") and lower.platforms() == ("cpu",)


def loops_of(chain: TracedChain) -> list[Method]:
    """The loops of a chain that may be the fastest where it runs."""
    loops: list[Method] = [Sequential()]
    if chain.obstacle:
        return loops
    if lower.target().waits:
        loops.append(Sequential(unroll=UNROLL))
    if kernel_of(chain):
        loops.append(Sequential(fused=True))
    return loops


def choose_method(chain: TracedChain, platform: str, iterations: int | None = None) -> Choice:
    """The method that computes the states of ``chain``: see the rule above.

    ``iterations``: of the parallel method; None for what is usual.
    """
    if chain.obstacle:
        return Choice(Sequential(), {}, f"runs as jax.lax.scan, since {chain.obstacle.reason}")
    if platform == "cpu":
        return Choice(Sequential(), {}, "on a CPU no parallel forward pass is faster than the loop")
    step, length = chain.step, chain.length
    is_small = sum(1 for _ in equations(step.jaxpr)) <= MOST_UNROLLED
    times = {"loop": loop_seconds(chain)}
    methods: dict[str, Method] = {"loop": Sequential(unroll=min(UNROLL, length) if is_small else 1)}
    if kernel := kernel_seconds(chain, platform):
        times["kernel"], methods["kernel"] = kernel, Sequential(fused=True)
    loop = min(times.values())
    parallel = {"newton": ("auto", solve_seconds(chain), USUAL)}
    if is_small_residual(chain):
        parallel["picard"] = ("identity", picard_seconds(chain), QUASI * USUAL)
    for name, (linearize, each, usual) in parallel.items():
        if length > lower.FEW_STEPS and (name == "picard" or not step.not_differentiable):
            most = max(1, int(loop / each))
            times[name] = (iterations or usual) * each
            methods[name] = Newton(linearize=linearize, max_iterations=most)
    best = "loop"
    for name in times:
        if CALL + times[name] <= MARGIN * (CALL + times[best]):
            best = name
    return Choice(methods[best], times)


def choose_adjoint(chain: TracedChain, method: Method | None, platform: str) -> Choice:
    """The adjoint of ``chain``, whose states ``method`` computes; ``method`` is None for "auto"."""
    step, is_newton = chain.step, isinstance(method, Newton)
    if reason := left_to_jax(chain):
        # A `jax.custom_vjp` is not tried: jax remembers which zeros it told it of last.
        pushes = is_newton and not step.has_custom_vjp and step.forwards_only
        return Choice(Adjoint() if pushes else Autodiff(), {}, reason)
    if platform == "cpu":
        if is_newton:
            return Choice(Backpropagation(), {}, ON_CPUS)
        row = next(row for row in GRADIENTS_ON_A_CPU if row.is_for(chain))
        adjoint = row.adjoint(chain)
        return Choice(adjoint, {}, row.reason.format(adjoint=adjoint))
    times = {"loop": BACKWARD * loop_seconds(chain), "blocks": solve_seconds(chain)}
    if times["blocks"] <= times["loop"]:
        return Choice(Adjoint(), times)
    return Choice(Backpropagation() if is_newton else Autodiff(unroll=UNROLL), times)


def loop_seconds(chain: TracedChain) -> float:
    """Of a loop of an accelerator, whose products of batches are kernels of their own."""
    has_kernels = chain.layout.batch_size > 1 and products_of(chain.step.jaxpr) > 0
    return chain.length * LAUNCH * (1 + has_kernels)


def is_left_to_xla(chain: TracedChain) -> bool:
    """Whether XLA compiles a loop that keeps little, and its gradient, well by itself."""
    is_small = chain.length * chain.step.bytes_of_results < TRAFFIC_FROM
    return is_small and lower.is_left_to_xla(chain.step.jaxpr)


def multiplies_much(chain: TracedChain) -> bool:
    """Whether the gradients of arrays take less time at once, enough to compile them apart."""
    step, least = chain.step, MATRIX if chain.step.state_bytes < WIDE else 1
    moved = moved_by(step.jaxpr, step.jaxpr.invars[: step.states])
    work = chain.length * products_with(step.jaxpr, moved, least)
    return work >= WORTH * step.operations**2


def reads_little(chain: TracedChain) -> bool:
    """Whether the states of all steps are large, and jax's derivative keeps little of them."""
    step, state = chain.step, chain.step.state_bytes
    if chain.length * state < STATES:
        return False
    # Those of these operations are kept; inside a `jax.checkpoint` none are.
    known = [each for each in step.jaxpr.eqns if primitive(each).transcendental]
    least = sum(nbytes(each.outvars[0]) for each in known)
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
    step, state, work = chain.step, chain.step.state_bytes, products_of(chain.step.jaxpr)
    if state < least or work > WORK * 2 * step.bytes_of_results:  # of which it keeps a part
        return False
    return step.bytes_kept_by_jax <= TIMES * state and work <= WORK * step.bytes_kept_by_jax


def has_layers(chain: TracedChain) -> bool:
    """Whether a step multiplies its state by weights of its own, as a layer does."""
    program, states = chain.step.jaxpr, chain.step.states
    moved = moved_by(program, program.invars[:states])
    own = moved_by(program, program.invars[states:]) - moved
    products = (each.invars for each in program.eqns if each.primitive.name == "dot_general")
    variables = ({atom for atom in each if not is_literal(atom)} for each in products)
    return any(each & moved and each & own for each in variables)


def kernel_seconds(chain: TracedChain, platform: str) -> float | None:
    """Of the loop in one kernel; None without one, and where none has been measured.

    That is by one thread for each chain of the batch, though several may share a chain.
    """
    with lower.compiled_for(platform):
        step = kernel_of(chain)
    try:
        alone = step.by(1) if step and step.width <= MEASURED else None
    except lower.CannotFuse:
        return None
    return chain.length * (STEP + INSTRUCTION * alone.instructions) if alone else None


def solve_seconds(chain: TracedChain) -> float:
    """Of the linear recurrence of one iteration, or of the adjoint, by a parallel solver."""
    step, layout = chain.step, chain.layout
    width = find_structure(step, layout).groups.shape[1]
    entries = layout.batch_size * layout.width
    blocks = chain.length * exact_linearization(step, layout).bytes_per_step(step, layout)
    vectors = chain.length * entries * layout.dtype.itemsize
    rounds = ceil_log2(max(2, chain.length))
    if width <= MEASURED or pcr_suits(width, chain.length * entries):
        # Every round reads two of each, and writes one.
        rate = OF_NUMBERS if width == 1 else TRAFFIC
        return rounds * (ROUND + 3 * (blocks + vectors) / rate / chain.axis.size)
    # Cyclic reduction: there and back, on half as many blocks each time.
    return 2 * rounds * ROUND + 10 * blocks / TRAFFIC / chain.axis.size


def is_small_residual(chain: TracedChain) -> bool:
    """Whether steps are layers z + s f(z) whose program has a number s, of at most 1 / sqrt(L).

    Then all L changes together are of order one (Hayou et al., *Stable ResNet*, 2021), and the
    iterations of Picard's method do not depend on L: 11 to 16 for 1 / sqrt(L), and 23 to more than
    200 for s = 1 (layers of tanh, relu and normalised gelu, L = 64 to 1024).
    """
    program, states = chain.step.jaxpr, chain.step.states
    made = {id(end): each for each in program.eqns for end in each.outvars}

    def operands(name: str, result: Any) -> list[Any]:
        by = made.get(id(result))
        return by.invars if by and by.primitive.name == name else []

    def scale(state: Any, end: Any) -> float:
        added = operands("add", end)
        if state not in added:
            return math.inf
        change = added[added[0] is state]
        found = [float(x.val) for x in operands("mul", change) if is_literal(x)]
        found += [1 / float(x.val) for x in operands("div", change)[1:] if is_literal(x) and x.val]
        return min(map(abs, found), default=math.inf)

    pairs = zip(program.invars[:states], program.outvars[:states], strict=True)
    most = max(scale(*pair) for pair in pairs) * math.sqrt(chain.length)
    return round(most, 3) <= 1 and has_layers(chain)


def picard_seconds(chain: TracedChain) -> float:
    """Of one Picard iteration: a sum along the chain, and all steps at once."""
    step, layout, length = chain.step, chain.layout, chain.length
    vector = layout.batch_size * layout.width * layout.dtype.itemsize
    rounds = ceil_log2(max(2, length))
    weights = sum(map(nbytes, step.jaxpr.invars[step.states :]))
    traffic = length * (6 * rounds * vector + weights) / OF_NUMBERS
    products = length * products_of(chain.step.jaxpr) / 2 / FEW_PRODUCTS
    return ROUND * (rounds + products / chain.axis.size) + traffic / chain.axis.size


def left_to_jax(chain: TracedChain) -> str:
    """Why the chain, or its derivative, is left to `jax.lax.scan`; empty if neither is."""
    step = chain.step
    if chain.obstacle:
        return f"runs as jax.lax.scan, since {chain.obstacle.reason}"
    if step.has_custom_vjp:
        return (
            "derivatives are jax's: the step calls a jax.custom_vjp, whose rule need not be linear "
            "in its cotangents"
        )
    if not step.varies_like_state:
        return "derivatives are jax's: what a step reads varies over more devices than the state"
    if step.not_differentiable:
        return f"jax has no derivative with respect to the state: {step.not_differentiable}"
    if step.forwards_only:
        return f"derivatives have forward mode only: {step.forwards_only}"
    return ""


# -- gradients on a CPU ----------------------------------------------------------------------------


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


def is_short(chain: TracedChain) -> bool:
    """Whether a chain has few steps for the operations of each."""
    return FEW * chain.length <= chain.step.operations


def always(_: TracedChain) -> bool:
    """Of the last row."""
    return True


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
        always,
        lambda _: Backpropagation(at_once=False),
        "on a CPU, for little work: it compiles faster",
        "5 LSTMs with jax.checkpoint: half the time to compile (jax 0.10.2 and 0.12.0)",
    ),
)
