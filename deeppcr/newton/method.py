"""Newton's method on a whole chain: linearise, solve, check, repeat.

All L equations ``z_l = f(z_{l-1}, x_l)`` are one root problem. Newton's method linearises each of
them at a trajectory ``Z``. The next trajectory ``Y`` solves the linear recurrence

    Y_l = A_l Y_{l-1} + b_l,    A_l = df/dz(Z_{l-1}, x_l),    b_l = f(Z_{l-1}, x_l) - A_l Z_{l-1},

with ``Y_0 = z_0``, which a parallel solver does in O(log L) depth (DeepPCR, Danieli et al.,
NeurIPS 2023, section 3). Solving for ``Y`` and not for the update ``Y - Z`` keeps the rounding
errors of the solver out of the sum. Any other ``A_l`` makes a quasi-Newton method with the same
solution: see `deeppcr.linearize`.

After k iterations the first k states are exact. So if a chain does not converge within its budget,
the sequential fallback keeps these states and computes the rest. It starts from the last state that
equals the sequential program's to the last bit, not merely to rounding: most chains that do not
converge amplify differences, and would otherwise end in another state.
"""

import dataclasses
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from deeppcr.chain.chain import TracedChain
from deeppcr.checks import (
    check_count,
    check_tolerance,
    check_type,
    describe,
    did_you_mean,
    option_tree,
)
from deeppcr.linear import LinearSolver, find_solver
from deeppcr.linearize import (
    Linearization,
    LinearizationChoice,
    choose_linearization,
    find_linearization,
)
from deeppcr.newton.acceleration import Anderson
from deeppcr.newton.convergence import (
    ContractionCriterion,
    Criterion,
    NewtonCriterion,
    expected_iterations,
)
from deeppcr.newton.damping import TrustRegion
from deeppcr.newton.guess import Guess, check_guess
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.programs.retrace import own_rounding
from deeppcr.sharding import solver_on
from deeppcr.solution import EXPECTED, ROUNDING, Progress, Reporter

# A number, an array of one for each step, or a function of the inputs of a step.
Tolerance = float | Callable[[Any], Any] | Any


def is_number(atol: Tolerance) -> bool:
    """Whether it is one number for all steps, known while jax traces."""
    return isinstance(atol, Real)


def check_atol(atol: Tolerance) -> None:
    """Raise unless it may be a tolerance; its shape is checked once the length is known."""
    if is_number(atol):
        check_tolerance("atol", atol)
    elif not (callable(atol) or _is_real(atol)):
        raise TypeError(
            f"atol is {describe(atol)}, expected a number >= 0, an array of real numbers with one "
            "for each step, or a function of the inputs of a step."
        )


def tolerances(atol: Tolerance, inputs: Any, length: int) -> Array:
    """The tolerance of every step, ``[L]``.

    Args:
        atol: as the user gave it; not a number.
        inputs: of the chain, a pytree with leaves ``[L, ...]``.
        length: of the chain.

    Raises:
        TypeError: the function returns no real number.
        ValueError: there is not one number for each step.
    """
    what = "atol is"
    if callable(atol):
        what = "the function atol returns, for all steps,"
        atol = jax.vmap(atol, axis_size=length)(inputs)
        if not _is_real(atol):
            raise TypeError(f"{what} {describe(atol)}, expected a real number for each step.")
    if np.shape(atol) not in ((), (length,)):
        raise ValueError(
            f"{what} an array of shape {np.shape(atol)}, expected {(length,)}: a number >= 0 for "
            "each step."
        )
    return lax.stop_gradient(jnp.broadcast_to(jnp.asarray(atol), (length,)))


