"""Which method computes the states of a chain, and which adjoint its derivatives."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deeppcr import lower
from deeppcr.adjoint import Adjoint, Autodiff, Backpropagation
from deeppcr.chain.chain import TracedChain
from deeppcr.choose.accelerators import (
    CALL,
    is_small_residual,
    kernel_seconds,
    loop_seconds,
    picard_seconds,
    solve_seconds,
)
from deeppcr.choose.cpu import GRADIENTS_ON_A_CPU, ON_CPUS
from deeppcr.choose.options import Method
from deeppcr.newton import Newton
from deeppcr.newton.convergence import QUASI, USUAL
from deeppcr.sequential import Sequential, kernel_of
from depth.jaxprs import equations

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
    if not step.varies_like_state:
        return "derivatives are jax's: what a step reads varies over more devices than the state"
    if step.not_differentiable:
        return f"jax has no derivative with respect to the state: {step.not_differentiable}"
    if step.forwards_only:
        return f"derivatives have forward mode only: {step.forwards_only}"
    return ""
