"""`Ran`: which method computed a solution, and why.

"auto" decides for each platform while jax lowers a program, and a solution passes through
`jax.jit`, `jax.vmap`, `jax.lax.cond` and `jax.lax.scan`. A description that travels beside the
arrays would tell of another run as soon as `jax.lax.cond` takes the other branch, and two branches
with different descriptions would not even have the same structure. So a `Ran` holds numbers: in
the program of one method on one platform they are constants, and jax carries them wherever it
carries the states. They become words when they are printed.
"""

import dataclasses
import enum
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# The names stand in pickled solutions as numbers: new ones come last.
SEQUENTIAL = 0
BLOCKS = (
    *("other", "dense", "diagonal", "block diagonal", "scalar", "zero", "identity"),
    *("surrogate", "clipped"),
)
SOLVERS = ("other", "none", "sequential", "pcr", "cyclic_reduction", "prefix_scan", "chunked")


class Why(enum.IntEnum):
    """Why a method ran: the values of ``Ran.why``."""

    ASKED = 0
    """It is the caller's ``method``."""
    CHOSEN = 1
    """ "auto" chose it, by its rule: `deeppcr.plan` says why."""
    AS_SCAN = 2
    """ "auto" left the chain to `jax.lax.scan`: it cannot be solved in parallel, or ``adjoint`` is
    "autodiff"."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["method", "why"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Ran:
    """Which method ran, and why. Printed, both in words.

    Numbers, so that they stay true under `jax.jit`, `jax.vmap`, `jax.lax.cond` and `jax.lax.scan`.
    Under `jax.vmap` every field has the mapped axes in front.

    Attributes:
        method: int32 scalar, 0 for the sequential program. Others stand for a linearisation and a
            solver of Newton's method: see ``name``.
        why: int32 scalar, 0 for a method that the caller asked for; 1 if "auto" chose it; 2 if the
            chain runs as `jax.lax.scan`.

    Example:
        >>> chain = deeppcr.Chain(lambda z, x: jnp.tanh(z + x), jnp.linspace(0.0, 1.0, 100))
        >>> newton = deeppcr.Newton(linear="pcr")
        >>> ran = deeppcr.solve(chain, jnp.array(0.5), method=newton).ran
        >>> print(ran)
        newton (diagonal, pcr)
        >>> bool(ran.is_newton), ran.name
        (True, 'newton (diagonal, pcr)')
    """

    method: Array
    why: Array

    @classmethod
    def sequential(cls, shape: tuple[int, ...] = (), why: Why = Why.ASKED) -> "Ran":
        """The sequential program, for a solution of ``shape`` mapped axes."""
        return cls.of(SEQUENTIAL, why, shape)

    @classmethod
    def newton(cls, blocks: str, solver: str, is_damped: bool) -> "Ran":
        """Newton's method, by names in `BLOCKS` and `SOLVERS`; others are "other"."""
        kind = BLOCKS.index(blocks if blocks in BLOCKS else "other")
        code = SOLVERS.index(solver if solver in SOLVERS else "other") + len(SOLVERS) * kind
        return cls.of(1 + 2 * code + is_damped, Why.ASKED)

    @classmethod
    def of(cls, method: int, why: Why, shape: tuple[int, ...] = ()) -> "Ran":
        """From numbers that are known while jax traces."""
        return cls(*(jnp.full(shape, each, jnp.int32) for each in (method, int(why))))

    def because(self, why: Why) -> "Ran":
        """The same run, for this reason."""
        return dataclasses.replace(self, why=jnp.full_like(self.why, int(why)))

    @property
    def is_newton(self) -> Array:
        """Bool scalar: whether it was Newton's method, or a quasi-Newton method."""
        return self.method != SEQUENTIAL

    @property
    def is_damped(self) -> bool:
        """Whether Newton's method limited its updates: `TrustRegion`. Not under `jax.jit`."""
        return int(self.method) != SEQUENTIAL and (int(self.method) - 1) % 2 == 1

    @property
    def name(self) -> str:
        """The method in words, such as "newton (dense, pcr)". Not under `jax.jit`."""
        if (code := int(self.method)) == SEQUENTIAL:
            return "sequential"
        pair, is_damped = divmod(code - 1, 2)
        kind, solver = divmod(pair, len(SOLVERS))
        words = [BLOCKS[kind], SOLVERS[solver], "damped" if is_damped else "none"]
        return f"newton ({', '.join(word for word in words if word != 'none')})"

    def __str__(self) -> str:
        if np.ndim(self.method) or isinstance(self.method, jax.core.Tracer):
            return repr(self)
        reasons = {
            Why.ASKED: "",
            Why.CHOSEN: ", chosen by auto",
            Why.AS_SCAN: ", chosen by auto: it runs as jax.lax.scan",
        }
        return self.name + reasons[Why(int(self.why))]
