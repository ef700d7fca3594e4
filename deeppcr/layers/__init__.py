"""From users' layers to chains: what they are made of, which are alike, and where they make a chain."""

from deeppcr.layers.code import as_callable
from deeppcr.layers.describe import Description, describe
from deeppcr.layers.reading import Layer, listed, read, shapes_of
from deeppcr.layers.repeated import Repeated, repeated, stack_layers
from deeppcr.layers.segments import Segment, segments

__all__ = [
    "Description",
    "Layer",
    "Repeated",
    "Segment",
    "as_callable",
    "describe",
    "listed",
    "read",
    "repeated",
    "segments",
    "shapes_of",
    "stack_layers",
]
