"""Derivatives of a chain, independent of the method that computed its states.

rules.py            the tangent equations as one linear system; its transpose is backpropagation
backpropagation.py  the same by loops on one device: one linear function, one loop each way
tangents.py         what is differentiated, and the program of a step's tangents
jacobian.py         Jacobian blocks of all steps and one linear recurrence
one_kernel.py       the adjoint states by one kernel of a GPU
"""

from deeppcr.adjoint.backpropagation import Backpropagation
from deeppcr.adjoint.jacobian import Adjoint, JacobianAdjoint
from deeppcr.adjoint.rules import AdjointSolver, Autodiff, pushes, resolve_adjoint

__all__ = [
    "Adjoint",
    "AdjointSolver",
    "Autodiff",
    "Backpropagation",
    "JacobianAdjoint",
    "pushes",
    "resolve_adjoint",
]
