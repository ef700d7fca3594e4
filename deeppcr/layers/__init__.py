"""From a list of layers to chains of equal layers."""

from deeppcr.layers.forward import vector_batch
from deeppcr.layers.reading import is_sequential
from deeppcr.layers.segments import Description, describe, divide, programs_of
from deeppcr.layers.stack import Stack

__all__ = [
    "Description",
    "Stack",
    "describe",
    "divide",
    "is_sequential",
    "programs_of",
    "vector_batch",
]


def __dir__() -> list[str]:
    """What is public: not the modules that it comes from."""
    return __all__
