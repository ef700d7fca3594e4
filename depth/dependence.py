"""Which results of a program depend on which of its inputs: whether there is a path.

Coarser than `deeppcr.structure`: one label for a whole array, and a comparison or a rounding counts
as a dependence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from depth.inner import reader
from depth.maxplus import Algebra

Sources = frozenset[int]


class AnyPath(Algebra):
    """Paths without lengths, through any number of trips of a loop where it is not known."""

    all_trips = True

    def weight(self, node: Any) -> int:
        """Nothing takes time."""
        return 0


def dependence(jaxpr: Any, inputs: Sequence[Sources]) -> list[Sources]:
    """The dependences of each result of ``jaxpr``, given those of each input."""
    block, algebra = reader().block(jaxpr), AnyPath(0)
    paths = block.matrix(algebra)[: len(block.outputs), 1:] > algebra.threshold
    results = []
    for row in paths:
        sources = [inputs[i] for i in np.flatnonzero(row).tolist()]
        results.append(Sources().union(*sources))
    return results
