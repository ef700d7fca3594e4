"""The structure of a step's Jacobian, proven from its program.

That is, which entries of the state can influence each other.
"""

from deeppcr.structure.find import Structure, examples_are_separate, find_structure

__all__ = ["Structure", "examples_are_separate", "find_structure"]
