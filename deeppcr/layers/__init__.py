"""From a list of layers to chains of equal layers."""

from deeppcr.layers.reading import is_sequential, listed
from deeppcr.layers.repeated import Repeated
from deeppcr.layers.segments import (
    FEW_LAYERS,
    Description,
    Segment,
    apply_layers,
    call_layers,
    describe,
    describe_segments,
    repeated,
    segments_of,
)

__all__ = [
    "FEW_LAYERS",
    "Description",
    "Repeated",
    "Segment",
    "apply_layers",
    "call_layers",
    "describe",
    "describe_segments",
    "is_sequential",
    "listed",
    "repeated",
    "segments_of",
]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
