"""From a list of layers to chains of equal layers."""

from deeppcr.layers.repeated import Repeated
from deeppcr.layers.segments import Description, Segment, apply_layers, describe, repeated

__all__ = ["Description", "Repeated", "Segment", "apply_layers", "describe", "repeated"]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
