"""`Newton`: all states of a chain at once.

    method.py       the method: its options, and how it is bound to a chain
    iteration.py    linearise, solve, check, repeat, over a window that slides along the chain
    guess.py        the trajectory to start from
    precision.py    float32 or better inside
    rescue.py       finishing step by step

When an iterate is the answer is said in `deeppcr.convergence`, for the adjoint as well.
"""

from deeppcr.newton.guess import Coarse
from deeppcr.newton.method import Newton

__all__ = ["Coarse", "Newton"]
