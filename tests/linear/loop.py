"""The oracle, a loop over full matrices, and problems for it with every kind of blocks."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from deeppcr.linear import BlockDiagonals, Blocks, Diagonals, Matrices, Scalars, Zeros

# With widths that compile fast.
KINDS = {"matrices": 2, "pairs": 4, "ragged": 4, "diagonals": 3, "scalars": 3, "zeros": 3}


def compiled(function, **options):
    """`jax.jit` that compiles in half the time, for programs that run once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0}, **options)


def loop(blocks, b, reverse=False, initial=None):
    """``y_l = A_l y_{l-1} + b_l`` in numpy; ``blocks`` may also be an array of full matrices."""
    A, b = full(blocks) if isinstance(blocks, Blocks) else np.asarray(blocks), np.asarray(b)
    y, state = (
        np.zeros_like(b),
        np.zeros(b.shape[1:], b.dtype) if initial is None else np.asarray(initial),
    )
    for step in reversed(range(len(b))) if reverse else range(len(b)):
        state = np.einsum("...ij,...j->...i", A[step], state) + b[step]
        y[step] = state
    return y


def loop_transposed(blocks, g, reverse=False):
    """``lam_l = g_l + A_{l+1}^T lam_{l+1}``: backwards, with the block of the step after."""
    A = np.swapaxes(full(blocks), -1, -2)
    return loop(np.roll(A, 1 if reverse else -1, axis=0), g, not reverse)


def scan(blocks, b, initial, reverse=False):
    """The same loop, differentiable."""

    def step(y, inputs):
        A_l, b_l = inputs
        y = (A_l @ y[..., None])[..., 0] + b_l
        return y, y

    return lax.scan(step, initial, (full(blocks, jnp), b), reverse=reverse)[1]


def full(blocks, xp=np):
    """Blocks of any kind as matrices, ``[L, *batch, w, w]``; differentiable with ``xp=jnp``."""
    eye = np.eye(blocks.width, dtype=blocks.dtype)
    match blocks:
        case Matrices(matrix):
            return xp.asarray(matrix)
        case BlockDiagonals(matrix, groups):
            rows = np.array(groups.rows)
            used = np.broadcast_to((rows >= 0)[:, :, None] & (rows >= 0)[:, None, :], matrix.shape)
            return xp.einsum(
                "gia,...gij,gjb->...ab",
                eye[rows],
                xp.where(used, matrix, xp.zeros_like(matrix)),
                eye[rows],
            )
        case Diagonals(diagonal):
            return xp.einsum("...i,ij->...ij", diagonal, eye)
        case Scalars(scalar):
            scalar = scalar.reshape(-1, *(1,) * (len(blocks.vector_shape) - 1))
            return xp.einsum("...i,ij->...ij", xp.broadcast_to(scalar, blocks.vector_shape), eye)
        case Zeros():
            return xp.zeros((*blocks.vector_shape, blocks.width), blocks.dtype)
    raise ValueError(blocks)


def ragged(width):
    """Groups of two and of one entry, in no order."""
    entries = np.random.default_rng(width).permutation(width).tolist()
    rows = []
    while entries:
        row, entries = entries[: 2 - len(rows) % 2], entries[2 - len(rows) % 2 :]
        rows.append([*row, -1][:2])
    return np.array(rows, np.int32)


def problem(kind, length, batch, width, seed=0):
    """Blocks of norm about 1/2, with NaN in ignored entries; and right-hand sides."""
    rng = np.random.default_rng(seed)
    b = jax.device_put(rng.normal(size=(length, *batch, width)))

    def blocks(*shape, mixed=1):
        return rng.normal(size=(length, *shape)) / (2 * np.sqrt(mixed))

    match kind:
        case "matrices":
            return Matrices(jax.device_put(blocks(*batch, width, width, mixed=width))), b
        case "diagonals":
            return Diagonals(jax.device_put(blocks(*batch, width))), b
        case "scalars":
            return Scalars(jax.device_put(blocks()), batch, width), b
        case "zeros":
            return Zeros.like(b), b
        case "pairs":
            groups = np.arange(width, dtype=np.int32).reshape(2, -1).T
            return BlockDiagonals(
                jax.device_put(blocks(*batch, len(groups), 2, 2, mixed=2)), groups
            ), b
        case "ragged":
            groups = ragged(width)
            matrix = blocks(*batch, len(groups), 2, 2, mixed=2)
            matrix[..., groups < 0, :] = np.nan
            np.swapaxes(matrix, -1, -2)[..., groups < 0, :] = np.nan
            return BlockDiagonals(jax.device_put(matrix), groups), b
    raise ValueError(kind)
