"""`Newton`: all states of a chain at once.

    method.py        the method: its options, and what they come to for one chain
    iteration.py     linearise, solve, check, repeat, over a window that slides along the chain
    convergence.py   when is an iterate the answer? The adjoint asks, too
    guess.py         the trajectory to start from
    damping.py       `TrustRegion`, for chains that amplify differences
    acceleration.py  `Anderson`, for iterations that converge slowly
    lyapunov.py      how fast differences grow, and what that means for Newton's method
    precision.py     float32 or better inside
    fallback.py      the sequential fallback
"""

from deeppcr.newton.guess import Coarse
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.newton.method import Newton

__all__ = ["Coarse", "Newton", "NewtonSolver"]
