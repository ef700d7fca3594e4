"""What users call: `scan`, `solve` and `forward`, checked before anything is compiled."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from deeppcr._plan import Method, Wanted, find_adjoint, find_method, run
from deeppcr.across import HERE, Spread, explicit_mesh
from deeppcr.adjoint import Adjoint, Autodiff
from deeppcr.chain import Chain, Problem, chain_length, pose
from deeppcr.layers import Reader, Repeated, as_callable, is_of_jax, listed, segments, stack_layers
from deeppcr.linear import LinearSolver
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from deeppcr.sharding import lengthened, on_explicit_mesh, shortened, specs_of, where
from deeppcr.solution import NotConverged, Result, Run, Solution, Stats
from deeppcr.state import Leaves


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    *,
    reverse: bool = False,
    method: str | Method = "auto",
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int = 0,
) -> tuple[Any, Any]:
    """`jax.lax.scan`, solved as one system of equations: the same arguments, the same result, the same derivatives.

    Args:
        f: ``f(carry, x) -> (carry, y)``. The carry is an array, or a pytree of them, of floating dtypes.
        init: the carry before the first step.
        xs: pytree of arrays ``[L, ...]``, one entry a step; or None.
        length: L; needed only without ``xs``.
        reverse: start from the last entry of ``xs``.
        method: how the carries are found: "auto", "sequential", "newton", "pcr", or a `Sequential` or `Newton` object. "auto" is
            what is predicted to be fastest: see `deeppcr.plan`.
        adjoint: how derivatives are found, whatever the method: "auto"; "sequential", step by step; a linear solver by object
            or by name ("pcr", ...), on the Jacobians of all steps; "autodiff", by jax,
            through `jax.lax.scan`, which is what a step with a `jax.custom_vjp` in it always takes.
        batch_ndim: how many leading axes of every leaf of the carry are batch axes, examples that ``f`` treats one by one. A
            Jacobian block is then w x w for each example, and not (B w) x (B w). ``f`` gets and returns all of them at once.

    Returns:
        the last carry, and the ``y`` of all steps, stacked on axis 0.

    Raises:
        TypeError: the carry changes its structure, shape or dtype, or is not floating.
        ValueError: lengths contradict each other, or a name is not known.

    Example:
        >>> cumsum = lambda carry, x: (carry + x, carry + x)
        >>> deeppcr.scan(cumsum, jnp.array(0.0), jnp.array([2.0, 5.0, 4.0]))[1]
        Array([ 2.,  7., 11.], dtype=float32)
    """
    length = chain_length(xs, length, "xs")
    chosen = find_method(method)
    wanted = find_adjoint(adjoint)
    given = (
        None if jax.tree.leaves(xs) else length
    )  # with `xs` jax takes no length that is symbolic
    if _is_plain(chosen, wanted) or length == 0:
        return jax.lax.scan(f, init, xs, given, reverse)
    problem = pose(f, init, xs, length, batch_ndim, "init")
    if _runs_plainly(problem, chosen, wanted):
        return jax.lax.scan(f, init, xs, given, reverse)
    spread = where(xs, None, chosen, wanted)
    mesh = explicit_mesh(init, xs, shared=spread is not None)
    if mesh is None:
        return _scan(problem, spread and spread.on_auto_axes, chosen, wanted, reverse)
    spread = spread or Spread(mesh=mesh)
    specs = specs_of(problem, spread)
    found: tuple[Any, Any] = on_explicit_mesh(
        lambda problem, spread: _scan(problem, spread, chosen, wanted, reverse),
        problem,
        spread,
        mesh,
        (specs.value, specs.outputs),
    )
    return found


def _scan(
    problem: Problem, spread: Spread | None, method: Method | None, adjoint: Wanted, reverse: bool
) -> tuple[Any, Any]:
    if reverse:
        problem = dataclasses.replace(problem, inputs=[jnp.flip(x, 0) for x in problem.inputs])
    found = _run(problem, spread, method, adjoint)
    step = problem.step
    last = jax.tree.unflatten(step.state_tree, _last(found.trajectory, spread))
    ys = [jnp.flip(y, 0) for y in found.outputs] if reverse else found.outputs
    return last, jax.tree.unflatten(step.output_tree, ys)


def solve(
    chain: Chain,
    z0: Any,
    *,
    method: str | Method = "auto",
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int = 0,
) -> Solution:
    """Solve a chain: all its states, and how they were found.

    Args:
        chain: see `Chain`.
        z0: the initial state.
        method: as in `scan`.
        adjoint: as in `scan`.
        batch_ndim: as in `scan`.

    Returns:
        `Solution`, with the last state, the trajectory, statistics and the way it ended. Its ``value`` and ``trajectory`` are
        differentiable with respect to ``z0``, the chain's inputs and whatever its step closes over.

    Raises:
        TypeError: the state changes its structure, shape or dtype, or is not floating.
        ValueError: lengths contradict each other, or a name is not known.
        NotConverged: with ``Newton(on_failure="raise")``.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> solution = deeppcr.solve(chain, jnp.array(0.5), method="newton")
        >>> int(solution.stats.prefix), bool(solution.converged)
        (100, True)
    """
    if not isinstance(chain, Chain):
        raise TypeError(
            f"chain is {type(chain).__name__}, expected a deeppcr.Chain; for layers: Chain.from_layers(layers, x)."
        )
    length = chain_length(chain.inputs, chain.length, "chain.inputs")
    chosen = find_method(method)
    wanted = find_adjoint(adjoint)

    if length and not _is_plain(chosen, wanted):
        problem = pose(
            lambda z, x: (chain.step(z, x), None), z0, chain.inputs, length, batch_ndim, "z0"
        )
        if not _runs_plainly(problem, chosen, wanted):
            spread = where(chain.inputs, chain.spread, chosen, wanted)
            mesh = explicit_mesh(z0, chain.inputs, shared=spread is not None)
            if mesh is None:
                return Solution(*_solve(problem, spread and spread.on_auto_axes, chosen, wanted))
            spread = spread or Spread(mesh=mesh)
            specs = specs_of(problem, spread)
            out: Any = (specs.value, specs.trajectory, P(), P())
            return Solution(
                *on_explicit_mesh(
                    lambda problem, spread: _solve(problem, spread, chosen, wanted),
                    problem,
                    spread,
                    mesh,
                    out,
                )
            )

    def body(z: Any, x: Any) -> tuple[Any, Any]:
        z = chain.step(z, x)
        return z, z

    given = None if jax.tree.leaves(chain.inputs) else length
    value, trajectory = jax.lax.scan(body, jax.tree.map(jnp.asarray, z0), chain.inputs, given)
    stats = Stats(jnp.int32(0), jnp.float32(0), jnp.asarray(length, jnp.int32))
    return Solution(value, trajectory, stats, jnp.int32(Result.CONVERGED))


def _solve(
    problem: Problem, spread: Spread | None, method: Method | None, adjoint: Wanted
) -> tuple[Any, ...]:
    """What a `Solution` has."""
    found = _run(problem, spread, method, adjoint)
    tree = problem.step.state_tree
    return (
        jax.tree.unflatten(tree, _last(found.trajectory, spread)),
        jax.tree.unflatten(tree, found.trajectory),
        found.stats,
        found.result,
    )


def forward(
    layers: Any,
    x: Any,
    *,
    method: str | Method = "auto",
    adjoint: str | LinearSolver | Adjoint = "auto",
    batch_ndim: int | None = None,
) -> Any:
    """Apply layers one after another: ``for layer in layers: x = layer(x)``.

    Neighbouring layers that are alike (the same code, arrays of the same shapes) are stacked and solved as one chain, and so are
    layers in a period (`Linear`, `relu`, `Linear`, `relu`, ...). Any other layer is called in its turn, as is one that changes
    something when it is called (batch statistics and random counters of flax nnx modules, a list, a global) or has effects
    (`jax.debug.print`), and one that holds what cannot be watched, such as a generator of random numbers. What comes after it
    is looked at after it was called, and so finds what it would find in the loop. `deeppcr.layers.describe(layers, x)` says
    what was found.

    Args:
        layers: a list of layers: callables ``layer(x) -> x`` (functions, methods, partials, jitted functions, flax nnx, bound
            flax linen and equinox modules, other pytrees), or pairs ``(apply, params)``; or ``(apply, [params, ...])``, a
            ``Sequential`` of flax or equinox, ``deeppcr.stack(layers)``, or a `Chain` of layers already stacked.
        x: what the first layer takes: an array, or a pytree of them.
        method: as in `scan`.
        adjoint: as in `scan`.
        batch_ndim: leading batch axes of ``x``; None for 0 if what a chain of layers takes is a vector or a scalar, else 1.

    Returns:
        what the last layer returns.

    Raises:
        TypeError: ``layers`` is no list of layers, or one of them is not callable.
        ValueError: a name is not known.

    Example:
        >>> weights = [0.1 * jnp.eye(3), 0.2 * jnp.eye(3), 0.3 * jnp.eye(3)]
        >>> layers = [jax.tree_util.Partial(jnp.matmul, w) for w in weights]
        >>> deeppcr.forward(layers, jnp.ones(3))
        Array([0.006, 0.006, 0.006], dtype=float32)
    """
    find_method(method)  # names are checked even where no run of layers is long enough to need them
    find_adjoint(adjoint)

    def chain(chain: Chain, x: Any) -> Any:
        examples = vector_batch(x) if batch_ndim is None else batch_ndim
        return solve(chain, x, method=method, adjoint=adjoint, batch_ndim=examples).value

    if isinstance(layers, Chain):
        return chain(layers, x)
    if isinstance(layers, Repeated):
        layers.check(x)
        return chain(Chain(layers.step, layers.inputs, layers.length), x)
    rest, reader = listed(layers), Reader()
    while rest:
        found = reader.read(rest, x) if is_of_jax(x) else []
        for segment in segments(found):
            if segment.reason:
                for layer in segment.layers:
                    x = layer.call(x)
            else:
                run = stack_layers(segment.layers, segment.period)
                x = chain(Chain(run.step, run.inputs, run.length), x)
        rest = rest[len(found) :]
        if found and found[-1].acts:  # those behind it may read what it changed
            reader.forget(found[-1])
        elif rest:  # a layer that cannot be looked at beforehand: called as it is, and so it raises what it would
            x, rest = as_callable(rest[0])(x), rest[1:]
            reader.forget()
    return x


def vector_batch(x: Any) -> int:
    """One batch axis, where all arrays have an axis to spare."""
    return min(1, max(0, min((jnp.ndim(leaf) for leaf in jax.tree.leaves(x)), default=0) - 1))


def _is_plain(method: Method | None, adjoint: Wanted) -> bool:
    """Whether `jax.lax.scan` itself is what has been asked for."""
    return adjoint == Autodiff() and (method is None or method == Sequential())


def _runs_plainly(problem: Problem, method: Method | None, adjoint: Wanted) -> bool:
    """Whether `jax.lax.scan` itself is to run a chain, because nothing else can."""
    if problem.step.effects:
        effects = ", ".join(problem.step.effects)
        reason = f"the step has side effects ({effects}), and steps side by side have no order; expected a step without any"
    elif problem.is_symbolic:
        reason = "it has symbolic dimensions (jax.export.symbolic_shape); expected numbers, which Jacobian blocks need"
    else:
        return problem.is_empty
    if isinstance(method, Newton) or isinstance(adjoint, Adjoint):
        asked = f"method is {method}" if isinstance(method, Newton) else f"adjoint is {adjoint}"
        raise ValueError(
            f'{asked}, but the chain cannot be solved in parallel: {reason}. "auto" and "sequential" run it as jax.lax.scan.'
        )
    return True


def _last(trajectory: Leaves, spread: Spread | None) -> Leaves:
    """The last of all states."""
    return [spread.last(z) if spread and len(z) % spread.size == 0 else z[-1] for z in trajectory]


def _run(problem: Problem, spread: Spread | None, method: Method | None, adjoint: Wanted) -> Run:
    """Solve a chain of one or more steps, differentiably."""
    problem = dataclasses.replace(problem, across=spread or HERE)
    longer = lengthened(problem) if problem.length % problem.across.size else problem
    result = run(longer, method, adjoint)
    if longer is not problem:
        result = shortened(result, problem.length)
    if isinstance(method, Newton) and method.on_failure == "raise":
        _raise_unless_converged(result, problem.length)
    return result


def _raise_unless_converged(run: Run, length: int) -> None:
    try:
        result, prefix, residual = int(run.result), int(run.stats.prefix), float(run.stats.residual)
    except jax.errors.ConcretizationTypeError:
        raise ValueError(
            'on_failure is "raise", which is not possible while jax traces the call (jit, vmap, scan): '
            'take on_failure="return" and look at Solution.result.'
        ) from None
    if result != Result.CONVERGED:
        raise NotConverged(
            f"Newton did not converge: {prefix} of {length} states after {int(run.stats.iterations)} iterations, "
            f"largest relative residual {residual:.1e}."
        )
