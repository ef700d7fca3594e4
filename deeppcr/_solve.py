"""`solve_chain`, the one way from the api down: shards, methods, adjoints and platforms meet here.

The path of a call: ``scan -> solve_chain -> the rule of differentiation -> by_platform ->
NewtonSolver.solve -> while_loop -> iteration``; see docs/design.md.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from deeppcr.adjoint import AdjointSolver, differentiable, resolve_adjoint
from deeppcr.axis import ChainSharding, explicit_mesh, with_auto_axes
from deeppcr.chain import TracedChain
from deeppcr.newton import Newton, NewtonSolver
from deeppcr.plan.choose import choose_adjoint, choose_method
from deeppcr.plan.names import Method, Wanted
from deeppcr.plan.pieces import Pieces
from deeppcr.platforms import differing, platforms
from deeppcr.sequential import Sequential
from deeppcr.sharding import lengthened, shardings_of, shortened, without_shardings
from deeppcr.solution import NotConverged, Result, Run
from deeppcr.state import Leaves


def solve_chain(chain: TracedChain, method: Method | None, adjoint: Wanted) -> Run:
    """Solve a chain of one or more steps, differentiably; None stands for "auto"."""
    mesh = explicit_mesh(chain.initial, chain.inputs, shared=chain.axis.size > 1)
    if mesh is not None:
        return _on_explicit_mesh(chain, method, adjoint, mesh)
    axis = chain.axis
    if isinstance(axis, ChainSharding):
        axis = axis.on_auto_axes
    asked = dataclasses.replace(chain, axis=axis)
    chain = lengthened(asked)
    costs = Pieces.of(chain)

    def seen(platform: str) -> Pieces:
        """The chain as its devices share it; those of a CPU are one machine's cores."""
        return costs if platform == "cpu" else costs.shared_by(axis.size)

    methods = {p: method or choose_method(seen(p), p) for p in platforms()}
    solvers: dict[str, Any] = {}
    for platform, found in differing(methods).items():
        solver = found.bind(chain, asked)
        solvers[platform] = PerShard(solver, axis) if axis.size > 1 else solver

    def choose() -> Mapping[str, AdjointSolver]:
        """The adjoint on each platform, asked for only once a derivative is wanted."""
        wanted = {
            p: choose_adjoint(seen(p), method, p) if adjoint is None else adjoint
            for p in (platforms() if adjoint is None else ["default"])
        }
        return {p: resolve_adjoint(way, method, chain) for p, way in differing(wanted).items()}

    run = differentiable(choose)(dataclasses.replace(chain, function=None), solvers)
    if chain.length > asked.length:
        run = shortened(run, asked.length)
    if isinstance(method, Newton) and method.on_failure == "raise":
        _raise_unless_converged(run, asked.length)
    return run
