"""Derivatives of a chain, whichever way its states were found.

rules.py         the tangent equations as one linear system, and backpropagation as the transpose of its solution
step_by_step.py  what solves such a system: a `Propagation`; one step after another
by_blocks.py     Jacobian blocks of all steps and one linear recurrence
refine.py        the same with blocks that are only nearly right
on_parts.py      either, for a chain that is spread over devices
"""

from deeppcr.adjoint.by_blocks import Adjoint, ByBlocks
from deeppcr.adjoint.on_parts import OnParts
from deeppcr.adjoint.rules import Autodiff, Way, differentiable
from deeppcr.adjoint.step_by_step import Propagation, StepByStep

__all__ = [
    "Adjoint",
    "Autodiff",
    "ByBlocks",
    "OnParts",
    "Propagation",
    "StepByStep",
    "Way",
    "differentiable",
]
