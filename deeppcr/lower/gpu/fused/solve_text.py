"""The text of a kernel that solves a recurrence by Newton's method: see `windows.py`."""

from string import Template

# A host that runs all threads between two barriers one after another defines these otherwise.
DEVICE = r"""
#ifndef EACH
#define EACH
#define OWN struct thread own;
#define SHARED __shared__ struct memory shared;
#define GROUP (blockIdx.x / RANKS)
#define TOGETHER __syncwarp();
#define WITHIN __syncthreads();
#if RANKS > 1
#define RANK rank_of_block()
#define REMOTE(rank) (remote(&shared, rank))
#define BARRIER asm volatile("barrier.cluster.arrive.aligned;\n" \
                             "barrier.cluster.wait.aligned;" ::: "memory");
static __device__ __forceinline__ int rank_of_block() {
  int rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank;
}
static __device__ __forceinline__ const struct memory* remote(struct memory* own, int rank) {
  const struct memory* found;
  asm("mapa.u64 %0, %1, %2;" : "=l"(found) : "l"(own), "r"(rank)); return found;
}
#else
#define RANK 0
#define REMOTE(rank) (&shared)
#define BARRIER __syncthreads();
#endif
#endif
"""
TEXT = Template(r"""
#define WIDTH $width
#define STEPS $steps
#define THREADS $threads
#define RANKS $ranks
#define SIDE $side
#define WARPS (THREADS / 32)
#define LENGTH $length
#define SPAN (RANKS * THREADS / SIDE * STEPS)
#define CHAIN (threadIdx.x % SIDE)
#define POSITION (RANK * (THREADS / SIDE) + threadIdx.x / SIDE)
#define LANE (threadIdx.x % 32)
#define WARP (threadIdx.x / 32)
#define STEP(k) (start + POSITION * STEPS + (k))
#define CUT(l) ((l) < LENGTH ? (l) : LENGTH - 1)
#define AT(l) $at
// The state before the first step of a thread.
#define BEFORE (threadIdx.x >= SIDE ? shared.edge[threadIdx.x - SIDE][i] \
                : RANK ? REMOTE(RANK - 1)->edge[THREADS - SIDE + CHAIN][i] : shared.carry[CHAIN][i])
$arrays
#define EVALUATE(l, z, f) { const $index at = AT(l); $evaluate }
#define LINEARISE(l, z, f, J) { const $index at = AT(l); $linearise }
#define WRITE(l, f) { const $index at = AT(l); $write }
#define ENTRIES(i) _Pragma("unroll") for (int i = 0; i < WIDTH; i++)
#define EACH_STEP(k) _Pragma("unroll") for (int k = 0; k < STEPS; k++)
// An affine map, and what is known of the steps that it is made of.
struct map { float A[WIDTH][WIDTH], b[WIDTH], size[WIDTH], residual, update; };
struct thread {
  $index offset[$offsets]; int example;
  float s[STEPS][WIDTH], J[STEPS][WIDTH][WIDTH], b[STEPS][WIDTH], update;
  struct map mine, other;
};
// Of a block: the maps of the threads up to each in its warp, and of the warps up to each.
struct memory {
  struct map scan[THREADS], total[SIDE * WARPS];
  float carry[SIDE][WIDTH], usual[SIDE][WIDTH], edge[THREADS][WIDTH], last[SIDE][WIDTH];
};
$device
static __device__ __forceinline__ bool is_number(float x) { return x - x == 0.0f; }
static __device__ __forceinline__ void apply(const struct map* map, float* z) {
  float y[WIDTH];
  ENTRIES(i) { y[i] = map->b[i]; ENTRIES(j) y[i] += map->A[i][j] * z[j]; }
  ENTRIES(i) z[i] = y[i];
}
// The first map, after the second.
static __device__ __forceinline__ void compose(struct map* map, const struct map* before) {
  ENTRIES(i) {
    float row[WIDTH];
    ENTRIES(j) { row[j] = 0.0f; ENTRIES(k) row[j] += map->A[i][k] * before->A[k][j]; }
    ENTRIES(k) map->b[i] += map->A[i][k] * before->b[k];
    ENTRIES(j) map->A[i][j] = row[j];
    map->size[i] = fmaxf(map->size[i], before->size[i]);
  }
  map->residual = fmaxf(map->residual, before->residual);
  map->update = fmaxf(map->update, before->update);
}
// Differences of ``x`` and ``y``, relative to a size.
static __device__ __forceinline__ float relative(float x, float y, float size) {
  const float apart = fabsf(x - y);
  return x == y ? 0.0f : is_number(apart) ? apart / size : INFINITE;
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) $cluster kernel($pointers) {
  SHARED
  OWN
  EACH {
    int example = GROUP * SIDE + CHAIN;
    if (example >= $examples) example = $examples - 1;
    own.example = example;
    $begin
    if (threadIdx.x < SIDE) {
      float* z = shared.carry[CHAIN];
      $first
      ENTRIES(i) shared.usual[CHAIN][i] = 0.0f;
    }
  }
  BARRIER
  int iterations = 0, prefix = LENGTH;
  float worst = 0.0f;
  for ($index start = 0; start < LENGTH; start += SPAN) {
    // The guess: the step, applied to the state before the window.
    EACH {
      own.update = INFINITE;
      EACH_STEP(k) {
        EVALUATE(CUT(STEP(k)), shared.carry[CHAIN], own.s[k])
        ENTRIES(i) if (!is_number(own.s[k][i])) own.s[k][i] = shared.carry[CHAIN][i];
      }
    }
    float least = INFINITE;
    int stood = 0;  // trips in which the residual has not halved
    bool is_right = false;
    for (int trip = 0; ; trip++) {
      EACH { ENTRIES(i) shared.edge[threadIdx.x][i] = own.s[STEPS - 1][i]; }
      BARRIER
      // The affine maps of the steps of a thread, composed.
      EACH {
        float z[WIDTH];
        ENTRIES(i) {
          z[i] = BEFORE;
          ENTRIES(j) own.mine.A[i][j] = i == j;
          own.mine.b[i] = own.mine.size[i] = 0.0f;
        }
        own.mine.residual = 0.0f, own.mine.update = own.update;
        EACH_STEP(k) {
          float f[WIDTH], common = 0.0f;
          struct map step;
          LINEARISE(CUT(STEP(k)), z, f, own.J[k])
          ENTRIES(i) {
            const bool finite = STEP(k) < LENGTH && is_number(f[i]) && is_number(z[i]);
            step.size[i] = finite ? fmaxf(fabsf(f[i]), fabsf(z[i])) : 0.0f;
            common = fmaxf(common, step.size[i]);
          }
          step.residual = step.update = 0.0f;
          ENTRIES(i) {
            const float size = fmaxf(step.size[i], fminf(shared.usual[CHAIN][i], common));
            const float residual = relative(f[i], own.s[k][i], size);
            if (STEP(k) < LENGTH) step.residual = fmaxf(step.residual, residual);
            step.b[i] = f[i];
            ENTRIES(j) {
              step.A[i][j] = own.J[k][i][j];
              step.b[i] -= own.J[k][i][j] * z[j];
            }
            own.b[k][i] = step.b[i];
          }
          compose(&step, &own.mine);
          own.mine = step;
          ENTRIES(i) z[i] = own.s[k][i];
        }
        shared.scan[threadIdx.x] = own.mine;
      }
      TOGETHER
      // Those of the threads up to each: in its warp, then of the warps before, then of the blocks.
      for (int d = SIDE; d < 32; d *= 2) {
        EACH { if (LANE >= d) own.other = shared.scan[threadIdx.x - d]; }
        TOGETHER
        EACH {
          if (LANE >= d) { compose(&own.mine, &own.other); shared.scan[threadIdx.x] = own.mine; }
        }
        TOGETHER
      }
      EACH { if (LANE >= 32 - SIDE) shared.total[CHAIN * WARPS + WARP] = own.mine; }
      WITHIN
      for (int d = 1; d < WARPS; d *= 2) {
#define IS_LATER (threadIdx.x < SIDE * WARPS && threadIdx.x % WARPS >= d)
        EACH {
          if (IS_LATER) {
            own.mine = shared.total[threadIdx.x], own.other = shared.total[threadIdx.x - d];
          }
        }
        TOGETHER
        EACH {
          if (IS_LATER) { compose(&own.mine, &own.other); shared.total[threadIdx.x] = own.mine; }
        }
        TOGETHER
      }
      BARRIER
      float residual = 0.0f, update = 0.0f;
      for (int r = 0; r < RANKS; r++) {
        for (int c = 0; c < SIDE; c++) {
          const struct map* map = &REMOTE(r)->total[c * WARPS + WARPS - 1];
          residual = fmaxf(residual, map->residual), update = fmaxf(update, map->update);
        }
      }
      const bool rests = trip && update <= $update;
      stood = residual <= 0.5f * least ? 0 : stood + 1, least = fminf(least, residual);
      is_right = residual == 0.0f || rests && residual <= $residual;
      is_right = is_right || rests && stood >= 2 && residual <= $standing;
      if (is_right || trip >= $iterations || update == 0.0f) {
        iterations += trip;
        if (is_right) worst = fmaxf(worst, residual);
        break;
      }
      // The state before each block, and the sizes that entries have anywhere in the window.
      EACH {
        if (threadIdx.x < SIDE) {
          float z[WIDTH];
          ENTRIES(i) z[i] = shared.carry[CHAIN][i];
          for (int r = 0; r < RANKS; r++) {
            const struct map* map = &REMOTE(r)->total[CHAIN * WARPS + WARPS - 1];
            if (r < RANK) apply(map, z);
            ENTRIES(i) shared.usual[CHAIN][i] = fmaxf(shared.usual[CHAIN][i], map->size[i]);
          }
          ENTRIES(i) shared.last[CHAIN][i] = z[i];
        }
      }
      WITHIN
      EACH {
        float z[WIDTH];
        ENTRIES(i) z[i] = shared.last[CHAIN][i];
        if (WARP) apply(&shared.total[CHAIN * WARPS + WARP - 1], z);
        if (LANE >= SIDE) apply(&shared.scan[threadIdx.x - SIDE], z);
        own.update = 0.0f;
        EACH_STEP(k) {
          float next[WIDTH];
          ENTRIES(i) { next[i] = own.b[k][i]; ENTRIES(j) next[i] += own.J[k][i][j] * z[j]; }
          ENTRIES(i) {
            z[i] = is_number(next[i]) ? next[i] : own.s[k][i];
            const float size = fmaxf(fabsf(z[i]), shared.usual[CHAIN][i]);
            const float update = relative(z[i], own.s[k][i], size);
            if (STEP(k) < LENGTH) own.update = fmaxf(own.update, update);
            own.s[k][i] = z[i];
          }
        }
      }
    }
    if (!is_right && start < prefix) prefix = start;
    EACH {
      float z[WIDTH], f[WIDTH];
      if (is_right || POSITION == 0) ENTRIES(i) z[i] = BEFORE;
      if (is_right) {
        EACH_STEP(k) if (STEP(k) < LENGTH) {
          EVALUATE(STEP(k), z, f)
          WRITE(STEP(k), f)
          ENTRIES(i) z[i] = own.s[k][i];
        }
      } else if (POSITION == 0) {
        for ($index l = start; l < LENGTH && l < start + SPAN; l++) {
          EVALUATE(l, z, f)
          WRITE(l, f)
          ENTRIES(i) z[i] = f[i];
        }
      }
      if (POSITION == (is_right ? SPAN / STEPS - 1 : 0)) {
        ENTRIES(i) shared.last[CHAIN][i] = f[i];
      }
    }
    BARRIER
    EACH {
      if (threadIdx.x < SIDE) {
        ENTRIES(i) shared.carry[CHAIN][i] = REMOTE(is_right ? RANKS - 1 : 0)->last[CHAIN][i];
      }
    }
    BARRIER
  }
  EACH {
    if (POSITION == 0) {
      counted[own.example] = iterations, reached[own.example] = prefix, left[own.example] = worst;
    }
  }
}
""")
