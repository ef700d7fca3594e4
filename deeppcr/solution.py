"""The result of a solve: states, statistics and a result code; and its progress, while it runs.

Newton's method reports each iteration. The sequential program is one loop without a host in it, so
it is reported when it has ended, as is the sequential fallback: see `report_end`.
"""

import dataclasses
import enum
import math
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import zero_from_primal

from deeppcr.arrays import like
from deeppcr.checks import folded
from depth.report import table

ROUNDING = 16  # units in the last place up to which a residual is rounding


class Result(enum.IntEnum):
    """How a solve ended: the values of ``Solution.result``.

    Example:
        >>> solution = deeppcr.solve(deeppcr.Chain(jnp.add, jnp.ones(3)), jnp.array(0.0))
        >>> deeppcr.Result(int(solution.result)).name
        'CONVERGED'
    """

    CONVERGED = 0
    """The states satisfy the chain to the tolerance that was asked for."""
    FINISHED_SEQUENTIALLY = 1
    """Newton's method did not converge within its budget; the sequential fallback finished."""
    NOT_CONVERGED = 2
    """Newton's method did not converge, with ``on_failure="return"``: states after the first
    ``stats.prefix`` are not accurate."""
    NOT_FINITE = 3
    """The sequential program's own states are not finite, from the first ``stats.finite`` on."""
    PLATEAU = 4
    """Converged as far as its products allow, for which the user asked less than full precision
    (an argument, `jax.default_matmul_precision`): residuals stopped falling at their rounding."""


class SolvedBy(enum.IntEnum):
    """The method that computed a solution: the values of ``Solution.method``.

    A number, so that it stays true under `jax.jit`, `jax.vmap`, `jax.lax.cond` and `jax.lax.scan`:
    "auto" decides for each platform while jax lowers a program.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> solution = deeppcr.solve(chain, jnp.array(0.5), method="newton")
        >>> deeppcr.SolvedBy(int(solution.method)).name
        'NEWTON'
    """

    SEQUENTIAL = 0
    """One step after another."""
    NEWTON = 1
    """Newton's method, or a quasi-Newton method."""
    SCAN = 2
    """`jax.lax.scan`: the chain cannot be solved in parallel, or ``adjoint`` is "autodiff"."""


def is_right(result: Array) -> Array:
    """Bool: whether the states of a `Result` are those of the sequential program."""
    failed = jnp.int32(Result.NOT_CONVERGED), jnp.int32(Result.NOT_FINITE)
    return (result != failed[0]) & (result != failed[1])


