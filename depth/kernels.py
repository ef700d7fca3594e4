"""A model of the compiled program: a sequence of kernels, and loops of them.

`depth.fusion` makes it of a graph, and `depth.predict` predicts its time.
"""

from dataclasses import dataclass

# Kinds of kernels for which a CPU calls a library.
LIBRARY = frozenset(("product", "transposed product", "convolution", "own", "sort"))
NO_FUNCTION = LIBRARY - {"convolution"} | {"factorization", "unknown", "opaque"}


@dataclass(frozen=True)
class Kernel:
    """One launch: its operations by class, and its memory traffic in bytes.

    It writes ``results`` arrays; backends with one kernel per output launch that many, which then
    read and write ``apart`` bytes. A product has ``pieces`` in a batch. Its kind is "vector
    product" if one side is a vector, "transposed product" if the contracted axes are not the
    last axis on the left and the first on the right, else "product"; that of a convolution is
    "convolution". "expanded" are the operations that a grouped convolution takes in addition if it
    is computed without groups. ``waits``: operations of which each waits for the one before it.
    ``vectors``: the operations by class as a processor with vectors has them: of whole vectors.
    """

    kind: str
    dtype: str
    operations: tuple[tuple[str, int], ...]
    bytes: int
    pieces: int = 1
    results: int = 1
    apart: int = 0
    waits: int = 0
    vectors: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, eq=False)
class KernelLoop:
    """``trips`` times ``condition`` and ``body``.

    ``counted``: whether the number of trips is known before the loop starts. ``unroll``: the number
    of trips that are merged into one. ``whole``: whether it is marked as one function of a
    CPU, whatever it contains.
    """

    trips: int
    body: "KernelProgram"
    condition: "KernelProgram | None" = None
    counted: bool = True
    unroll: int = 1
    whole: bool = False

    @property
    def traffic(self) -> int:
        """The bytes that all iterations read and write."""
        test = self.condition.traffic if self.condition else 0
        return self.trips * (self.body.traffic + test)

    @property
    def compiled(self) -> int:
        """The kernels of one trip."""
        return self.body.compiled + (self.condition.compiled if self.condition else 0)


@dataclass(frozen=True, eq=False)
class KernelChoice:
    """One of several programs; the slowest counts."""

    programs: "tuple[KernelProgram, ...]"

    @property
    def traffic(self) -> int:
        """The bytes of the program with the most."""
        return max(program.traffic for program in self.programs)

    @property
    def compiled(self) -> int:
        """The kernels of all programs."""
        return sum(program.compiled for program in self.programs)


@dataclass(frozen=True, eq=False)
class OneKernelLoop:
    """A loop that is one kernel on a GPU, whose threads each run it for one example.

    ``waits``: operations of a thread that follow one another. ``loop``: the same on a device whose
    compiler makes no such kernel.
    """

    waits: int
    kernel: Kernel
    loop: "KernelProgram"

    @property
    def traffic(self) -> int:
        """The bytes that it reads and writes."""
        return self.kernel.bytes

    @property
    def compiled(self) -> int:
        """The kernels of the loop."""
        return self.loop.compiled


@dataclass(frozen=True, eq=False)
class KernelProgram:
    """Kernels and inner programs that run in order, with the multiplicity of each."""

    kernels: tuple[tuple[Kernel, int], ...]
    parts: "tuple[tuple[Part, int], ...]"
    # Of the body of a loop: bytes of each array that is used in it and kept of all iterations.
    stacks: tuple[int, ...] = ()
    # Of the body of a loop: bytes of the slices that an iteration reads, and of those it writes.
    read: int = 0
    written: int = 0
    # Of the body of a loop: operations in a row from one state to the next, as `Kernel.waits`.
    path: int = 0

    def __add__(self, other: "KernelProgram") -> "KernelProgram":
        """Both programs in order."""
        return KernelProgram((*self.kernels, *other.kernels), (*self.parts, *other.parts))

    @property
    def traffic(self) -> int:
        """The bytes that all kernels read and write."""
        return sum(count * kernel.bytes for kernel, count in self.kernels) + sum(
            count * part.traffic for part, count in self.parts
        )

    @property
    def compiled(self) -> int:
        """The number of kernels to compile, however often each runs."""
        return sum(count for _, count in self.kernels) + sum(
            count * part.compiled for part, count in self.parts
        )

    @property
    def calls_library(self) -> bool:
        """Whether a kernel is a call of a library on a CPU, which ends what is one function.

        Convolutions are not: XLA writes out the small ones.
        """
        return any(kernel.kind in NO_FUNCTION for kernel, _ in self.kernels)

    @property
    def apart(self) -> int:
        """The bytes that its own kernels read and write with one kernel per array."""
        kept = sum(2 * nbytes + 8 for nbytes in self.stacks)  # with the index
        return sum(count * kernel.apart for kernel, count in self.kernels) + kept


Part = KernelLoop | KernelChoice | OneKernelLoop | KernelProgram
