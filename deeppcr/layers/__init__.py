"""From a list of layers to chains of equal layers."""

from deeppcr.layers.repeated import Repeated
from deeppcr.layers.segments import Description, Segment, apply_layers, describe, repeated

__all__ = ["Description", "Repeated", "Segment", "apply_layers", "describe", "repeated"]
