"""Makes sequential JAX programs faster: a drop-in for `jax.lax.scan`, with exact gradients."""

import sys
from typing import Any

from deeppcr.adjoint import Adjoint
from deeppcr.api import scan, solve
from deeppcr.bidiagonal import solve_bidiagonal
from deeppcr.chain.chain import Chain
from deeppcr.choose import Auto
from deeppcr.linear import (
    BlockDiagonals,
    Blocks,
    CyclicReduction,
    Diagonals,
    Matrices,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
    Scalars,
    Zeros,
)
from deeppcr.linearize import BlockDiagonal, Clipped, Diagonal, Linearization, Scalar, Surrogate
from deeppcr.newton import Coarse, Newton
from deeppcr.newton.acceleration import Anderson
from deeppcr.newton.damping import TrustRegion
from deeppcr.sequential import Sequential
from deeppcr.sharding import Sharded
from deeppcr.solution import NotConverged, Result, Solution, SolvedBy, Stats

# isort: split
# Lists of layers are built on the names above; `plan` and `tune` read chains and lists of layers.
from deeppcr.layers.forward import forward
from deeppcr.planning import Plan, plan, tune

# isort: split
# Rooms that are built on the names above, and on `deeppcr.extend`: see docs/design.md.
from deeppcr import diffusion, extend, layers, sharding
from deeppcr._stack import stack, unstack
from deeppcr.jacobi import TriangularSolution, triangular
from deeppcr.layers import Stack
from deeppcr.recipes import delay, masked, resetting

__version__ = "0.2.0"  # the one place where it is written: pyproject.toml reads it here

__all__ = [
    "Adjoint",
    "Anderson",
    "Auto",
    "BlockDiagonal",
    "BlockDiagonals",
    "Blocks",
    "Chain",
    "Clipped",
    "Coarse",
    "CyclicReduction",
    "Diagonal",
    "Diagonals",
    "Linearization",
    "Matrices",
    "Newton",
    "NotConverged",
    "ParallelCyclicReduction",
    "Plan",
    "PrefixScan",
    "Recurrence",
    "Result",
    "Scalar",
    "Scalars",
    "Sequential",
    "Sharded",
    "Solution",
    "SolvedBy",
    "Stack",
    "Stats",
    "Surrogate",
    "TriangularSolution",
    "TrustRegion",
    "Zeros",
    "delay",
    "diffusion",
    "extend",
    "forward",
    "layers",
    "masked",
    "plan",
    "resetting",
    "scan",
    "sharding",
    "solve",
    "solve_bidiagonal",
    "stack",
    "triangular",
    "tune",
    "unstack",
]


def __getattr__(name: str) -> Any:
    """`deeppcr.nn`, which needs flax, is imported when it is first used."""
    if name != "nn":
        module = sys.modules[__name__]  # from which Python suggests names
        raise AttributeError(f"module 'deeppcr' has no attribute {name!r}", name=name, obj=module)
    import importlib

    return importlib.import_module("deeppcr.nn")


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from, whose names differ by a capital."""
    from importlib.util import find_spec

    return [*__all__, "__version__", *(["nn"] if find_spec("flax") else [])]
