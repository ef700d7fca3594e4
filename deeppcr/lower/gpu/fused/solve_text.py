"""The text of a kernel that solves a recurrence by Newton's method: see `windows.py`."""

from string import Template

# A host on which threads of one process meet defines what is after ``#ifndef MEET`` otherwise.
SOLVE_TEXT = Template(r"""
#define WIDTH $width
#define STEPS $steps
#define THREADS $threads
#define RANKS $ranks
#define SIDE $side
#define LANES $lanes  // threads that have a row each; a single one has all
#define ROWS (LANES > 1 ? 1 : WIDTH)
#define ABREAST (SIDE * LANES)  // threads of the same steps
#define WARPS (THREADS / 32)
#define LENGTH $length
#define SPAN (RANKS * THREADS / ABREAST * STEPS)
#define CHAIN (threadIdx.x / LANES % SIDE)
#define POSITION (RANK * (THREADS / ABREAST) + threadIdx.x / ABREAST)
#define LANE (threadIdx.x % 32)
#define WARP (threadIdx.x / 32)
#define FIRST (threadIdx.x / LANES * LANES)
#define STEP(k) (start + POSITION * STEPS + (k))
#define CUT(l) ((l) < LENGTH ? (l) : LENGTH - 1)
#define AT(l) $at
#define ROW(r) (LANES > 1 ? lane < WIDTH ? lane : WIDTH - 1 : (r))
// The state before the first step of a thread.
#define BEFORE(i) (threadIdx.x >= ABREAST ? shared.edge[threadIdx.x / LANES - SIDE][i] \
                   : RANK ? REMOTE(RANK - 1)->edge[THREADS / LANES - SIDE + CHAIN][i] \
                   : shared.carry[CHAIN][i])
#define USUAL(trip, i) shared.usual[(trip) % 2][CHAIN][i]
#define EVALUATE(l, z, f) { const $index at = AT(l); $evaluate }
#define LINEARISE(l, z, f, J) { const $index at = AT(l); $linearise }
#define WRITE(l, f) { const $index at = AT(l); $write }
#define EACH_ENTRY(i) _Pragma("unroll") for (int i = 0; i < WIDTH; i++)
#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)
#define EACH_STEP(k) _Pragma("unroll") for (int k = 0; k < STEPS; k++)
// Rows of an affine map, and what is known of the steps that it is made of.
struct map { float A[ROWS][WIDTH], b[ROWS], size[ROWS], residual, update; };
// What lanes share in a step.
struct evaluated { $evaluated };
struct linearised { $linearised };
// Of a block: the maps of the threads up to each in its warp, and of the warps up to each.
struct memory {
  struct map scan[THREADS], total[SIDE * WARPS * LANES];
  float carry[SIDE][WIDTH], last[SIDE][WIDTH];
  float before[SIDE][WIDTH], usual[2][SIDE][WIDTH];  // sizes in the window before, and in trips
  float edge[THREADS / LANES][WIDTH], of_lanes[THREADS];
  struct evaluated of_evaluate[THREADS / LANES];
  struct linearised of_linearise[THREADS / LANES];
};
#define evaluated shared.of_evaluate[threadIdx.x / LANES]
#define linearised shared.of_linearise[threadIdx.x / LANES]

#ifndef MEET
#define SHARED __shared__ struct memory shared;
#define GROUP (blockIdx.x / RANKS)
#define MEET __syncwarp(((1u << LANES) - 1) << LANE / LANES * LANES);
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

#if WARPS * LANES > 32
#define BETWEEN WITHIN
#else
#define BETWEEN TOGETHER
#endif
static __device__ __forceinline__ bool is_number(float x) { return fabsf(x) < INFINITE; }
// An entry that one of the lanes has, of which the first is given.
#define ENTRY(maps, member, i) (LANES > 1 ? (maps)[LANES > 1 ? i : 0].member[0] : (maps)->member[i])
// The map of all lanes, of which the first is given, before that of this one.
static __device__ __forceinline__ void compose(struct map* map, const struct map* before) {
  EACH_ROW(r) {
    float row[WIDTH];
    EACH_ENTRY(j) row[j] = 0.0f;
    EACH_ENTRY(i) {
      EACH_ENTRY(j) row[j] += map->A[r][i] * ENTRY(before, A, i)[j];
      map->b[r] += map->A[r][i] * ENTRY(before, b, i);
    }
    EACH_ENTRY(j) map->A[r][j] = row[j];
    map->size[r] = fmaxf(map->size[r], before[threadIdx.x % LANES].size[r]);
  }
  map->residual = fmaxf(map->residual, before[threadIdx.x % LANES].residual);
  map->update = fmaxf(map->update, before[threadIdx.x % LANES].update);
}
// Differences of ``x`` and ``y``, relative to a size.
static __device__ __forceinline__ float relative(float x, float y, float size) {
  const float apart = fabsf(x - y);
  return x == y ? 0.0f : is_number(apart) ? apart / size : INFINITE;
}
// All entries of a vector, of which each lane has its rows.
#define GATHER(own, all) { \
  if (LANES > 1) { shared.of_lanes[threadIdx.x] = own[0]; MEET } \
  EACH_ENTRY(j) all[j] = LANES > 1 ? shared.of_lanes[FIRST + j] : own[j]; \
  if (LANES > 1) { MEET } \
}
// The map of all lanes, applied to ``z``.
#define APPLY(maps, z) { \
  float all[WIDTH]; \
  GATHER(z, all) \
  EACH_ROW(r) { \
    z[r] = (maps)[lane].b[r]; \
    EACH_ENTRY(j) z[r] += (maps)[lane].A[r][j] * all[j]; \
  } \
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) $cluster kernel($pointers, $of_chains) {
  SHARED
  const int lane = threadIdx.x % LANES;
  int example = GROUP * SIDE + CHAIN;
  if (example >= $examples) example = $examples - 1;
  $begin
  float z[ROWS], f[ROWS], update;
  float s[STEPS][ROWS], J[STEPS][ROWS][WIDTH], b[STEPS][ROWS];  // of the steps of a thread
  struct map mine;
  if (threadIdx.x < ABREAST) {
    $first
    EACH_ROW(r) {
      shared.carry[CHAIN][ROW(r)] = z[r];
      shared.before[CHAIN][ROW(r)] = USUAL(0, ROW(r)) = 0.0f;
    }
  }
  BARRIER
  int iterations = 0, prefix = LENGTH;
  float worst = 0.0f;
  for ($index start = 0; start < LENGTH; start += SPAN) {
    // The guess: the step, applied to the state before the window.
    update = INFINITE;
    EACH_ROW(r) z[r] = shared.carry[CHAIN][ROW(r)];
    EACH_STEP(k) {
      EVALUATE(CUT(STEP(k)), z, s[k])
      EACH_ROW(r) if (!is_number(s[k][r])) s[k][r] = z[r];
    }
    float least = INFINITE;
    int stood = 0;  // trips in which the residual has not halved
    bool is_right = false;
    for (int trip = 0; ; trip++) {
      EACH_ROW(r) shared.edge[threadIdx.x / LANES][ROW(r)] = s[STEPS - 1][r];
      BARRIER
      // The affine maps of the steps of a thread, composed.
      EACH_ROW(r) z[r] = BEFORE(ROW(r));
      EACH_STEP(k) {
        float all[WIDTH], common = 0.0f;
        struct map step;
        LINEARISE(CUT(STEP(k)), z, f, J[k])
        EACH_ROW(r) {
          const bool finite = STEP(k) < LENGTH && is_number(f[r]) && is_number(z[r]);
          step.size[r] = finite ? fmaxf(fabsf(f[r]), fabsf(z[r])) : 0.0f;
        }
        GATHER(step.size, all)
        EACH_ENTRY(i) common = fmaxf(common, all[i]);
        GATHER(z, all)
        step.residual = 0.0f, step.update = k ? 0.0f : update;
        EACH_ROW(r) {
          const float size = fmaxf(step.size[r], fminf(USUAL(trip, ROW(r)), common));
          const float residual = relative(f[r], s[k][r], size);
          if (STEP(k) < LENGTH) step.residual = fmaxf(step.residual, residual);
          step.b[r] = f[r];
          EACH_ENTRY(j) {
            step.A[r][j] = J[k][r][j];
            step.b[r] -= J[k][r][j] * all[j];
          }
          b[k][r] = step.b[r];
        }
        if (k && LANES > 1) {
          shared.scan[threadIdx.x] = mine;
          MEET
          compose(&step, shared.scan + FIRST);
          MEET
        } else if (k) {
          compose(&step, &mine);
        }
        mine = step;
        EACH_ROW(r) z[r] = s[k][r];
      }
      shared.scan[threadIdx.x] = mine;
      TOGETHER
      // Those of the threads up to each: in its warp, then of the warps before, then of the blocks.
      for (int d = ABREAST; d < 32; d *= 2) {
        if (LANE >= d) compose(&mine, shared.scan + FIRST - d);
        TOGETHER
        if (LANE >= d) shared.scan[threadIdx.x] = mine;
        TOGETHER
      }
      if (LANE >= 32 - ABREAST) shared.total[(CHAIN * WARPS + WARP) * LANES + lane] = mine;
      WITHIN
      for (int d = 1; d < WARPS; d *= 2) {
        const bool is_later =
            threadIdx.x < WARPS * ABREAST && threadIdx.x / LANES % WARPS >= d;
        if (is_later) {
          mine = shared.total[threadIdx.x];
          compose(&mine, shared.total + FIRST - d * LANES);
        }
        BETWEEN
        if (is_later) shared.total[threadIdx.x] = mine;
        BETWEEN
      }
      BARRIER
      float residual = 0.0f, largest = 0.0f;
      for (int r = 0; r < RANKS; r++) {
        for (int c = 0; c < ABREAST; c++) {
          const int last = (c / LANES * WARPS + WARPS - 1) * LANES + c % LANES;
          residual = fmaxf(residual, REMOTE(r)->total[last].residual);
          largest = fmaxf(largest, REMOTE(r)->total[last].update);
        }
      }
      const bool rests = trip && largest <= $update;
      stood = residual <= 0.5f * least ? 0 : stood + 1, least = fminf(least, residual);
      is_right = residual == 0.0f || rests && residual <= $residual;
      is_right = is_right || rests && stood >= 2 && residual <= $standing;
      // Residuals are relative to sizes before the last update: not if these were of a bad guess.
      if (WIDTH > 1 && is_right && residual > 0.0f) EACH_ENTRY(i) {
        float size = shared.before[CHAIN][i];
        for (int r = 0; r < RANKS; r++)
          size = fmaxf(size, ENTRY(REMOTE(r)->total + (WARPS - 1) * LANES, size, i));
        is_right = is_right && USUAL(trip, i) <= 2.0f * size;
      }
      if (is_right || trip >= $iterations || largest == 0.0f) {
        iterations += trip;
        if (is_right) worst = fmaxf(worst, residual);
        break;
      }
      // The state before each block, and the sizes that entries have anywhere in the window.
      if (threadIdx.x < ABREAST) {
        float sizes[ROWS];
        EACH_ROW(r) z[r] = shared.carry[CHAIN][ROW(r)], sizes[r] = shared.before[CHAIN][ROW(r)];
        for (int rank = 0; rank < RANKS; rank++) {
          const struct map* maps = REMOTE(rank)->total + (CHAIN * WARPS + WARPS - 1) * LANES;
          if (rank < RANK) APPLY(maps, z)
          EACH_ROW(r) sizes[r] = fmaxf(sizes[r], maps[lane].size[r]);
        }
        EACH_ROW(r) shared.last[CHAIN][ROW(r)] = z[r], USUAL(trip + 1, ROW(r)) = sizes[r];
      }
      WITHIN
      EACH_ROW(r) z[r] = shared.last[CHAIN][ROW(r)];
      if (WARP) APPLY(shared.total + (CHAIN * WARPS + WARP - 1) * LANES, z)
      if (LANE >= ABREAST) APPLY(shared.scan + FIRST - ABREAST, z)
      update = 0.0f;
      EACH_STEP(k) {
        float all[WIDTH];
        GATHER(z, all)
        EACH_ROW(r) {
          float next = b[k][r];
          EACH_ENTRY(j) next += J[k][r][j] * all[j];
          z[r] = is_number(next) ? next : s[k][r];
          const float size = fmaxf(fabsf(z[r]), USUAL(trip + 1, ROW(r)));
          const float moved = relative(z[r], s[k][r], size);
          if (STEP(k) < LENGTH) update = fmaxf(update, moved);
          s[k][r] = z[r];
        }
      }
    }
    if (!is_right && start < prefix) prefix = start;
    if (is_right || POSITION == 0) EACH_ROW(r) z[r] = BEFORE(ROW(r));
    if (is_right) {
      EACH_STEP(k) if (STEP(k) < LENGTH) {
        EVALUATE(STEP(k), z, f)
        WRITE(STEP(k), f)
        EACH_ROW(r) z[r] = s[k][r];
      }
    } else if (POSITION == 0) {
      for ($index l = start; l < LENGTH && l < start + SPAN; l++) {
        EVALUATE(l, z, f)
        WRITE(l, f)
        EACH_ROW(r) z[r] = f[r];
      }
    }
    if (POSITION == (is_right ? SPAN / STEPS - 1 : 0)) {
      EACH_ROW(r) shared.last[CHAIN][ROW(r)] = f[r];
    }
    BARRIER
    if (threadIdx.x < ABREAST) {
      const struct memory* last = REMOTE(is_right ? RANKS - 1 : 0);
      EACH_ROW(r) shared.carry[CHAIN][ROW(r)] = last->last[CHAIN][ROW(r)];
      if (is_right) EACH_ROW(r) {
        float size = 0.0f;
        for (int rank = 0; rank < RANKS; rank++) {
          const struct map* maps = REMOTE(rank)->total + (CHAIN * WARPS + WARPS - 1) * LANES;
          size = fmaxf(size, maps[lane].size[r]);
        }
        shared.before[CHAIN][ROW(r)] = size;
      }
    }
    BARRIER
  }
  if (POSITION == 0) {
    counted[example] = iterations, reached[example] = prefix, left[example] = worst;
  }
}
""")
