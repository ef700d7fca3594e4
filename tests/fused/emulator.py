"""Kernels as a GPU runs them, on a CPU: gcc compiles their text, and threads run one after another."""

import ctypes
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from jax.interpreters import mlir

from deeppcr.lower.gpu.fused.primitive import fused_scan_p, one_kernel
from deeppcr.lower.gpu.fused.solve import fused_solve_p, solved_by_kernel

# What `deeppcr.lower.gpu.fused.functions` has instructions of a GPU for, and what is in no header of C.
HOST = r"""
#include <math.h>
#include <stdbool.h>
#include <ucontext.h>
#define __device__
#define __global__
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)
static struct { int x; } blockIdx, threadIdx;
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
// As inexact as PTX allows, up or down by the bits of the exact result.
static float inexact(float y, float error) {
  union { float x; unsigned bits; } both = {y};
  return y * (1.0f + (both.bits * 2654435761u >> 31 ? error : -error));
}
static float exp2_of(float x) { return inexact(exp2f(x), 0x1p-22f); }
static float reciprocal(float x) { return inexact(1.0f / x, 0x1p-23f); }
static long long nothing(void) { return 0; }
static ucontext_t host, threads[128];
union half { _Float16 x; unsigned short bits; };
static unsigned short to_float16(float x) { union half both = {x}; return both.bits; }
static float from_float16(unsigned short bits) { union half both = {.bits = bits}; return both.x; }
"""
# Threads of a warp run one after another to the next place where they meet.
MEETING = r"""
#define __shared__ static
#define TOGETHER swapcontext(&threads[threadIdx.x], &host);
"""
# Threads that work together run one after another between two barriers, block after block.
TOGETHER = r"""
#define EACH for (block = 0; block < RANKS; block++) \
  for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++)
#define OWN static struct thread of_thread[RANKS][THREADS];
#define own of_thread[block][threadIdx.x]
#define SHARED static struct memory of_block[RANKS];
#define shared of_block[block]
#define GROUP blockIdx.x
#define RANK block
#define REMOTE(rank) (&of_block[rank])
#define BARRIER
#define WITHIN
#define TOGETHER
#define __cluster_dims__(x, y, z)
static int block;
"""
LAUNCH = r"""
static void** p;
static char stacks[128][1 << 18];
static bool is_done;
static void thread(void) {{ kernel({}); is_done = true; }}
void launch(int blocks, int count, void** pointers) {{
  p = pointers;
  for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {{
    for (int k = 0; k < count; k++) {{
      getcontext(&threads[k]);
      threads[k].uc_stack.ss_sp = stacks[k];
      threads[k].uc_stack.ss_size = sizeof stacks[k];
      threads[k].uc_link = &host;
      makecontext(&threads[k], thread, 0);
    }}
    for (int left = count, at = 0; left; at = (at + 1) % count) {{
      if (!threads[at].uc_link) continue;
      threadIdx.x = at;
      is_done = false;
      swapcontext(&host, &threads[at]);
      if (is_done) {{ threads[at].uc_link = 0; left--; }}
    }}
  }}
}}
"""
GCC = "gcc", "-O1", "-w", "-fPIC", "-shared"


@cache
def compiled(text, count, cluster):
    """The function ``launch`` of a kernel of ``count`` arrays."""
    arrays = ", ".join(f"p[{k}]" for k in range(count))
    program = (
        HOST
        + (TOGETHER if cluster else MEETING)
        + text.replace('extern "C"', "static")
        + LAUNCH.format(arrays)
    )
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        command = [*GCC, "-x", "c", "-", "-o", library, "-lm"]
        subprocess.run(command, input=program.encode(), check=True)
        return ctypes.CDLL(str(library)).launch


def launch(kernel, results, *operands):
    """The results of a kernel, of these types. What it does not write is not a number."""
    with np.errstate(invalid="ignore"):
        found = [np.full(x.shape, np.nan, np.float32).astype(x.dtype) for x in results]
    arrays = [*(np.ascontiguousarray(x) for x in operands), *found]
    pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
    run = compiled(kernel.text, len(arrays), kernel.cluster)
    groups, threads = kernel.blocks, kernel.threads
    run(*(groups // kernel.cluster, 1) if kernel.cluster else (groups, threads), pointers)
    return found


def in_program(kernel, operands, results):
    """`deeppcr.lower.gpu.fused.nvrtc.launch`, in a program for a CPU."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results]
    return jax.pure_callback(partial(launch, kernel, shapes), shapes, *operands)


def on_a_cpu(primitive, by_kernel, *operands, call_jaxpr, **others):
    """Kernels are emulated inside `emulated` alone: elsewhere a CPU runs the program."""
    if not emulated.depth:
        return primitive.run(*operands, call_jaxpr=call_jaxpr)
    return by_kernel(in_program, *operands, call_jaxpr=call_jaxpr, **others)


class emulated:
    """A context in which a CPU runs kernels as a GPU does."""

    depth = 0

    def __enter__(self):
        emulated.depth += 1

    def __exit__(self, *error):
        emulated.depth -= 1


for primitive, by_kernel in ((fused_scan_p, one_kernel), (fused_solve_p, solved_by_kernel)):
    rule = partial(on_a_cpu, primitive, by_kernel)
    mlir.register_lowering(primitive, mlir.lower_fun(rule, multiple_results=True), platform="cpu")
