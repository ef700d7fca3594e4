"""Which method and which adjoint pay off.

names.py       methods and adjoints by name
pieces.py      what candidates are made of, and what each piece costs, by `depth`
candidates.py  what is in the running, and its predicted time
choose.py      the best of them, kept by signature
"""

from deeppcr.plan.candidates import Candidate, Field
from deeppcr.plan.choose import best_gradient, best_method, choose_method
from deeppcr.plan.names import METHODS, Auto, Method, Wanted, find_adjoint, find_method
from deeppcr.plan.pieces import Pieces
from deeppcr.plan.report import ChainPlan, Plan
from deeppcr.plan.trials import read_trials, write_trials

__all__ = [
    "METHODS",
    "Auto",
    "Candidate",
    "ChainPlan",
    "Field",
    "Method",
    "Pieces",
    "Plan",
    "Wanted",
    "best_gradient",
    "best_method",
    "choose_method",
    "find_adjoint",
    "find_method",
    "read_trials",
    "write_trials",
]