class NotConverged(RuntimeError):
    """Newton's method did not converge within its budget, and ``on_failure="raise"``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: 3.9 * z * (1 - z), length=100)
        >>> newton = deeppcr.Newton(max_iterations=5, on_failure="raise")
        >>> try:
        ...     deeppcr.solve(chain, jnp.array(0.3), method=newton)
        ... except deeppcr.NotConverged:
        ...     print("not converged")
        not converged
    """


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["iterations", "residual", "prefix", "residuals", "growth_rate", "finite"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of a solve. They have no derivatives.

    Under `jax.vmap` every field has the mapped axes in front.

    Attributes:
        iterations: int32 scalar, the number of Newton iterations; 0 for a sequential solve.
        residual: floating scalar, the largest residual $|f(z_{l-1}, x_l) - z_l|$ of the states that
            are returned, relative to the size of each entry (dimensionless); 0 for a sequential
            solve, or one that finished sequentially.
        prefix: int32 scalar, the number of states from the start of the chain that had converged; L
            if all.
        residuals: floating ``[max_iterations + 1]`` with ``Newton(record=True)``, else None: the
            residual of the initial guess and after every iteration. Entries after the last
            iteration are NaN (inf under `jax.debug_nans`).
        growth_rate: floating scalar with ``Newton(record=True)``, else None: the largest Lyapunov
            exponent of the chain per step. Small differences grow as ``exp(growth_rate * l)``; they
            decay if it is negative. NaN (inf under `jax.debug_nans`) unless the states are right:
            those that have not converged, or are not finite, have no growth rate; printed, the
            solution says why. A jump in the step is not part of it: no derivative sees it.
        finite: int32 scalar, the number of states from the start of the chain that are finite; L if
            all.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(0.5 * z + x), jnp.ones(100))
        >>> newton = deeppcr.Newton(record=True)
        >>> stats = deeppcr.solve(chain, jnp.array(0.0), method=newton).stats
        >>> bool(stats.growth_rate < 0), int(stats.prefix)
        (True, 100)
    """

    iterations: Array
    residual: Array
    prefix: Array
    residuals: Array | None = None
    growth_rate: Array | None = None
    finite: Array | None = None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "trajectory", "stats", "result", "method"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Solution:
    """A solved chain. Printed, which method ran, how it ended, and what to do, if anything.

    Attributes:
        value: the last state $z_L$, with the structure, shapes and dtypes of the initial state.
        trajectory: all states $z_1, ..., z_L$ in the same structure, stacked on axis 0:
            ``[L, ...]``.
        stats: the `Stats` of the solve.
        result: int32 scalar, one of `Result`. Under `jax.vmap` it has the mapped axes.
        method: int32 scalar, one of `SolvedBy`. Under `jax.vmap` it has the mapped axes.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: z + x, jnp.array([2.0, 5.0, 4.0]))
        >>> solution = deeppcr.solve(chain, jnp.array(0.0))
        >>> solution.value, solution.trajectory
        (Array(11., dtype=float32), Array([ 2.,  7., 11.], dtype=float32))
        >>> print(deeppcr.solve(chain, jnp.array(0.0), method="sequential"))
        sequential
        result      converged
        trajectory  3 states
    """

    value: Any
    trajectory: Any
    stats: Stats
    result: Array
    method: Array

    @property
    def converged(self) -> Array:
        """Bool scalar: whether ``value`` and ``trajectory`` are accurate to the tolerance."""
        return is_right(self.result)

    @classmethod
    def of(cls, value: Any, trajectory: Any, run: "Run") -> "Solution":
        """The solution of a run, which says so if its states are not finite."""
        stats, result = _looked_through(jax.tree.leaves(trajectory), run.stats, run.result)
        return cls(value, trajectory, stats, result, run.method)

    def __str__(self) -> str:
        try:
            results = np.asarray(self.result).astype(int)
            return "\n".join(_of_several(results) if results.ndim else _lines(self))
        except (jax.errors.JAXTypeError, TypeError, ValueError):
            return (
                "Solution without numbers: jax traces the call that it is of (jit, vmap, grad).\n"
                "Return it, and print it outside."
            )


@jax.jit
def _looked_through(states: list[Any], stats: Stats, result: Array) -> tuple[Stats, Array]:
    """The stats and the result, with the number of states that are finite."""
    # The length may be symbolic: see `jax.export`.
    finite = length = jnp.asarray(states[0].shape[0], jnp.int32) if states else stats.prefix
    for leaf in states:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            is_finite = jnp.isfinite(leaf).all(axis=range(1, leaf.ndim))
            index = jnp.arange(leaf.shape[0], dtype=jnp.int32)
            first = jnp.where(is_finite, length, index).min(initial=jnp.iinfo(jnp.int32).max)
            finite = jnp.minimum(finite, first)
    # An iterate that has not converged may overflow where the program does not.
    not_finite = (finite < length) & (result != jnp.int32(Result.NOT_CONVERGED))
    outcome = jnp.where(not_finite, jnp.int32(Result.NOT_FINITE), result)
    residual = jnp.where(not_finite, jnp.inf, stats.residual).astype(stats.residual.dtype)
    rate = stats.growth_rate
    if rate is not None:  # of other states it would say nothing about the chain
        rate = jnp.where(is_right(outcome), rate, unrecorded()).astype(rate.dtype)
    return dataclasses.replace(stats, residual=residual, finite=finite, growth_rate=rate), outcome


def unrecorded() -> float:
    """NaN, for what was not recorded; infinity under `jax.debug_nans`, which would report it."""
    return jnp.inf if jax.config.jax_debug_nans else jnp.nan  # type: ignore[attr-defined]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["trajectory", "outputs", "stats", "result", "method", "last"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a method below the api: a `Solution` in leaves, with the steps' outputs.

    Attributes:
        trajectory: leaves of ``z_1 .. z_L``.
        outputs: leaves of the outputs of all steps.
        stats: see `Stats`.
        result: int32 scalar, one of `Result`.
        method: int32 scalar, one of `SolvedBy`.
        last: leaves of ``z_L``; on several devices empty until `solve_chain` has taken them from
            the trajectory.
    """

    trajectory: list[Any]
    outputs: list[Any]
    stats: Stats
    result: Array
    method: Array
    last: list[Any] = dataclasses.field(default_factory=list)

    def with_tangents(self, states: list[Any], outputs: list[Any], last: list[Any]) -> "Run":
        """The tangents of a run: statistics have none."""
        stats, result, method = jax.tree.map(
            zero_from_primal, (self.stats, self.result, self.method)
        )
        return Run(states, outputs, stats, result, method, last)

    @classmethod
    def of_sequential(
        cls, chain: Any, states: list[Any], outputs: list[Any], last: list[Any]
    ) -> "Run":
        """The run of a `TracedChain`, one step after another."""
        zero = jnp.zeros(chain.mapped, jnp.int32)
        residual = jnp.zeros(chain.mapped, chain.layout.dtype)
        stats = Stats(zero, residual, zero + jnp.int32(chain.total))
        result, method = zero + jnp.int32(Result.CONVERGED), zero + jnp.int32(SolvedBy.SEQUENTIAL)
        # As those of other methods, for branches of one program.
        stats, result, method = like((stats, result, method), chain.initial)
        return cls(states, outputs, stats, result, method, last)


