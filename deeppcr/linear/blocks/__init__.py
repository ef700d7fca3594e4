"""The kinds of blocks ``A_l`` of a linear recurrence; `Blocks` says what a solver needs of them.

Matrices        full matrices                         w^2 numbers per step
BlockDiagonals  small matrices on groups of entries   w k
Diagonals       diagonal matrices                     w
Scalars         ``c_l I``                             1
Zeros           zero: the steps are decoupled         0
"""

from deeppcr.linear.blocks.base import Blocks
from deeppcr.linear.blocks.block_diagonals import BlockDiagonals
from deeppcr.linear.blocks.diagonals import Diagonals, Scalars, Zeros
from deeppcr.linear.blocks.matrices import Matrices

__all__ = ["BlockDiagonals", "Blocks", "Diagonals", "Matrices", "Scalars", "Zeros"]
