"""Kernels as a GPU runs them, on a CPU: gcc compiles their text, and threads run one after another."""

import ctypes
import subprocess
import tempfile
from functools import cache, partial
from pathlib import Path

import jax
import numpy as np
from jax.interpreters import mlir

from deeppcr.lower.gpu.fused.call import kernel_call_p

# What `deeppcr.lower.gpu.fused.functions` has instructions of a GPU for, and what is in no header of C.
HOST = r"""
#include <math.h>
#include <stdbool.h>
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
static int to_int(float x) {
  return x >= 0x1p31f ? 0x7fffffff : x > -0x1p31f ? (int)x : x == x ? -0x7fffffff - 1 : 0;
}
static unsigned to_unsigned(float x) { return x >= 0x1p32f ? ~0u : x > 0.0f ? (unsigned)x : 0; }
static float larger(float x, float y) { return x > y || x == y && !signbit(x) ? x : y; }
static float smaller(float x, float y) { return x < y || x == y && signbit(x) ? x : y; }
static long long nothing(void) { return 0; }
union half { _Float16 x; unsigned short bits; };
static unsigned short to_float16(float x) { union half both = {x}; return both.bits; }
static float from_float16(unsigned short bits) { union half both = {.bits = bits}; return both.x; }
"""
# Threads run one after another, each to where it has to wait for others: those beside it, as many
# as meet there.
MEETING = r"""
#define __shared__ static
#define __cluster_dims__(x, y, z)
#define MEET meet(LANES);
#define TOGETHER meet(32);
#define WITHIN meet(THREADS);
#define BARRIER meet(RANKS * THREADS);
#define SHARED static struct memory of_block[RANKS];
#define shared of_block[RANK]
#define GROUP blockIdx.x
#define RANK (running / THREADS)
#define REMOTE(rank) (&of_block[rank])
#include <ucontext.h>
#define MOST 4096
static ucontext_t host, threads[MOST];
static char stacks[MOST][1 << 16];
static int running, together[MOST];  // with how many a thread waits; 0 if with none, -1 if done
static void meet(int count) { together[running] = count; swapcontext(&threads[running], &host); }
static bool has_to_wait(int count) {
  const int first = running / count * count;
  for (int k = first; k < first + count; k++)
    if (together[k] >= 0 && together[k] != count) return true;
  for (int k = first; k < first + count; k++)
    if (together[k] > 0) together[k] = 0;
  return false;
}
"""
LAUNCH = r"""
static void** p;
static void thread(void) {{ kernel({}); together[running] = -1; }}
void launch(int groups, int count, int block, void** pointers) {{
  p = pointers;
  for (blockIdx.x = 0; blockIdx.x < groups; blockIdx.x++) {{
    for (int k = 0; k < count; k++) {{
      getcontext(&threads[k]);
      threads[k].uc_stack.ss_sp = stacks[k];
      threads[k].uc_stack.ss_size = sizeof stacks[k];
      threads[k].uc_link = &host;
      makecontext(&threads[k], thread, 0);
      together[k] = 0;
    }}
    for (int left = count; left; running = (running + 1) % count) {{
      if (together[running] < 0) continue;
      if (together[running] && has_to_wait(together[running])) continue;
      threadIdx.x = running % block;
      swapcontext(&host, &threads[running]);
      left -= together[running] < 0;
    }}
  }}
}}
"""
# What C leaves undefined, and processors define each in its own way, is said on the standard error.
UNDEFINED = "signed-integer-overflow,shift,integer-divide-by-zero,float-cast-overflow"
GCC = "gcc", "-O0", "-w", "-fPIC", "-shared", f"-fsanitize={UNDEFINED}"


@cache
def compiled(text, count):
    """The function ``launch`` of a kernel of ``count`` arrays."""
    arrays = ", ".join(f"p[{k}]" for k in range(count))
    program = HOST + MEETING + text.replace('extern "C"', "static") + LAUNCH.format(arrays)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "kernel.so")
        command = [*GCC, "-x", "c", "-", "-o", library, "-lm"]
        subprocess.run(command, input=program.encode(), check=True)
        return ctypes.PyDLL(str(library)).launch  # one at a time: its threads are global


def launch(kernel, results, *operands):
    """The results of a kernel, of these types. What it does not write is not a number."""
    with np.errstate(invalid="ignore"):
        found = [np.full(x.shape, np.nan, np.float32).astype(x.dtype) for x in results]
    arrays = [*(np.ascontiguousarray(x) for x in operands), *found]
    pointers = (ctypes.c_void_p * len(arrays))(*(x.ctypes.data for x in arrays))
    run, ranks = compiled(kernel.text, len(arrays)), max(kernel.cluster, 1)
    run(kernel.blocks // ranks, kernel.threads * ranks, kernel.threads, pointers)
    return found


def in_program(kernel, operands, results):
    """`deeppcr.lower.gpu.fused.nvrtc.launch`, in a program for a CPU."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results]
    return jax.pure_callback(partial(launch, kernel, shapes), shapes, *operands)


def on_a_cpu(primitive, *operands, **params):
    """Kernels are emulated inside `emulated` alone: elsewhere a CPU runs the program."""
    if not emulated.depth:
        return primitive.run(*operands, **params)
    return primitive.by_kernel(emulated.launch, emulated.device, *operands, **params)


class emulated:
    """A context in which a CPU runs kernels as a GPU does; ``device``: where each is tried first."""

    depth, launch, device = 0, staticmethod(in_program), None

    def __init__(self, launch=in_program, device=None):
        self.given = launch, device

    def __enter__(self):
        emulated.depth += 1
        self.before = emulated.launch, emulated.device
        emulated.launch, emulated.device = staticmethod(self.given[0]), self.given[1]

    def __exit__(self, *error):
        emulated.depth -= 1
        emulated.launch, emulated.device = staticmethod(self.before[0]), self.before[1]


rule = mlir.lower_fun(partial(on_a_cpu, kernel_call_p), multiple_results=True)
mlir.register_lowering(kernel_call_p, rule, platform="cpu")
