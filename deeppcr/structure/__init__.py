"""Which entries of the state can influence each other, proven from the program of a step."""

from deeppcr.structure.find import Structure, find_structure

__all__ = ["Structure", "find_structure"]