def last_of(states: Array) -> Array:
    """The last of the states on axis 0.

    At an index that is no constant to XLA yet. The transpose of a slice is a pad, which XLA fuses
    with the gradient of the loss: a kernel that can take 0.15 s to compile (jax 0.10.2, CPU).
    """
    last = lax.optimization_barrier(jnp.int32(-1))
    return lax.dynamic_index_in_dim(states, last, keepdims=False)


def _of_several(results: Any) -> list[str]:
    """How many chains have which result; the solution is one of a `jax.vmap`."""
    counts = Counter(Result(each).name.lower().replace("_", " ") for each in results.flat)
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.items())
    index = ", ".join("kmn"[: results.ndim]) if results.ndim <= 3 else "..."
    return [
        folded(f"{results.size} chains: {outcomes}", 2),
        f"That of one: jax.tree.map(lambda leaf: leaf[{index}], solution)",
    ]


def _lines(solution: Solution) -> list[str]:
    stats, method, result = solution.stats, int(solution.method), Result(int(solution.result))
    states = jax.tree.leaves(solution.trajectory)
    length = len(states[0]) if states else int(stats.prefix)
    rows = {"result": result.name.lower().replace("_", " ")}
    if method == SolvedBy.NEWTON:
        prefix = f"{int(stats.prefix)} of {length} states"
        if result == Result.FINISHED_SEQUENTIALLY:
            prefix += " by Newton's method, the rest sequentially"
        rows["iterations"] = f"{int(stats.iterations)}"
        rows["converged"] = prefix
        rows["residual"] = f"{float(stats.residual):.1e}"
    else:  # nothing was iterated or measured
        rows["trajectory"] = f"{length} states"
    if result == Result.NOT_FINITE and stats.finite is not None:
        rows["finite"] = f"{int(stats.finite)} of {length} states"
    rate = float("nan")
    if stats.growth_rate is not None:
        rate, why = float(stats.growth_rate), f"the result is {rows['result']}"
        if is_right(solution.result):
            why = "the derivatives of the step are not finite"
        rows["growth rate"] = f"{rate:+.3g} a step" if np.isfinite(rate) else f"none: {why}"
    if advice := _advice(stats, method, result, rate, length):
        rows["advice"] = advice
    name = "jax.lax.scan" if method == SolvedBy.SCAN else SolvedBy(method).name.lower()
    return [name, folded(table((), list(rows.items()), "<<"), max(map(len, rows)) + 2)]


