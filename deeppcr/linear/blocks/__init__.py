"""What the blocks ``A_l`` of a linear recurrence can be, one file a kind: `Blocks` says what a solver needs of them.

Matrices        full                                       w^2 numbers a step
BlockDiagonals  small matrices on groups of entries        w k
Diagonals       diagonal                                   w
Scalars         ``c_l I``                                  1
Zeros           nothing: every step stands alone           0
"""

from deeppcr.linear.blocks.base import Blocks
from deeppcr.linear.blocks.block_diagonals import BlockDiagonals
from deeppcr.linear.blocks.diagonals import Diagonals
from deeppcr.linear.blocks.matrices import Matrices
from deeppcr.linear.blocks.scalars import Scalars
from deeppcr.linear.blocks.zeros import Zeros

__all__ = ["BlockDiagonals", "Blocks", "Diagonals", "Matrices", "Scalars", "Zeros"]
