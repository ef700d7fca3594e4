"""Linear combinations of what a step knows: the formulas of the schedulers, as they are written.

    update = {"x": keep * X + gain * X0, "y": X0}

Coefficients are numbers, or arrays ``[L]`` with one for each step.
"""

from typing import Any

import numpy as np

Column = np.ndarray | float


class Terms(dict[str, Any]):
    """A linear combination: its coefficients by the names of the terms."""

    __array_ufunc__ = None  # a product with an array of numpy is that of `__rmul__`

    def __add__(self, other: "Terms") -> "Terms":
        return Terms({name: self.get(name, 0.0) + other.get(name, 0.0) for name in self | other})

    def __sub__(self, other: "Terms") -> "Terms":
        return self + -1.0 * other

    def __rmul__(self, factor: Column) -> "Terms":
        return Terms({name: factor * column for name, column in self.items()})


def term(name: str) -> Terms:
    """One term of this name: of a memory, for example."""
    return Terms({name: 1.0})


# The sample, the model's output, the sample that it predicts, and fresh noise.
X, OUTPUT, X0, NOISE = map(term, ("x", "m", "x0", "noise"))


def by_step(rows: list[Terms]) -> Terms:
    """One combination for all steps, from those of single steps."""
    columns = Terms()
    for name in sum(rows, Terms()):
        columns[name] = np.array([row.get(name, 0.0) for row in rows])
    return columns
