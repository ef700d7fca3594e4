"""Optimizers on flat arrays: `packing` lays out pytrees, `transform` wraps optimizers."""

from deeppcr.optim.packing import Packed, Packing
from deeppcr.optim.transform import pack

__all__ = ["Packed", "Packing", "pack"]
