"""What kernels call, in CUDA C."""

# These are instructions of a GPU; without one, they are defined elsewhere.
INSTRUCTIONS = r"""
static __device__ __forceinline__ float exp2_of(float x) {
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x)); return x;
}
// The nearest integer in the direction of 0, and of the range; of NaN 0.
static __device__ __forceinline__ int to_int(float x) {
  int y; asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y;
}
static __device__ __forceinline__ unsigned to_unsigned(float x) {
  unsigned y; asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y;
}
// The larger and the smaller of numbers that are no NaN, with +0 above -0.
static __device__ __forceinline__ float larger(float x, float y) {
  float z; asm("max.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;
}
static __device__ __forceinline__ float smaller(float x, float y) {
  float z; asm("min.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z;
}
static __device__ __forceinline__ float reciprocal(float x) {
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x)); return x;
}
// Nothing, which a compiler does not know: what is read there is read again in each step.
static __device__ __forceinline__ long long nothing() {
  long long x = 0; asm volatile("" : "+l"(x)); return x;
}
static __device__ __forceinline__ unsigned short to_float16(float x) {
  unsigned short half; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x)); return half;
}
static __device__ __forceinline__ float from_float16(unsigned short half) {
  float x; asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half)); return x;
}
"""
FUNCTIONS = r"""
static __device__ __forceinline__ float of_bits(unsigned bits) {
  union { unsigned bits; float x; } both; both.bits = bits; return both.x;
}
#define INFINITE of_bits(0x7f800000u)
#define NOT_A_NUMBER of_bits(0x7fc00000u)
static __device__ __forceinline__ float from_bfloat16(unsigned short x) {
  return of_bits((unsigned)x << 16);
}
static __device__ __forceinline__ unsigned short to_bfloat16(float x) {
  union { unsigned bits; float x; } both; both.x = x;
  return x != x ? 0x7fc0 : (both.bits + 0x7fff + (both.bits >> 16 & 1)) >> 16;
}
static __device__ __forceinline__ float lax_max(float a, float b) {
  return a != a || b != b ? NOT_A_NUMBER : larger(a, b);
}
static __device__ __forceinline__ float lax_min(float a, float b) {
  return a != a || b != b ? NOT_A_NUMBER : smaller(a, b);
}
static __device__ __forceinline__ int clipped(int x, int least, int most) {
  return x < least ? least : x > most ? most : x;
}
static __device__ __forceinline__ float lax_sign(float x) {
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}
static __device__ __forceinline__ float lax_logistic(float x) {
  return reciprocal(1.0f + exp2_of(-1.44269504f * x));
}
// 1 - 2 / (1 + e^2|x|) with the sign of x; where that cancels, x + x^3 p(x^2), with the polynomial
// whose largest relative error up to there is the least, 4e-8.
static __device__ __forceinline__ float lax_tanh(float x) {
  const float one = copysignf(1.0f, x), square = x * x;
  const float far = fmaf(reciprocal(1.0f + exp2_of(2.88539008f * fabsf(x))), -2.0f * one, one);
  float near = fmaf(square, 0.0164375622f, -0.0526718013f);
  near = fmaf(square, near, 0.133207247f);
  near = fmaf(square, near, -0.333329469f);
  near = copysignf(fmaf(square * near, x, x), x);  // of -0, too
  return fabsf(x) < 0.55f ? near : far;
}
"""
