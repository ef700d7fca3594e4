"""The diagonal of the Jacobian: quasi-DEER (Gonzalez et al., NeurIPS 2024), and Newton's method where steps are elementwise.

    diag(J) = sum_s d_s * (J d_s)

holds for any 0/1 directions d_s that add up to one, if no two entries that one direction moves influence each other. So an
elementwise step needs one derivative, a step of k x k blocks k of them, and only a dense one w. With random signs d_s in place of
them the mean over s is the diagonal in expectation (Hutchinson's estimator), its variance the sum of the squares beside the
diagonal.
"""

import dataclasses

import jax
import numpy as np
from jax import Array

from deeppcr.chain import TracedChain
from deeppcr.checks import check_count
from deeppcr.linear import Blocks, Diagonals
from deeppcr.linearize.jacobian import diagonals, seeds
from deeppcr.linearize.linearization import Linearization
from deeppcr.state import StateLayout
from deeppcr.step import Step
from deeppcr.structure import find_structure

MOST = 64  # derivatives of every step, up to which the diagonal is computed exactly
PROBES = 16


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Diagonal(Linearization):
    """``A_l = diag(df/dz)``: w log L for the recurrence.

    Attributes:
        probes: None: exact where 64 derivatives of every step suffice, else estimated with 16 probes. 0: exact. Or how many
            random probes to estimate it with.
    """

    probes: int | None = None

    def __post_init__(self) -> None:
        check_count(
            "probes", self.probes, "how many random probes, 0 for none", least=0, optional=True
        )

    def blocks(self, chain: TracedChain, states: Array) -> Blocks:
        """See `Linearization`."""
        structure = find_structure(chain.step, chain.layout)
        probes = self._probes(structure.groups.shape[1])
        if not probes:
            return Diagonals(diagonals(chain, states, seeds(structure.groups, chain.layout.width)))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (probes, chain.layout.width))
        return Diagonals(diagonals(chain, states, signs / np.sqrt(probes)))

    def _probes(self, needed: int) -> int:
        if self.probes is None:
            return PROBES if needed > MOST else 0
        return self.probes if needed > self.probes else 0

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return layout.width * layout.examples * layout.dtype.itemsize

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """See `Linearization`."""
        structure = find_structure(step, layout)
        return structure.separate and structure.groups.shape[1] == 1

    def __str__(self) -> str:
        return "diagonal" if not self.probes else f"diagonal, by {self.probes} probes"
