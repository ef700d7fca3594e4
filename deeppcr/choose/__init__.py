"""The rule behind "auto": which method computes the states, and which adjoint the derivatives.

- What cannot be solved in parallel is `jax.lax.scan`.
- On a CPU: the loop, and backpropagation. No parallel forward pass was faster; a parallel adjoint
  was for some narrow chains. The gradients of arrays are summed step by step, which compiles as
  fast as jax's; or at once, if their products are worth compiling another program. jax's own is for
  small loops that XLA compiles well, and large states, if it keeps little, or some steps at a time.
- On an accelerator: the least of three times, in seconds. A loop launches some kernels in each
  step. One kernel runs all steps, and takes as long as its instructions. Newton's method takes some
  iterations, each a few launches for each of the log2 L rounds of its solver, and the traffic of
  its Jacobian blocks: it is for few long chains and small blocks. Picard iteration has no blocks:
  it is for residual layers whose program says that they are small.

`deeppcr.plan` prints what the rule takes and why, and `deeppcr.tune` measures.
"""

from deeppcr.choose.rule import (
    AdjointOption,
    Auto,
    Choice,
    Method,
    MethodOption,
    always_loops,
    choose_adjoint,
    choose_method,
    find_adjoint,
    find_method,
    left_to_jax,
    loops_of,
)

__all__ = [
    "AdjointOption",
    "Auto",
    "Choice",
    "Method",
    "MethodOption",
    "always_loops",
    "choose_adjoint",
    "choose_method",
    "find_adjoint",
    "find_method",
    "left_to_jax",
    "loops_of",
]
