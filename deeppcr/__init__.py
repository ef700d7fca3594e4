"""Sequential programs in parallel: layers, recurrences and samplers as one system of equations, solved in logarithmic depth."""

from deeppcr import layers
from deeppcr.api import forward, scan, solve
from deeppcr.chain import Chain
from deeppcr.delay import delay
from deeppcr.linear import (
    Chunked,
    CyclicReduction,
    ParallelCyclicReduction,
    PrefixScan,
    Recurrence,
    solve_bidiagonal,
)
from deeppcr.newton import Newton
from deeppcr.optim import Packed, Packing, pack
from deeppcr.sequential import Sequential
from deeppcr.solution import NotConverged, Result, Solution, Stats
from deeppcr.stack import Stack, stack

__all__ = [
    "Chain",
    "Chunked",
    "CyclicReduction",
    "Newton",
    "NotConverged",
    "Packed",
    "Packing",
    "ParallelCyclicReduction",
    "PrefixScan",
    "Recurrence",
    "Result",
    "Sequential",
    "Solution",
    "Stack",
    "Stats",
    "delay",
    "forward",
    "layers",
    "pack",
    "scan",
    "solve",
    "solve_bidiagonal",
    "stack",
]
