"""A chain solved as it is asked for, where "auto" stands for what pays off on the platform that it runs on."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from deeppcr.adjoint import Adjoint, Autodiff, Way, differentiable
from deeppcr.chain import Problem, Steps
from deeppcr.newton import Newton
from deeppcr.plan.choose import choose_adjoint, choose_method
from deeppcr.plan.names import Method, Wanted
from deeppcr.plan.pieces import Pieces
from deeppcr.platforms import by_platform, differing, platforms
from deeppcr.solution import Run
from deeppcr.state import Leaves


def run(problem: Problem, method: Method | None, adjoint: Wanted) -> Run:
    """Solve a chain of one or more steps, differentiably; None stands for "auto"."""
    pieces = Pieces.of(problem)  # not `problem`: the user's function must not outlive the call
    methods = differing({platform: method or choose_method(pieces, platform) for platform in platforms()})
    bound = {platform: found.bind(problem) for platform, found in methods.items()}
    solvers = {platform: solver for platform, (solver, _) in bound.items()}
    operands = {platform: arrays for platform, (_, arrays) in bound.items()}

    def solve(steps: Steps, initial: Leaves, operands: Any) -> Run:
        def on(platform: str, initial: Leaves, inputs: Leaves, captured: Leaves, operands: Any) -> Run:
            here = dataclasses.replace(steps, inputs=inputs, captured=captured)
            return solvers[platform](here, initial, operands[platform])

        ways = {platform: partial(on, platform) for platform in solvers}
        return by_platform(ways, initial, steps.inputs, steps.captured, operands)

    def choose() -> Mapping[str, Way]:
        found = {platform: choose_adjoint(pieces, method, platform) for platform in platforms()}
        return {platform: bind_adjoint(way, method, pieces) for platform, way in differing(found).items()}

    given = None if adjoint is None else bind_adjoint(adjoint, method, pieces)
    solved = differentiable(solve, problem.step, problem.layout, problem.length, choose)
    return solved(problem.initial, problem.inputs, problem.captured, operands, given)


def bind_adjoint(adjoint: Wanted, method: Method | None, pieces: Pieces) -> Way:
    """An adjoint for a chain that ``method`` solves; None for a method of "auto"."""
    if adjoint is None or isinstance(adjoint, Autodiff) or pieces.step.has_custom_vjp:
        return Autodiff(with_states=not isinstance(method, Newton))
    if not isinstance(adjoint, Adjoint):
        return adjoint
    if adjoint.linearize == "auto" and isinstance(method, Newton):
        adjoint = dataclasses.replace(adjoint, linearize=method.linearize)
    return adjoint.bind(pieces.step, pieces.layout, pieces.length)
