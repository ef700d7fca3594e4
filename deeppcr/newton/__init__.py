"""`Newton`: all states of a chain at once.

method.py       the method: its options, and how it is bound to a chain
iteration.py    linearise, solve, check, repeat, over a window that slides along the chain
convergence.py  when an iterate is the answer
guess.py        the trajectory to start from
precision.py    float32 or better inside
rescue.py       finishing step by step
"""

from deeppcr.convergence import ROUNDING, Criterion, largest, leading
from deeppcr.newton.guess import Coarse
from deeppcr.newton.method import Newton

__all__ = ["ROUNDING", "Coarse", "Criterion", "Newton", "largest", "leading"]
