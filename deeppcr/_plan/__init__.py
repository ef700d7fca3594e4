"""Which method and which adjoint pay off.

names.py       methods and adjoints by name
costs.py       what a chain costs, by `depth`: what candidates are sums of
iterations.py  the program of Newton's method, traced with shapes
candidate.py   one candidate, and what its time consists of
candidates.py  those for a chain, and their predicted times
choose.py      the best of them, kept by signature
report.py      `Plan`: the structure, the candidates, the choice and its reason
"""

from deeppcr._plan.candidate import Candidate
from deeppcr._plan.candidates import Candidates
from deeppcr._plan.choose import best_gradient, best_method, choose_method
from deeppcr._plan.costs import ChainCosts
from deeppcr._plan.names import METHODS, Auto, Method, Wanted, find_adjoint, find_method
from deeppcr._plan.report import ChainPlan, Plan

__all__ = [
    "METHODS",
    "Auto",
    "Candidate",
    "Candidates",
    "ChainCosts",
    "ChainPlan",
    "Method",
    "Plan",
    "Wanted",
    "best_gradient",
    "best_method",
    "choose_method",
    "find_adjoint",
    "find_method",
]
