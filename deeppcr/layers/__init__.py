"""From a list of layers to chains of equal layers."""

from deeppcr.layers.forward import vector_batch
from deeppcr.layers.reading import is_sequential
from deeppcr.layers.repeated import Repeated
from deeppcr.layers.segments import (
    Description,
    describe,
    describe_segments,
    repeated,
    segments_of,
)

__all__ = [
    "Description",
    "Repeated",
    "describe",
    "describe_segments",
    "is_sequential",
    "repeated",
    "segments_of",
    "vector_batch",
]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
