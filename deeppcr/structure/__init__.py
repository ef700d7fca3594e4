"""What a step's program proves about its Jacobian, before anything runs.

Which entries of the state can influence each other.
"""

from deeppcr.structure.find import Structure, examples_are_separate, find_structure

__all__ = ["Structure", "examples_are_separate", "find_structure"]
