"""`Newton`: all states of a chain at once.

    method.py       the method: its options, and what they come to for one chain
    iteration.py    linearise, solve, check, repeat, over a window that slides along the chain
    guess.py        the trajectory to start from
    precision.py    float32 or better inside
    fallback.py     the sequential fallback

`deeppcr.convergence` says when an iterate is the answer, for the adjoint as well.
"""

from deeppcr.newton.guess import Coarse
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.newton.method import Newton

__all__ = ["Coarse", "Newton", "NewtonSolver"]