def _advice(stats: Stats, method: int, result: Result, rate: float, length: int) -> str:
    """What to do next, and why; "" if nothing is known to help."""
    if result == Result.NOT_FINITE and stats.finite is not None:
        step = int(stats.finite) + 1
        return f"step {step} is the first whose state is not finite: look at its input"
    if method != SolvedBy.NEWTON or result == Result.CONVERGED:
        return ""
    if result == Result.PLATEAU:
        return (
            f"residuals fall no further than {float(stats.residual):.1e}, the rounding of the "
            'step\'s products at the precision asked for; "highest" has none'
        )
    if not int(stats.prefix):
        return "no step has converged: take method='sequential'"
    needed, pace = _needed(stats, length)
    said = f"about {needed} iterations in all ({pace})"
    if jax.default_backend() == "cpu" or needed * math.log2(length) > length:
        return f"{said}; the loop is faster"
    more = " (or try TrustRegion())" if rate > 0 else ""
    return f"{said}: max_iterations={min(2 * needed, length + 1)}{more}"


def _needed(stats: Stats, length: int) -> tuple[int, str]:
    """Roughly the iterations that all steps take, and the pace so far that says so.

    Chains that amplify differences converge from the start on, mostly at a steady pace. Where
    recorded residuals fall steadily, all states converge at once, however few have so far.
    """
    count = max(1, int(stats.iterations))
    steps = int(stats.prefix) / count
    needed, pace = math.ceil(length / steps), f"{steps:.2g} steps each"
    last = np.ones(0) if stats.residuals is None else np.asarray(stats.residuals)
    last = last[count // 2 : count + 1]
    if len(last) > 1 and np.isfinite(last).all() and 0 < last[-1] < last[0]:
        rate = float(last[-1] / last[0]) ** (1 / (len(last) - 1))
        more = math.log(ROUNDING * np.finfo(last.dtype).eps / last[-1]) / math.log(rate)
        if (by_residuals := count + max(1, math.ceil(more))) < needed:
            needed, pace = by_residuals, f"residuals fall to {rate:.2g} each"
    return needed, pace


# -- progress --------------------------------------------------------------------------------------

ProgressFunction = Callable[[Any, Any, Any], None]
Progress = bool | ProgressFunction | None
"""True: print a line to stderr. A function of iteration, prefix and residual. None, False: nothing.
"""
EXPECTED = "a function of iteration, prefix and residual, True, or None"


@dataclasses.dataclass(frozen=True)
class Reporter:
    """Tells the user about the iterations of one chain.

    Attributes:
        progress: True, or the user's function.
        length: L.
    """

    progress: bool | ProgressFunction
    length: int

    def __call__(self, iteration: Array, prefix: Array, residual: Array) -> None:
        """After an iteration: the number of states that have converged, the residual.

        Below 0 it is none: the step has been applied to the initial trajectory.
        """
        if iteration < 0:
            return
        done = min(int(prefix), self.length)  # there may be steps that only fill up a shard
        counts = f"{done} of {self.length} steps"
        line = f"iteration {int(iteration)}: {counts}, residual {float(residual):.0e}"
        _tell(self.progress, line, int(iteration), done, float(residual))


def report_end(progress: Progress, length: Any, run: Run) -> None:
    """Report the end of a sequential program, or of a sequential fallback.

    ``length``: L, which may be symbolic.
    """
    if not progress:
        return

    def tell(method: Array, result: Array, iterations: Array, length: Array, *_: Array) -> None:
        if int(method) == SolvedBy.NEWTON and int(result) != Result.FINISHED_SEQUENTIALLY:
            return
        line = f"sequential: {int(length)} of {int(length)} steps"
        _tell(progress, line, int(iterations), int(length), 0.0)

    # Once the last state is known.
    last = [leaf.reshape(-1)[:1] for leaf in run.last if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    numbers = run.method, run.result, run.stats.iterations, jnp.asarray(length, jnp.int32)
    jax.debug.callback(tell, *numbers, *last)


def _tell(progress: bool | ProgressFunction, line: str, *numbers: int | float) -> None:
    """Call the user's function with the numbers, or print the line."""
    if callable(progress):
        progress(*numbers)
    else:
        print(line, file=sys.stderr, flush=True)
