"""Derivatives of a chain, independent of the method that computed its states.

rules.py            the tangent equations as one linear system; its transpose is backpropagation
custom_vjp.py       steps with a linear `jax.custom_vjp`, in both modes
transposed.py       linear functions for `jax.lax.custom_linear_solve`
solver.py           `AdjointSolver`, the protocol of solvers of this system
backpropagation.py  one step after another
jacobian.py         Jacobian blocks of all steps and one linear recurrence
refine.py           the same with approximate blocks
per_shard.py        both, for a chain that is sharded over devices
resolve.py          the adjoint of one chain: as given, or as chosen
"""

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.jacobian import Adjoint, JacobianAdjoint
from deeppcr.adjoint.rules import Autodiff, pushes
from deeppcr.adjoint.solver import AdjointSolver

__all__ = [
    "Adjoint",
    "AdjointSolver",
    "Autodiff",
    "Backpropagation",
    "JacobianAdjoint",
    "pushes",
]
