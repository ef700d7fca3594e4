"""The number of iterations to expect, before anything runs."""

# Iterations of Newton's method on chains that forget: of gated cells 4 to 6, of tanh layers 8, at
# any length (H100, jax 0.11.2, products in full precision).
USUAL = 6
# Iterations without exact Jacobians, in those with: a trained GRU takes 2.6 times as many, other
# chains 2 to 10.
QUASI = 3
# Of an affine step: one, and another that confirms it unless its blocks are seen to contract.
AFFINE = 2


def expected_iterations(
    length: int,
    is_exact: bool = True,
    windows: int = 1,
    newton: int | None = None,
    is_affine: bool = False,
) -> int:
    """The expected number of iterations.

    Args:
        length: the number of steps that are solved at once.
        is_exact: whether the Jacobians are exact.
        windows: the number of windows, which are solved one after another.
        newton: the number for one window with exact Jacobians, if it is known; None for the
            default, which is typical of contracting chains.
        is_affine: whether the step is affine in its state.
    """
    usual = AFFINE if is_affine and is_exact else USUAL
    each = newton or usual
    return windows * min(each if is_exact else QUASI * each, length + 1)
