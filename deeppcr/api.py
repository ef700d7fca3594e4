"""The public functions `scan` and `solve`. They check arguments before compilation.

The stations of a call: ``scan -> solve_chain -> solve -> by_platform -> NewtonSolver.solve ->
while_loop -> iteration``; docs/design.md names the file of each. `solve_chain` takes care of uneven
lengths and explicit meshes.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Never

import jax
import jax.numpy as jnp

from deeppcr.adjoint import Adjoint, Autodiff
from deeppcr.arrays import explicit_mesh, with_auto_axes
from deeppcr.axis import LOCAL
from deeppcr.chain.carry import Carry
from deeppcr.chain.chain import Chain, TracedChain, chain_length, trace_carry, with_outputs
from deeppcr.checks import (
    check_count,
    check_type,
    describe,
    is_raised_here,
    unknown_keyword,
)
from deeppcr.choose import (
    AdjointOption,
    Auto,
    MethodOption,
    find_adjoint,
    find_method,
)
from deeppcr.linear import LinearSolver
from deeppcr.newton import Newton
from deeppcr.newton.guess import users_guess
from deeppcr.newton.method import is_number, tolerances
from deeppcr.sequential import Sequential
from deeppcr.sharding import (
    ChainSharding,
    find_sharding,
    lengthened,
    shardings_of,
    shortened,
    without_shardings,
)
from deeppcr.solution import (
    NotConverged,
    Result,
    Run,
    Solution,
    SolvedBy,
    Stats,
    last_of,
    report_end,
)
from deeppcr.solving.checkpoint import solve_in_segments
from deeppcr.solving.primitive import bind_problem
from deeppcr.solving.problem import Problem


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    *,
    method: str | MethodOption = "auto",
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int = 0,
    **unknown: Never,
) -> tuple[Any, Any]:
    """Makes sequential JAX programs faster: a drop-in for `jax.lax.scan`, with exact gradients.

    It takes what `jax.lax.scan` takes, and returns the same results and derivatives. It runs a loop
    that XLA compiles well, or all steps in parallel: see ``method``.

    Computes $(z_l, y_l) = f(z_{l-1}, x_l)$ for $l = 1, ..., L$.

    Args:
        f: ``f(carry, x) -> (carry, y)``. The carry is an array or a pytree of arrays of any dtype,
            and keeps its structure, shapes and dtypes. Integers, flags and random keys in it may
            depend on inputs and on each other, as counters and split keys do: they are computed
            first, by `jax.lax.scan`. If one depends on the floating-point part of the carry, the
            whole chain runs as `jax.lax.scan`.
        init: the carry before the first step. Python numbers take the dtypes that ``f`` returns.
        xs: pytree of arrays ``[L, ...]``, one entry per step; or None.
        length: L, an integer >= 0; needed only if ``xs`` has no arrays.
        reverse: start from the last entry of ``xs``.
        unroll: steps per trip of the loop, as in `jax.lax.scan`. Like ``_split_transpose``, it
            applies only where the chain runs sequentially. With 1, "auto" takes more on an
            accelerator.
        method: how the carries are computed: "auto", "sequential", "newton", "pcr", "picard"
            (``Newton(linearize="identity")``), or a `Sequential`, `Newton` or `Auto` object. "auto"
            takes the sequential loop on a CPU, and what a short rule says elsewhere: `deeppcr.plan`
            prints it and why.
        adjoint: how derivatives are computed, whatever the method: "auto"; "backprop", step by
            step; a linear solver, by object or by name ("sequential", "pcr", ...), with the
            Jacobians of all steps; an `Adjoint` object; or "autodiff", by jax through
            `jax.lax.scan`. A step that calls a `jax.custom_vjp` takes "autodiff".
        batch_ndim: the number of leading axes of every leaf of the carry that are batch axes. A
            Jacobian block is then ``w x w`` for each of the B batch elements, instead of
            ``(B w) x (B w)``. ``f`` takes and returns the whole batch. If batch elements interact,
            the blocks are approximate.
        **unknown: not used; the error names the closest argument.

    Returns:
        the last carry, and the ``y`` of all steps, stacked on axis 0: ``[L, ...]``.

    Raises:
        TypeError: the carry changes its structure, shape or dtype; or an integer, flag or key in it
            depends on its floating-point part, and ``method`` or ``adjoint`` requires blocks.
        ValueError: lengths contradict each other; a name is unknown; or the step has side effects
            and ``method`` or ``adjoint`` requires blocks.

    Example:
        >>> cumsum = lambda carry, x: (carry + x, carry + x)
        >>> deeppcr.scan(cumsum, jnp.array(0.0), jnp.array([2.0, 5.0, 4.0]))[1]
        Array([ 2.,  7., 11.], dtype=float32)

    References:
        F. Danieli et al., *DeepPCR: Parallelizing Sequential Operations in Neural Networks*,
        NeurIPS 2023, section 3.
    """
    if unknown:
        raise unknown_keyword(scan, unknown)
    option = find_method(method)
    derivative = find_adjoint(adjoint)
    count = None if jax.tree.leaves(xs) else length  # with `xs` jax takes no symbolic length
    plain = partial(jax.lax.scan, f, init, xs, count, reverse, unroll, _split_transpose)
    try:
        check_type("f", f, Callable, "a function: f(carry, x) -> (carry, y)")
        length, trips = chain_length(xs, length, "xs"), _steps_in_a_trip(unroll)
        trace = partial(trace_carry, f, init, xs, length, batch_ndim, "init", reverse)
        parts = _traced(trace, xs, length, option, derivative, reverse)
        if parts is None:
            return _plainly(plain(), option, length)[0]
    except (TypeError, ValueError) as error:
        raise _with_words_of_jax(error, plain) from None
    chain, carry, option = parts
    if trips != 1 and (isinstance(option, Auto) or option == Sequential()):
        option = dataclasses.replace(option, unroll=trips or length)
    run = solve_chain(chain, option, derivative, keeps_states=False)
    return carry.value(run.last), chain.step.typed_outputs(run.outputs)


def solve(
    chain: Chain,
    z0: Any,
    *extra: Never,
    method: str | MethodOption = "auto",
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int = 0,
    **unknown: Never,
) -> Solution:
    """Solve a chain for all its states $z_1, ..., z_L$.

    Args:
        chain: a `Chain`.
        z0: the initial state, an array or a pytree of arrays, as the step of the chain takes it.
        *extra: not used. Inputs that change from step to step belong to the chain.
        method: as in `scan`.
        adjoint: as in `scan`.
        batch_ndim: as in `scan`, for the leaves of ``z0``.
        **unknown: not used; the error names the closest argument.

    Returns:
        a `Solution` with the last state, the trajectory, statistics, a result code, and the
        method. ``value`` and ``trajectory`` are differentiable with respect to ``z0``, the inputs
        of the chain and the arrays that its step closes over.

    Raises:
        TypeError: ``chain`` is not a `Chain`; otherwise as in `scan`.
        ValueError: as in `scan`.
        NotConverged: with ``Newton(on_failure="raise")``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> solution = deeppcr.solve(chain, jnp.array(0.5), method="newton")
        >>> int(solution.stats.prefix), bool(solution.converged)
        (100, True)
    """
    if unknown:
        raise unknown_keyword(solve, unknown)
    if not isinstance(chain, Chain) or extra:
        raise _no_chain(chain, extra)
    length = chain_length(chain.inputs, chain.length, "chain.inputs")
    option = find_method(method)
    derivative = find_adjoint(adjoint)
    trace = partial(
        trace_carry, chain.step, z0, chain.inputs, length, batch_ndim, "z0", adapt=with_outputs
    )
    parts = _traced(trace, chain.inputs, length, option, derivative, stored=chain.sharding)
    if parts:
        traced, carry, option = parts
        run = solve_chain(traced, option, derivative)
        value, trajectory = carry.value(run.last), carry.trajectory(run.trajectory, length)
        return Solution.of(value, trajectory, run)

    def body(z: Any, x: Any) -> tuple[Any, Any]:
        z = chain.step(z, x)
        return z, z

    steps = None if jax.tree.leaves(chain.inputs) else length
    value, trajectory = jax.lax.scan(body, jax.tree.map(jnp.asarray, z0), chain.inputs, steps)
    return Solution.of(value, trajectory, _plainly((value, trajectory), option, length)[1])


def _no_chain(chain: Any, extra: tuple[Any, ...]) -> TypeError:
    """The error if `solve` is given anything but a chain and its initial state."""
    if isinstance(chain, Chain):
        third = describe(extra[0])
        return TypeError(
            f"solve takes a chain and z0, but a third argument was given: {third}; expected none. "
            "Inputs of the steps belong to the chain: solve(Chain(step, xs), z0)."
        )
    remedy = "for layers: Chain.from_layers(layers, x)."
    if callable(chain):
        remedy = "for a function: solve(Chain(step, xs), z0)."
    return TypeError(f"chain is {describe(chain)}, expected a deeppcr.Chain; {remedy}")


def _traced(
    trace: Callable[[], tuple[TracedChain, Carry]],
    inputs: Any,
    length: int,
    method: MethodOption,
    adjoint: AdjointOption,
    reverse: bool = False,
    stored: ChainSharding | None = None,
) -> tuple[TracedChain, Carry, MethodOption] | None:
    """The chain, how its state relates to the carry, and the method with its arrays.

    None if `jax.lax.scan` runs instead: the user asked for it, or there is nothing to solve in
    parallel. ``stored``: see `find_sharding`.
    """
    is_loop = isinstance(method, Auto) or method == Sequential()
    if length == 0 or (is_loop and adjoint == Autodiff()):
        return None
    chain, carry = trace()
    if _runs_plainly(chain, method, adjoint):
        return None
    if isinstance(method, Newton) and not is_number(method.atol):
        atol = tolerances(method.atol, inputs, length)
        method = dataclasses.replace(method, atol=jnp.flip(atol) if reverse else atol)
    if not isinstance(method, Sequential) and not isinstance(method.initial_guess, str):
        guess = partial(users_guess, method.initial_guess, carry)
        method = dataclasses.replace(method, initial_guess=guess)
    axis = find_sharding(inputs, stored, method, adjoint) or LOCAL
    chain = dataclasses.replace(chain, axis=axis.reversed if reverse else axis)
    return chain, carry, method


def _plainly(
    results: tuple[Any, Any], method: MethodOption, length: Any
) -> tuple[tuple[Any, Any], Run]:
    """The results of `jax.lax.scan`, and its run; it is reported as any other run."""
    last = list(map(jnp.asarray, jax.tree.leaves(results[0])))
    stats = Stats(jnp.int32(0), jnp.float32(0), jnp.asarray(length, jnp.int32))
    run = Run([], [], stats, jnp.int32(Result.CONVERGED), jnp.int32(SolvedBy.SCAN), last)
    report_end(method.progress, length, run)
    return results, run


def _runs_plainly(chain: TracedChain, method: MethodOption, adjoint: AdjointOption) -> bool:
    """Whether the chain has to run as `jax.lax.scan`, because it cannot be solved in parallel."""
    if chain.obstacle is None:
        return chain.is_empty
    is_fused = isinstance(method, Sequential) and method.fused
    is_method = is_fused or isinstance(method, Newton)
    if is_method or isinstance(adjoint, Adjoint):
        way = "be one kernel" if is_fused else "be solved in parallel"
        request = (
            f"method is {describe(method)}" if is_method else f"adjoint is {describe(adjoint)}"
        )
        remedy = '"auto" and "sequential"' if is_method else '"auto", "backprop" and "autodiff"'
        reason, expected, error = chain.obstacle
        raise error(
            f"{request}, but the chain cannot {way}: {reason}; expected {expected}. "
            f"{remedy} run it as jax.lax.scan."
        )
    return True


def _steps_in_a_trip(unroll: int | bool) -> int:
    """Steps per trip for the ``unroll`` of `jax.lax.scan`; 0 for all steps."""
    if isinstance(unroll, bool):
        return 0 if unroll else 1
    check_count("unroll", unroll, "steps per trip; True for all, False for 1", least=0)
    return max(1, unroll)


def _with_words_of_jax(error: Exception, scan: Callable[[], Any]) -> Exception:
    """The error, with the familiar message of `jax.lax.scan` for the same call added.

    An error of the user's step, or of jax in it, is raised as `jax.lax.scan` raises it.
    """
    try:
        jax.eval_shape(scan)
    except (TypeError, ValueError) as theirs:
        if str(theirs) == str(error):
            return error
        if is_raised_here(error):
            theirs.args = (f"{error}\n\njax.lax.scan says: {theirs}",)
        return theirs
    except Exception:
        pass
    return error


# -- the solution of a chain -----------------------------------------------------------------------


def solve_chain(
    chain: TracedChain, method: MethodOption, adjoint: AdjointOption, keeps_states: bool = True
) -> Run:
    """Solve a chain of one or more steps, differentiably; the adjoint None stands for "auto".

    ``keeps_states``: whether the trajectory is read. Under `jax.jit`, XLA sees that itself.
    """
    arrays = chain.initial, chain.inputs, chain.captured
    if mesh := explicit_mesh(*arrays, shared=chain.axis.size > 1):
        return _solve_on_explicit_mesh(chain, method, adjoint, mesh)
    axis = chain.axis.on_auto_axes if isinstance(chain.axis, ChainSharding) else chain.axis
    unpadded = dataclasses.replace(chain, axis=axis)
    if axis.backwards:
        return _solve_backwards(unpadded, method, adjoint)
    if isinstance(adjoint, Adjoint) and (adjoint.checkpoint or unpadded.length) < unpadded.length:
        return _ended(solve_in_segments(unpadded, method, adjoint), method, unpadded.length)
    chain = lengthened(unpadded)
    bind, tree = bind_problem(Problem.of(chain, unpadded, method, adjoint), keeps_states)
    run: Run = jax.tree.unflatten(tree, bind())
    if chain.length > unpadded.length:
        run = shortened(run, unpadded.length)
    # Unevenly sharded arrays are replicated.
    get_last = axis.last if axis.size > 1 and unpadded.length % axis.size == 0 else last_of
    last = run.last or list(map(get_last, run.trajectory))
    return _ended(dataclasses.replace(run, last=last), method, unpadded.length)


def _ended(run: Run, method: MethodOption, length: int) -> Run:
    """The run, once its end has been reported to the user, or raised."""
    if isinstance(method, Newton) and method.on_failure == "raise":
        _raise_unless_converged(run, length)
    report_end(method.progress, length, run)
    return run


def _solve_backwards(chain: TracedChain, method: MethodOption, adjoint: AdjointOption) -> Run:
    """`solve_chain` from the last entry of the inputs on; the outputs are in their order."""
    axis, forwards = chain.axis, chain.axis.forwards(chain.length)
    chain = dataclasses.replace(chain, inputs=axis.flipped(chain.inputs), axis=forwards)
    run = solve_chain(chain, method, adjoint)
    return dataclasses.replace(run, outputs=axis.flipped(run.outputs))


def _solve_on_explicit_mesh(
    chain: TracedChain, method: MethodOption, adjoint: AdjointOption, mesh: Any
) -> Run:
    """`solve_chain` with the axes of the mesh as `Auto` ones."""
    sharding = chain.axis
    if not isinstance(sharding, ChainSharding):
        sharding = ChainSharding(sharding.backwards, mesh)

    def inside(initial: Any, inputs: Any, captured: Any) -> Run:
        on_auto_axes = dataclasses.replace(sharding, mesh=jax.sharding.get_abstract_mesh())
        arrays = dataclasses.replace(
            chain, initial=initial, inputs=inputs, captured=captured, axis=on_auto_axes
        )
        return solve_chain(without_shardings(arrays), method, adjoint)

    out = shardings_of(chain, sharding)
    return with_auto_axes(inside, mesh, out, chain.initial, chain.inputs, chain.captured)


def _raise_unless_converged(run: Run, length: int) -> None:
    try:
        result, prefix = int(run.result), int(run.stats.prefix)
        residual, iterations = float(run.stats.residual), int(run.stats.iterations)
    except jax.errors.ConcretizationTypeError:
        raise ValueError(
            'on_failure is "raise", which is not possible while jax traces the call '
            '(jit, vmap, scan): use on_failure="return" and check Solution.result.'
        ) from None
    if result not in (Result.CONVERGED, Result.PLATEAU):
        raise NotConverged(
            f"Newton did not converge: {prefix} of {length} states after {iterations} iterations, "
            f"largest relative residual {residual:.1e}."
        )
