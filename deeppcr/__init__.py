"""Sequential programs in parallel: layers, recurrences and samplers as one system of equations, solved in logarithmic depth."""

from deeppcr.api import forward, scan, solve
from deeppcr.chain import Chain
from deeppcr.linear import (
    Chunked,
    CyclicReduction,
    Dense,
    Diagonal,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
    solve_bidiagonal,
)
from deeppcr.newton import Newton
from deeppcr.sequential import Sequential
from deeppcr.solution import NotConverged, Result, Solution, Stats

__all__ = [
    "Chain",
    "Chunked",
    "CyclicReduction",
    "Dense",
    "Diagonal",
    "Newton",
    "NotConverged",
    "ParallelCyclicReduction",
    "PrefixScan",
    "Recurrence",
    "Result",
    "Sequential",
    "Solution",
    "Stats",
    "forward",
    "scan",
    "solve",
    "solve_bidiagonal",
]
