"""A recurrence as one kernel of a GPU, step by step."""

from deeppcr.lower.gpu.fused.nvrtc import is_for_gpus, kernels_run, obstacle
from deeppcr.lower.gpu.fused.operations import CannotFuse
from deeppcr.lower.gpu.fused.primitive import fused_scan
from deeppcr.lower.gpu.fused.step import FusedStep

__all__ = ["CannotFuse", "FusedStep", "fused_scan", "is_for_gpus", "kernels_run", "obstacle"]
