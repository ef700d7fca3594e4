"""How long XLA takes to compile a program for a TPU, which may be minutes.

It takes about as long for each kernel, and for each matrix of a batched product, which it writes
out. So a solver compiles as long as its rounds have products: that of 32 x 32 blocks far longer
than that of 16 x 16, which are sums.
"""

from depth.kernels import Kernel, KernelChoice, KernelLoop, KernelProgram, OneKernelLoop, Part

# Of two CPU cores. tanh, 32 units, 1,024 steps, gradient by Newton's method: 46 s for 36 products
# and 260 kernels; GRU, 64 units, forward: 32 s (jax 0.12.0, libtpu 0.0.52).
SECONDS = 0.01
MOST_MATRICES = 512  # matrices of a batch; more of them are a loop
LONG = 60.0  # seconds of which a plan warns


def tpu_seconds(program: KernelProgram) -> float:
    """Seconds to compile a program for a TPU, to a factor of three."""
    return SECONDS * _pieces(program)


def compiled(program: KernelProgram, platform: str) -> str:
    """How many kernels a program has, and how long these take to compile for a TPU, in words."""
    time = f" (some {tpu_seconds(program):.2g} s)" if platform == "tpu" else ""
    return f"{program.compiled:,}{time}"


def _pieces(program: KernelProgram) -> int:
    """The kernels and the matrices of batched products, however often each runs."""
    kernels = sum(count * _of_kernel(kernel) for kernel, count in program.kernels)
    return kernels + sum(count * _of_part(part) for part, count in program.parts)


def _of_kernel(kernel: Kernel) -> int:
    is_product = kernel.kind in ("product", "transposed product")
    return min(kernel.pieces, MOST_MATRICES) if is_product else 1


def _of_part(part: Part) -> int:
    match part:
        case KernelLoop(body=body, condition=condition):
            return _pieces(body) + (_pieces(condition) if condition else 0)
        case KernelChoice(programs):
            return sum(map(_pieces, programs))
        case OneKernelLoop(loop=loop):
            return _pieces(loop)
    return _pieces(part)
