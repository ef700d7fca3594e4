"""Derivatives of a chain, whichever way its states were found.

rules.py            the tangent equations as one linear system; its transpose is backpropagation
custom_vjp.py       steps with a `jax.custom_vjp`, differentiated as any other where that can be
transposed.py       linear functions for `jax.lax.custom_linear_solve`
solver.py           `AdjointSolver`, what solves such a system
backpropagation.py  one step after another
jacobian.py         Jacobian blocks of all steps and one linear recurrence
refine.py           the same with blocks that are only nearly right
per_shard.py        either, for a chain that is sharded over devices
resolve.py          an adjoint that was asked for, or chosen, for one chain
"""

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.jacobian import Adjoint, JacobianAdjoint
from deeppcr.adjoint.rules import Autodiff, Way, pushes
from deeppcr.adjoint.solver import AdjointSolver

__all__ = [
    "Adjoint",
    "AdjointSolver",
    "Autodiff",
    "Backpropagation",
    "JacobianAdjoint",
    "Way",
    "pushes",
]
