"""A recurrence as one kernel of a GPU, step by step."""

from deeppcr.fused.nvrtc import obstacle
from deeppcr.fused.operations import CannotFuse
from deeppcr.fused.primitive import fused_scan
from deeppcr.fused.step import FusedStep

__all__ = ["CannotFuse", "FusedStep", "fused_scan", "obstacle"]
