"""From users' layers to chains: what they are made of, which are alike, and where they make a chain."""

from deeppcr.layers.code import as_callable
from deeppcr.layers.describe import Description, describe
from deeppcr.layers.reading import Layer, Reader, listed, read
from deeppcr.layers.repeated import Repeated, repeated, stack_layers
from deeppcr.layers.segments import Segment, segments
from deeppcr.layers.trial import is_of_jax, shapes_of

__all__ = [
    "Description",
    "Layer",
    "Reader",
    "Repeated",
    "Segment",
    "as_callable",
    "describe",
    "is_of_jax",
    "listed",
    "read",
    "repeated",
    "segments",
    "shapes_of",
    "stack_layers",
]
