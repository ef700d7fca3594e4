"""Which entries of the state can influence each other, proven from the program of a step."""

from deeppcr.structure.find import MIXED, Structure, find_structure

__all__ = ["MIXED", "Structure", "find_structure"]
