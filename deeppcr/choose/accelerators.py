"""The seconds that a loop, a kernel, and a parallel solve of a chain take on an accelerator.

A loop launches some kernels in each step. One kernel runs all steps, and takes as long as its
instructions. Newton's method takes some iterations, each a few launches for each of the log2 L
rounds of its solver, and the traffic of its Jacobian blocks. Picard iteration has no blocks.
"""

import math
from typing import Any

from deeppcr import lower
from deeppcr.chain.chain import TracedChain
from deeppcr.linear.named import FEW_PRODUCTS, pcr_suits
from deeppcr.linearize import exact_linearization
from deeppcr.programs.dependence import work_of_products
from deeppcr.sequential import kernel_of
from deeppcr.structure import find_structure
from depth.counts import ceil_log2, nbytes
from depth.jaxprs import is_literal, moved_by, read_by

# Measured on an H100 (jax 0.11.2), in seconds.
CALL = 72e-6  # of x + 1
LAUNCH = 1.2e-6  # of a kernel, in a loop of which 16 steps are one CUDA graph: GRU, 16 units: 1.4
MEASURED = 8  # entries of a state or a block, up to which loops in one kernel and PCR have been
# Of a loop by Pallas: Van der Pol 67 ns; GRU, 4 units: 303.
KERNEL_STEP, INSTRUCTION = 50e-9, 0.57e-9
ROUND = 4e-6  # of a solver: GRU, 1 unit, L = 1e5: 4.2 for each of 4 * 17
# Bytes a second of Jacobian blocks: GRU, 4 units, 64 chains of 16384 steps: 1.4; of 1 unit: 2.5.
TRAFFIC, OF_NUMBERS = 1.5e12, 3e12


def loop_seconds(chain: TracedChain) -> float:
    """Of a loop of an accelerator, whose products of batches are kernels of their own."""
    has_kernels = chain.layout.batch_size > 1 and work_of_products(chain.step.jaxpr) > 0
    return chain.length * LAUNCH * (1 + has_kernels)


def kernel_seconds(chain: TracedChain, platform: str) -> float | None:
    """Of the loop in one kernel; None without one, and where none has been measured.

    That is by one thread for each chain of the batch, though several may share a chain.
    """
    with lower.compiled_for(platform):
        step = kernel_of(chain)
    try:
        alone = step.by(1) if step and step.width <= MEASURED else None
    except lower.CannotFuse:
        return None
    return chain.length * (KERNEL_STEP + INSTRUCTION * alone.instructions) if alone else None


def solve_seconds(chain: TracedChain) -> float:
    """Of the linear recurrence of one iteration, or of the adjoint, by a parallel solver."""
    step, layout = chain.step, chain.layout
    width = find_structure(step, layout).groups.shape[1]
    entries = layout.batch_size * layout.width
    blocks = chain.length * exact_linearization(step, layout).bytes_per_step(step, layout)
    vectors = chain.length * entries * layout.dtype.itemsize
    rounds = ceil_log2(max(2, chain.length))
    if width <= MEASURED or pcr_suits(width, chain.length * entries):
        # Every round reads two of each, and writes one.
        rate = OF_NUMBERS if width == 1 else TRAFFIC
        return rounds * (ROUND + 3 * (blocks + vectors) / rate / chain.axis.size)
    # Cyclic reduction: there and back, on half as many blocks each time.
    return 2 * rounds * ROUND + 10 * blocks / TRAFFIC / chain.axis.size


def picard_seconds(chain: TracedChain) -> float:
    """Of one Picard iteration: a sum along the chain, and all steps at once."""
    step, layout, length = chain.step, chain.layout, chain.length
    vector = layout.batch_size * layout.width * layout.dtype.itemsize
    rounds = ceil_log2(max(2, length))
    weights = sum(map(nbytes, step.jaxpr.invars[step.states :]))
    traffic = length * (6 * rounds * vector + weights) / OF_NUMBERS
    products = length * work_of_products(chain.step.jaxpr) / 2 / FEW_PRODUCTS
    return ROUND * (rounds + products / chain.axis.size) + traffic / chain.axis.size


def is_small_residual(chain: TracedChain) -> bool:
    """Whether steps are layers z + s f(z) whose program has a number s, of at most 1 / sqrt(L).

    Then all L changes together are of order one (Hayou et al., *Stable ResNet*, 2021), and the
    iterations of Picard's method do not depend on L: 11 to 16 for 1 / sqrt(L), and 23 to more than
    200 for s = 1 (layers of tanh, relu and normalised gelu, L = 64 to 1024).
    """
    program, states = chain.step.jaxpr, chain.step.states
    equation_of = {id(each.outvars[0]): each for each in program.eqns if each.outvars}

    def operands(name: str, result: Any) -> list[Any]:
        equation = equation_of.get(id(result))
        return equation.invars if equation and equation.primitive.name == name else []

    def scale(state: Any, end: Any) -> float:
        added = operands("add", end)
        if state not in added:
            return math.inf
        change = added[added[0] is state]
        scales = [float(x.val) for x in operands("mul", change) if is_literal(x)]
        scales += [1 / float(x.val) for x in operands("div", change)[1:] if is_literal(x) and x.val]
        return min(map(abs, scales), default=math.inf)

    pairs = zip(program.invars[:states], program.outvars[:states], strict=True)
    most = max(scale(*pair) for pair in pairs) * math.sqrt(chain.length)
    return round(most, 3) <= 1 and has_layers(chain)


def has_layers(chain: TracedChain) -> bool:
    """Whether a step multiplies its state by weights of its own, as a layer does."""
    program, states = chain.step.jaxpr, chain.step.states
    by_state = moved_by(program, program.invars[:states])
    weights = moved_by(program, program.invars[states:]) - by_state
    products = (read_by([x]).keys() for x in program.eqns if x.primitive.name == "dot_general")
    return any(each & by_state and each & weights for each in products)
