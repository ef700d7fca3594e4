"""Optimizers on flat arrays, one a dtype: `packing` lays pytrees out, `transform` wraps optimizers, `equivalence` checks them."""

from deeppcr.optim.packing import Packed, Packing
from deeppcr.optim.transform import PackState, pack

__all__ = ["PackState", "Packed", "Packing", "pack"]
