"""Which entries of the state can influence each other, proven from the program of a step."""

from deeppcr.structure.find import Structure, examples_are_separate, find_structure

__all__ = ["Structure", "examples_are_separate", "find_structure"]
