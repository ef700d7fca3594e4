"""What a kernel may hold and what its parts cost: every number that was chosen, and its origin.

None was timed on a device. *Compiled*: read off machine code for compute capability 9.0 (CUDA
13.0): registers, spills, instructions. *Prototype*: one kernel by hand, timed on an H100 (jax
0.11.2). *Assumed*: a round number that nothing contradicts. Costs are in operations, each as long
as an addition.
"""

WARP = 32  # threads that run together: the hardware
CLUSTER_BLOCKS = 8  # blocks that read each other's shared memory: any GPU that has clusters
ALIGNMENT = 16  # bytes that divide where XLA puts an array: XLA
MAX_ARRAYS = 500  # that a kernel takes: the pointers are less than 4 KB, as the driver has it

# -- a step ----------------------------------------------------------------------------------------

MAX_STATE = 64  # entries: compiled
MAX_INSTRUCTIONS = 4096  # of a thread in a step: compiled
MAX_INSTRUCTIONS_OF_ALL = 65536  # of all threads in a step, before they are divided: assumed
MAX_READ = 16384  # entries of an array that a step reads: assumed
MAX_PLACES = 64  # combinations of arrays that may have an entry for each example: assumed
MAX_HOISTED = 8  # entries that a step reads, for each of its state, if they are kept: assumed
ONE_THREAD = 8  # entries of a state that a thread may have alone: compiled
THREADS_AT_ONCE = 16384  # that a GPU runs: up to these, threads share a narrow state: assumed
MAX_THREADS = 65536  # of states that threads share: assumed
SUMS = 4  # of a product, which wait for themselves alone: compiled

# -- the loop --------------------------------------------------------------------------------------

STEPS_AHEAD = 16  # that are read ahead, at most: compiled
ENTRIES_AHEAD = 96  # that are read ahead, at most: compiled
MAX_STEP_AHEAD = 512  # entries of a step up to which it is read ahead at all: compiled
CAPTURED = 224  # captured entries up to which they stay in registers: compiled
UNROLLED = 2048  # instructions of the steps between two tests of the loop: compiled
BLOCK = 128  # threads: assumed
BLOCK_IS_WARP = 4096  # threads up to which a block is a warp, so that all processors have some
RESIDENT = 256  # threads of a processor, each with as many registers as one can have: the hardware

# -- windows of a solve ----------------------------------------------------------------------------

# Threads of a block, and steps of each at most, by the entries of a state: what registers and
# shared memory hold: compiled.
WINDOWS = {
    1: (512, 8),
    2: (512, 4),
    3: (256, 4),
    4: (256, 2),
    **dict.fromkeys(range(5, 9), (512, 2)),
    **dict.fromkeys(range(9, 17), (256, 2)),
}
ALL_ROWS = 4  # entries of a state up to which a thread has all rows of the Jacobian: compiled
SIDE_BY_SIDE = 8  # examples of one entry, a sector of memory: the hardware
MANY_EXAMPLES = 1024  # from which they are side by side: assumed
WINDOW_INSTRUCTIONS = 8192  # of the steps of a thread: compiled
STEPS_OF_ITERATION = 64  # that a loop takes in the time of an iteration: prototype
LEAST_BUDGET = 12  # iterations: assumed
PROCESSORS = 128  # that work at the same time, about as many as a large GPU has: the hardware

# -- costs, in operations --------------------------------------------------------------------------

ITERATION_LATENCY = 2000  # of an iteration in a window, 4.6 us: prototype with one unit
ISSUED = 4  # instructions that a thread starts while one waits for its result: the hardware
EXCHANGE_LATENCY = 8  # of an exchange between lanes: compiled
EXCHANGE_INSTRUCTIONS = 32  # of each lane, for an exchange: compiled
# Of an exponential function and the like: as compiled for an H200, where those of the special
# function unit count as eight, at an eighth of the rate.
FUNCTION_LATENCY, FUNCTION_INSTRUCTIONS = 16, 28
# Steps that a kernel is compared with XLA on: of one entry, more than a block takes.
TRIED_STEPS = 5000
