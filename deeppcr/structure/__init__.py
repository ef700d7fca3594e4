"""The structure of a step's Jacobian, proven from its program.

That is, which entries of the state can influence each other, and where the step may jump.
"""

from deeppcr.structure.find import Structure, examples_are_separate, find_structure
from deeppcr.structure.jumps import Jump, find_jumps

__all__ = ["Jump", "Structure", "examples_are_separate", "find_jumps", "find_structure"]
