"""The diagonal of the Jacobian: quasi-DEER (Gonzalez et al., NeurIPS 2024).

Where the steps are elementwise, this is Newton's method.

    diag(J) = sum_s d_s * (J d_s)

holds for 0/1 directions d_s that add up to one, if no two entries of the same direction influence
each other. So an elementwise step needs one derivative, a step of k x k blocks needs k, and a dense
one needs w. With random signs d_s instead, the mean over s is the diagonal in expectation
(Hutchinson's estimator). Its variance is the sum of the squares of the off-diagonal entries.
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

# By default the diagonal is exact if it takes at most this many derivatives of a step.
MAX_DERIVATIVES = 64
PROBES = 16


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Diagonal(Linearization):
    """$A_l = diag(df/dz)$: quasi-DEER. Newton's method if the step is elementwise.

    The blocks take w numbers per step.

    Attributes:
        probes: integer >= 0, the number of random probes that estimate the diagonal, each of which
            costs one derivative of the step; 0: the exact diagonal. None: exact if that takes at
            most 64 derivatives of a step, else 16 probes.

    Raises:
        ValueError: ``probes`` is negative.
        TypeError: ``probes`` is not an integer.

    Example:
        >>> w = 0.1 * jnp.ones((8, 8)) + 0.5 * jnp.eye(8)
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z @ w + x), jnp.ones((100, 8)))
        >>> newton = deeppcr.Newton(linearize=deeppcr.Diagonal())
        >>> bool(deeppcr.solve(chain, jnp.zeros(8), method=newton).converged)
        True

    References:
        X. Gonzalez et al., *Towards Scalable and Stable Parallelization of Nonlinear RNNs*, NeurIPS
        2024. The estimate: M. F. Hutchinson, Communications in Statistics 18, 1989.
    """

    probes: int | None = None

    def __post_init__(self) -> None:
        check_count(
            "probes", self.probes, "the number of random probes, 0 for none", least=0, optional=True
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
            return PROBES if needed > MAX_DERIVATIVES else 0
        return self.probes if needed > self.probes else 0

    def bytes_per_step(self, step: Step, layout: StateLayout) -> int:
        """See `Linearization`."""
        return layout.width * layout.batch_size * layout.dtype.itemsize

    def is_exact(self, step: Step, layout: StateLayout) -> bool:
        """See `Linearization`."""
        structure = find_structure(step, layout)
        return structure.separate and structure.groups.shape[1] == 1

    def __str__(self) -> str:
        return "diagonal" if not self.probes else f"diagonal, by {self.probes} probes"
