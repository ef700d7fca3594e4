"""A chain solved as it is asked for; "auto" is what pays off on the platform that it runs on."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from jax.sharding import PartitionSpec as P

from deeppcr._plan.choose import choose_adjoint, choose_method
from deeppcr._plan.costs import ChainCosts
from deeppcr._plan.names import Method, Wanted
from deeppcr.across import HERE, Across, Spread
from deeppcr.adjoint import Adjoint, Autodiff, OnParts, StepByStep, Way, differentiable
from deeppcr.chain import Problem, Steps
from deeppcr.newton import Newton
from deeppcr.platforms import by_platform, differing, platforms
from deeppcr.solution import Operands, Run, Solve
from deeppcr.state import Leaves


def run(problem: Problem, method: Method | None, adjoint: Wanted) -> Run:
    """Solve a chain of one or more steps, differentiably; None stands for "auto"."""
    # Not `problem`: the user's function must not outlive the call.
    costs, across = ChainCosts.of(problem), problem.across

    def seen(platform: str) -> ChainCosts:
        """The chain as its devices share it; those of a CPU are one machine's cores."""
        return costs if platform == "cpu" else costs.shared_by(across.size)

    methods = differing(
        {platform: method or choose_method(seen(platform), platform) for platform in platforms()}
    )
    bound = {platform: found.bind(problem) for platform, found in methods.items()}
    solvers = {platform: solver for platform, (solver, _) in bound.items()}
    operands = {platform: arrays for platform, (_, arrays) in bound.items()}

    def solve(steps: Steps, initial: Leaves, operands: Any) -> Run:
        def on(
            platform: str, initial: Leaves, inputs: Leaves, captured: Leaves, operands: Any
        ) -> Run:
            return on_all_parts(
                solvers[platform], steps, initial, inputs, captured, operands[platform]
            )

        ways = {platform: partial(on, platform) for platform in solvers}
        return by_platform(ways, initial, steps.inputs, steps.captured, operands)

    def choose() -> Mapping[str, Way]:
        found = {
            platform: choose_adjoint(seen(platform), method, platform) for platform in platforms()
        }
        return {
            platform: bind_adjoint(way, method, costs.chain, across)
            for platform, way in differing(found).items()
        }

    given = None if adjoint is None else bind_adjoint(adjoint, method, problem, across)
    solved = differentiable(
        solve, problem.step, problem.layout, problem.length, problem.across, choose
    )
    return solved(problem.initial, problem.inputs, problem.captured, operands, given)


def on_all_parts(
    solver: Solve,
    steps: Steps,
    initial: Leaves,
    inputs: Leaves,
    captured: Leaves,
    operands: Operands,
) -> Run:
    """Solve a chain where it is."""
    spread = steps.across
    if not isinstance(spread, Spread):
        return solver(
            dataclasses.replace(steps, inputs=inputs, captured=captured), initial, operands
        )

    def part(
        initial: Leaves, inputs: Leaves, captured: Leaves, operands: Operands
    ) -> tuple[Any, Any]:
        run = solver(steps.on_part(spread.part, inputs, captured), initial, operands)
        return (run.trajectory, run.outputs), (run.stats, run.result)

    along, whole = spread.along, P()
    run = spread.on_parts(part, (whole, along, whole, Operands(along, whole)), (along, whole))
    states, ending = run(initial, inputs, captured, operands)
    return Run(*states, *ending)


def bind_adjoint(
    adjoint: Wanted, method: Method | None, chain: Problem, across: Across = HERE
) -> Way:
    """An adjoint for a chain that ``method`` solves; None for a method of "auto"."""
    if isinstance(across, Spread):
        if isinstance(adjoint, Autodiff) and not chain.step.has_custom_vjp:
            adjoint = StepByStep()  # the same, part after part
        way = bind_adjoint(adjoint, method, chain)
        return way if isinstance(way, Autodiff) else OnParts(way, across)
    if adjoint is None or isinstance(adjoint, Autodiff) or chain.step.has_custom_vjp:
        newton = isinstance(method, Newton)
        return Autodiff(with_states=chain.step.has_custom_vjp or not newton, with_stats=newton)
    if not isinstance(adjoint, Adjoint):
        return adjoint
    if adjoint.linearize == "auto" and isinstance(method, Newton):
        adjoint = dataclasses.replace(adjoint, linearize=method.linearize)
    return adjoint.bind(chain.step, chain.layout, chain.length)
