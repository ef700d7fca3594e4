"""What gains on a CPU, and up to which size: every number that was chosen, and its origin.

All were measured with jax 0.10.2 on 2 cores, unless another version stands beside. *Timed*: beyond
it the rewritten program was slower, in loops of GRUs, LSTMs, filters and small networks of 2 to 512
units, batch 1 to 64. *XLA*: from there on its compiler does something else.

The limits of products that are written as sums stand in `deeppcr.lower.products`.
"""

# -- a loop as one function ------------------------------------------------------------------------

MAX_ARRAY = 2048  # entries of an array that a step computes: timed
# Entries of an array that a step reduces. From 4096 on, XLA calls a library, which such a function
# cannot.
MAX_REDUCED = 2048
MAX_CONVOLVED = 4096  # multiplications of a convolution, which XLA writes as plain loops: timed
# Features of a convolution along more than one axis. From 24 on, XLA calls a library.
MAX_FEATURES = 8
# Equations of a step. From 1024 on, XLA takes more than 3 times as long to compile the loop of a
# derivative.
MAX_EQUATIONS = 1024
# Inputs of a step, above which those of equal type are stacked. XLA compiles the gradient of 60
# scalars, whose loop reads 420, in half the time. Results are not stacked: a kernel of its own
# would cut each from the one array.
MAX_INPUTS = 32
MAX_STACKED = 256  # entries of an input that is stacked with others; not timed for inputs alone
# Entries of a matrix whose copy in every trip takes no time: timed for 2 to 16 rows.
COPIED = 64

# Products with vectors, which stand for those of matrices in such a function.
MAX_MULTIPLICATIONS = (1 << 17) - 1  # of one product: timed
MAX_VECTORS = 32  # of one product: timed
MAX_ROW = 192  # entries of a row of the other matrix: timed
# Columns and rows of a matrix that is multiplied column by column, whose rows XLA does not
# vectorise: timed.
MAX_COLUMNS, MAX_ROWS = 8, 48
# Vectors and terms of all products of a step, as each is compiled by itself; and where matrices
# take more than so many multiplications: timed.
MAX_PARTS, MAX_PARTS_OF_MANY, MANY_MULTIPLICATIONS = 64, 12, 1 << 13
# Multiplications of matrices for each elementwise operation of a step. These take less time in one
# function, and a product of matrices up to twice the time.
PER_ELEMENTWISE = 1 << 13

# Multiplications of a step up to which neither its loop nor its derivative gains from our function,
# as XLA makes one by itself (jax 0.12.0): GRUs of 8 units, 192, take 2.3 and 1.4 times as long by
# XLA, filters of 3 x 3 0.7 and 0.4.
LEFT_TO_XLA = 150

# -- other loops -----------------------------------------------------------------------------------

# Entries of a matrix that is worth a program of its own before the loop: timed (jax 0.12.0, too).
LARGE_MATRIX = 1 << 12
# Rows of its products, for which it is transposed before the loop: 0.33 to 0.5 of the time for 4,
# 0.6 to 0.7 for 16, 0.9 to 1 for 64, 1.1 for 1 (jax 0.12.0; 0.10.2 is alike).
ROWS_OF_TRANSPOSED = range(2, 49)
# Rows of its products with inputs, up to which these are worth compiling apart: timed.
ROWS_OF_INPUTS = 2
# LLVM vectorises rows of results up to 16 entries only if they fill vectors of 8.
VECTOR_ENTRIES, LONG_ROW = 8, 16

# -- all steps at once -----------------------------------------------------------------------------

# Slices of an image that are cut as patches. XLA compiles each by itself, 63 of them in a second.
MAX_SLICES = 64
