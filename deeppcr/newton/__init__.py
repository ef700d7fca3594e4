"""`Newton`: all states of a chain at once.

method.py        the method: its options, and their resolution for one chain
iteration.py     linearise, solve, check, repeat: the loop
iterate.py       the state of that loop, its window, its progress, and the sequential fallback
convergence.py   the convergence test, also used by the adjoint
guess.py         the initial trajectory
damping.py       `TrustRegion`, for chains that amplify differences, and their growth rate
acceleration.py  `Anderson`, for iterations that converge slowly
one_kernel.py    a solve as one kernel of a GPU
"""

from deeppcr.newton.guess import Coarse
from deeppcr.newton.iteration import NewtonSolver
from deeppcr.newton.method import Newton

__all__ = ["Coarse", "Newton", "NewtonSolver"]