def _is_real(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


OnFailure = Literal["sequential", "raise", "return"]

BUDGET = 64  # iterations; chains that suit Newton's method take 3 to 20
QUASI_BUDGET = 256  # without exact Jacobians: more and cheaper iterations
# The options that one kernel has; it meets any tolerance.
OF_KERNELS = frozenset({"fused", "rtol", "atol", "max_iterations"})


@option_tree("atol", "initial_guess", "linearize")
@dataclasses.dataclass(frozen=True)
class Newton:
    """Solve all steps of a chain at once, by Newton's method or a quasi-Newton method.

    At a trajectory Z the next one, Y, solves the linear recurrence $Y_l = A_l Y_{l-1} + b_l$ with
    $b_l = f(Z_{l-1}, x_l) - A_l Z_{l-1}$ and $Y_0 = z_0$. Newton's method takes
    $A_l = df/dz(Z_{l-1}, x_l)$; ``linearize`` chooses other blocks. The residual is that of the
    user's step in every case, so approximate blocks take more iterations and give the same result.
    A pytree, whose leaves are the arrays among its options: an argument for `jax.jit`, `jax.vmap`
    and `jax.lax.cond`.

    Attributes:
        linearize: the blocks $A_l$. "auto": the exact Jacobian, in the narrowest form (diagonal,
            block diagonal or dense) that the step's structure proves. Or "dense", "diagonal",
            "identity", "zero", `BlockDiagonal`, `Diagonal`, `Scalar`, `Clipped`, `Surrogate`, or
            your own `Linearization`. `deeppcr.plan` prints the choice of "auto".
        linear: the solver of the linear recurrence in each iteration, an object or a name: see
            `deeppcr.solve_bidiagonal`.
        rtol: float > 0, the tolerance on the residual relative to the size of each entry
            (dimensionless); None for 16 units in the last place of its dtype.
        atol: float >= 0, the absolute tolerance on the residual, in the units of the state. Or an
            array ``[L]`` of one for each step, in the order of the inputs; or a function of the
            inputs of a step, ``x -> float``. No derivatives pass through it.
        max_iterations: integer >= 1, for all windows together; None for 64 in each window, or 256
            without exact Jacobians. L + 1 iterations always suffice without a window.
        initial_guess: the initial trajectory. "apply": every step applied to the initial state.
            "constant": the initial state at every step. `Coarse`: a chain of larger steps. A
            trajectory: a pytree like the state, with leaves ``[L, ...]``, for example the
            ``trajectory`` of the last solution. Or a function
            ``(initial state, inputs) -> trajectory``. No derivatives pass through it.
        damping: None: plain iterations. `TrustRegion`: the update of every step is limited to the
            size of the states, for chains that amplify differences. An iteration then applies the
            step twice more, and some chains converge only without it.
        acceleration: `Anderson` or None. It combines the last few iterates, for "identity", "zero"
            and other blocks whose iterations are cheap and converge slowly.
        window: integer >= 1, the number of steps that are solved at once. The window slides along
            the chain as its first states converge. None: all steps, or as many as ``memory`` holds.
            A chain that is sharded over devices has no window: all shards are solved at once.
        memory: integer >= 1, bytes for the Jacobian blocks and the solver's copies on each device.
            None: half of the accelerator's memory, or a quarter of the machine's.
        record: whether `Stats` contains the residual after each iteration and the growth rate.
        progress: True, to print a line to stderr before the first iteration and after each:
            "iteration 5: 12 of 20 steps, residual 3e-4". Or a function
            ``(iteration, prefix, residual)``, which is called instead: with the number of the
            iteration, the number of states from the start of the chain that have converged, which
            never falls, and the largest relative residual. A sequential fallback is reported once,
            at its end: "sequential: 20 of 20 steps", or the function of
            ``(iterations, L, 0.0)``. Under `jax.vmap`, and on several devices that work together,
            all of this happens once for each. None: nothing.
        on_failure: what to do with a chain that has not converged within its budget. "sequential":
            compute the rest step by step. "raise": raise `NotConverged`; not possible under jit.
            "return": return the last iterate, with ``Result.NOT_CONVERGED``.
        fused: whether a solve is one kernel on an NVIDIA GPU, and so is an `Adjoint` of it by exact
            Jacobians. For states of up to 16 entries of float32 in each example, or of entries that
            do not reach each other. It iterates to rounding level, whatever the tolerance is, with
            at most ``max_iterations`` in each of its windows, and computes step by step what does
            not converge; it has no other option. On other platforms the same solve is many
            programs. No such kernel has been timed on a device yet, so nothing takes it unless you
            do.

    Raises:
        TypeError: an option has a wrong type.
        ValueError: a name is unknown, a number is out of range, or ``fused`` is True beside an
            option that a kernel does not have. Or, in a call, the chain is sharded and a shard is
            longer than ``window``; or with ``fused``, the chain has no such kernel: the message
            says why.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(0.5 * z + x), jnp.ones((100, 8)))
        >>> newton = deeppcr.Newton(linearize="diagonal", linear="pcr", rtol=1e-4)
        >>> bool(deeppcr.solve(chain, jnp.zeros(8), method=newton).converged)
        True

    References:
        F. Danieli et al., *DeepPCR*, NeurIPS 2023, section 3. Y. H. Lim et al., *Parallelizing
        Non-linear Sequential Models over the Sequence Length*, ICLR 2024.
    """

    linearize: str | Linearization = "auto"
    linear: str | LinearSolver = "auto"
    rtol: float | None = None
    atol: Tolerance = 0.0
    max_iterations: int | None = None
    initial_guess: Guess = "apply"
    damping: TrustRegion | None = None
    acceleration: Anderson | None = None
    window: int | None = None
    memory: int | None = None
    record: bool = False
    progress: Progress = None
    on_failure: OnFailure = "sequential"
    fused: bool = False

    def __post_init__(self) -> None:
        find_linearization(self.linearize)
        find_solver(self.linear, "linear")
        check_guess(self.initial_guess)
        check_tolerance("rtol", self.rtol, optional=True)
        check_atol(self.atol)
        check_count("max_iterations", self.max_iterations, "number of iterations", optional=True)
        check_count("window", self.window, "number of steps", optional=True)
        check_count("memory", self.memory, "number of bytes", optional=True)
        check_type("damping", self.damping, TrustRegion | None, "TrustRegion(...) or None")
        check_type("acceleration", self.acceleration, Anderson | None, "Anderson(...) or None")
        check_type("record", self.record, bool, "True or False")
        check_type("progress", self.progress, bool | Callable | None, EXPECTED)
        if self.on_failure not in get_args(OnFailure):
            raise ValueError(
                f"on_failure is {describe(self.on_failure)}, expected one of "
                f"{get_args(OnFailure)}{did_you_mean(self.on_failure, get_args(OnFailure))}"
            )
        check_type("fused", self.fused, bool, "True or False")
        for field in dataclasses.fields(self) if self.fused else ():
            value = getattr(self, field.name)
            is_default = type(value) is type(field.default) and value == field.default
            if field.name not in OF_KERNELS and not is_default:
                raise ValueError(
                    f"{field.name} is {describe(value)}, but fused=True: one kernel has no such "
                    f"option; expected {field.default!r}, or fused=False."
                )

    def bind(self, chain: TracedChain, widened: TracedChain, length: int) -> NewtonSolver:
        """The solver of ``chain``, with every option resolved.

        Args:
            widened: the same in float32 or better, perhaps without initial state and inputs.
            length: of the user's chain, without steps that were added for even shards.
        """
        choice = self._choose(widened)
        is_newton = choice.is_exact
        # Slowly converging iterations must reach the rounding of the working dtype; Newton's
        # method, which converges quadratically, that of the chain's dtype.
        eps = (chain.layout if is_newton else widened.layout).eps
        working = float(jnp.finfo(widened.layout.dtype).eps)
        quadratic = is_newton and not self.acceleration and not widened.step.has_users_rule
        is_affine = quadratic and widened.step.is_affine
        each = chain.length // chain.axis.size
        windows = -(-each // choice.window)
        # States that leave a window are final: remaining changes add up over the windows.
        share = choice.window / each
        usual = (BUDGET if is_newton else QUASI_BUDGET) * windows
        most = 2 * chain.length if windows > 1 else chain.length + 1
        atol: Any = self.atol if is_number(self.atol) else 0.0  # an array is that of the solver
        tolerance = self.rtol, float(atol), eps
        criterion: Criterion = ContractionCriterion(*tolerance, working, max(1.0, ROUNDING * share))
        if quadratic:
            criterion = NewtonCriterion(*tolerance, own_rounding(widened.step.jaxpr))
        method = dataclasses.replace(
            self,
            linearize=choice.bind(),
            linear=solver_on(chain.axis, find_solver(self.linear)),
            atol=_along(chain, length, self.atol),
            max_iterations=min(self.max_iterations or usual, most),
            initial_guess=_along(chain, length, self.initial_guess),
            window=choice.window,
            progress=Reporter(self.progress, length) if self.progress else None,
            fused=False,  # a kernel has none of these options
        )
        arrays = dataclasses.replace(
            widened,
            step=widened.step.for_all_at_once(),
            initial=[],
            inputs=[],
            function=None,
            adapt=None,
        )
        at_once = choice.window if windows > 1 else length
        return NewtonSolver(
            method=method,
            in_float32=arrays,
            fused=self.fused,
            criterion=criterion,
            expected=expected_iterations(at_once, is_newton, windows, is_affine),
            is_affine=is_affine,
        )

    def _choose(self, chain: TracedChain) -> LinearizationChoice:
        """How the steps on each device are linearised."""
        shards, window = chain.axis.size, self.window
        each = chain.length // shards
        if shards > 1:
            if window is not None and window < each:
                raise ValueError(
                    f"window is {window}, but the chain is sharded over {shards} devices, and its "
                    f"shards of {each} steps are solved at once; expected None, or {each} or more. "
                    "If the blocks do not fit into memory, take narrower ones, such as "
                    'linearize="diagonal", or more devices.'
                )
            window = each
        return choose_linearization(
            self.linearize, chain.step, chain.layout, each, window, self.memory
        )


def _along(chain: TracedChain, length: int, option: Any) -> Any:
    """An option of one entry for each step, as the chain has it; added steps repeat the last.

    A name, or a number, is for all steps.
    """
    if isinstance(option, str | Real):
        return option
    leaves, structure = jax.tree.flatten(option)
    leaves = chain.axis.in_order(leaves)
    if added := chain.length - length:
        ends = [jnp.broadcast_to(z[-1:], (added, *z.shape[1:])) for z in leaves]
        leaves = list(map(jnp.concatenate, zip(leaves, ends, strict=True)))
    return jax.tree.unflatten(structure, leaves)
