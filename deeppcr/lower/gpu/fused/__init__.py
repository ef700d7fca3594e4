"""A recurrence as one kernel of a GPU, step by step."""

from deeppcr.lower.gpu.fused.nvrtc import is_for_gpus, kernels_run, obstacle
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.scan import fused_scan
from deeppcr.lower.gpu.fused.solve import FusedSolve, expecting, fused_solve
from deeppcr.lower.gpu.fused.step import FusedStep
from deeppcr.lower.gpu.fused.windows import SolvedBelow

__all__ = [
    "CannotFuse",
    "FusedSolve",
    "FusedStep",
    "SolvedBelow",
    "expecting",
    "fused_scan",
    "fused_solve",
    "is_for_gpus",
    "kernels_run",
    "obstacle",
]
