"""Methods and adjoints: as a user names them, and as the rule takes them for a chain."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from deeppcr import lower
from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.chain.chain import TracedChain
from deeppcr.checks import check_name, option_tree
from deeppcr.choose.accelerators import (
    CALL,
    is_small_residual,
    kernel_seconds,
    loop_seconds,
    picard_seconds,
    solve_seconds,
)
from deeppcr.choose.cpu import GRADIENTS_ON_A_CPU, ON_CPUS
from deeppcr.linear import SOLVERS, LinearSolver, ParallelCyclicReduction
from deeppcr.newton import Newton
from deeppcr.newton.convergence import QUASI, USUAL
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.guess import Guess
from deeppcr.sequential import Sequential, kernel_of
from deeppcr.solution import Progress
from depth.jaxprs import equations


@option_tree("initial_guess")
@dataclasses.dataclass(frozen=True)
class Auto:
    """The method that a rule takes for the chain and the platform; "auto" is ``Auto()``.

    The attributes are options of `Newton` and `Sequential`, for where that method is chosen. As
    `Newton`, a pytree of the arrays among them.

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
        options = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) is not field.default and hasattr(method, field.name)
        }
        return dataclasses.replace(method, **options) if options else method


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


# -- the rule --------------------------------------------------------------------------------------

# The share of a loop's time that a kernel or Newton's method may take: nothing is known that well.
MARGIN = 0.8
UNROLL = 16  # steps of a loop in one CUDA graph
MOST_UNROLLED = 64  # equations of a step that is unrolled, since XLA compiles each so many times
# The gradient of a loop by jax, over the loop: GRU and tanh layers, 1 to 128 units: 2 to 7.
BACKWARD = 4


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
    """Whether a loop computes the states of every chain, and its derivative.

    It does where nobody asks for more than "auto", and programs run on CPUs alone.
    """
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
    is_small = len(equations(step.jaxpr)) <= MOST_UNROLLED
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
    if step.has_traced_rule:
        return "derivatives are jax's: a derivative rule closes over a value that jax traces"
    if not step.varies_like_state:
        return "derivatives are jax's: what a step reads varies over more devices than the state"
    if step.not_differentiable:
        return f"jax has no derivative with respect to the state: {step.not_differentiable}"
    if step.forwards_only:
        return f"derivatives have forward mode only: {step.forwards_only}"
    return ""
