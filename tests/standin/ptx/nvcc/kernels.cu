/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels as a compiler writes them, for test_ptx_nvcc.c. From CUDA 13.0:
 *   nvcc -ptx -arch=compute_75 kernels.cu && nvcc -ptx -arch=compute_90 sm90.cu
 */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {

/* 64-bit division, remainder, shifts; a loop with a data-dependent end */
__global__ void collatz(const unsigned long long *in, unsigned long long *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    unsigned long long x = in[i], steps = 0;
    while (x != 1) {
        x = x % 2 ? 3 * x + 1 : x / 2;
        steps++;
    }
    out[i] = steps * 1000003ull / (in[i] % 7 + 1);
}

__global__ void divide(const long long *a, const long long *b, long long *q, long long *r, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        q[i] = a[i] / b[i];
        r[i] = a[i] % b[i];
    }
}

/* a dense switch: brx.idx */
__global__ void dispatch(const int *op, float *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float v = x[i];
    switch (op[i]) {
    case 0: v = v + 1; break;
    case 1: v = v * v; break;
    case 2: v = -v; break;
    case 3: v = sqrtf(v); break;
    case 4: v = 1 / v; break;
    case 5: v = fabsf(v) - 3; break;
    case 6: v = fmaxf(v, 2.5f); break;
    case 7: v = floorf(v); break;
    case 8: v = rintf(v); break;
    case 9: v = fmodf(v, 1.5f); break;
    default: v = 0; break;
    }
    x[i] = v;
}

__global__ void half_math(const __half *a, const __half *b, __half *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __hfma(a[i], b[i], __hsub(b[i], __hmul(a[i], __float2half(0.5f))));
}

__global__ void half2_math(const __half2 *a, const __half2 *b, __half2 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __hfma2(a[i], b[i], __hadd2(a[i], b[i]));
}

__global__ void bf16_math(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __float2bfloat16(__bfloat162float(a[i]) * __bfloat162float(b[i]) + 1.0f);
}

/* shared memory and __syncthreads */
__global__ void block_sum(const float *x, float *out, int n)
{
    __shared__ float part[256];
    float v = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        v += x[i];
    part[threadIdx.x] = v;
    __syncthreads();
    for (int s = blockDim.x / 2; s; s >>= 1) {
        if (threadIdx.x < s)
            part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    if (!threadIdx.x)
        atomicAdd(out, part[0]);
}

/* warp shuffles and dynamic shared memory */
__global__ void rms_norm(const float *x, const float *w, float *out, int width, float eps)
{
    extern __shared__ float warps[];
    const float *row = x + (size_t)blockIdx.x * width;
    float v = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        v += row[i] * row[i];
    for (int s = 16; s; s >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, s);
    if ((threadIdx.x & 31) == 0)
        warps[threadIdx.x >> 5] = v;
    __syncthreads();
    v = threadIdx.x < (blockDim.x + 31) / 32 ? warps[threadIdx.x] : 0;
    if (threadIdx.x < 32) {
        for (int s = 16; s; s >>= 1)
            v += __shfl_down_sync(0xffffffffu, v, s);
        if (!threadIdx.x)
            warps[0] = v;
    }
    __syncthreads();
    float scale = rsqrtf(warps[0] / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[(size_t)blockIdx.x * width + i] = row[i] * scale * w[i];
}

/* atomics on shared and global memory, compare and swap */
__global__ void histogram(const unsigned char *x, unsigned *bins, unsigned long long *total,
                          double *sum, int n)
{
    __shared__ unsigned local[16];
    if (threadIdx.x < 16)
        local[threadIdx.x] = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&local[x[i] & 15], 1u);
        atomicAdd(total, (unsigned long long)x[i]);
        unsigned long long *at = (unsigned long long *)sum, old = *at, was;
        do {
            was = old;
            old = atomicCAS(at, was, __double_as_longlong(__longlong_as_double(was) + x[i] * 0.5));
        } while (was != old);
    }
    __syncthreads();
    if (threadIdx.x < 16)
        atomicMax(&bins[threadIdx.x], local[threadIdx.x]);
}

/* a called function, by value and by pointer, and an array in local memory */
__device__ __noinline__ float horner(const float *c, int n, float x)
{
    float v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v * x + c[i];
    return v;
}

struct point {
    float x, y;
    int index[3];
};

__device__ __noinline__ struct point turn(struct point p, int times)
{
    for (int i = 0; i < times; i++) {
        float x = p.x;
        p.x = -p.y;
        p.y = x;
        p.index[i % 3] += i;
    }
    return p;
}

__global__ void locals(const int *order, float *out, struct point origin, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    float c[8];
    if (t >= n)
        return;
    for (int i = 0; i < 8; i++)
        c[order[i] & 7] = (float)(i + t);
    struct point p = turn(origin, t);
    out[t] = horner(c, 8, 0.5f) + p.x + 10 * p.y + p.index[t % 3];
}

/* module variables */
__constant__ float table[4] = { 1, 2, 4, 8 };
__device__ int hits;
__device__ const char *const names[2] = { "first", "second" };

__global__ void variables(const int *which, float *out, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) {
        out[t] = table[which[t] & 3] + names[which[t] & 1][which[t] & 3];
        atomicAdd(&hits, 1);
    }
}

__global__ void conversions(const double *x, int *i32, unsigned *u32, long long *i64,
                            unsigned char *u8, float *f32, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) {
        i32[t] = (int)x[t];
        u32[t] = __double2uint_rn(x[t]);
        i64[t] = llrint(x[t]);
        u8[t] = (unsigned char)(int)x[t];
        f32[t] = __double2float_rd(x[t]) + __int2float_rz(i32[t]);
    }
}

__global__ void bits(const unsigned *x, unsigned *out, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n) {
        unsigned v = x[t];
        out[t] = __popc(v) + (__clz(v) << 6) + (__ffs(v) << 12) ^ __brev(v) ^
                 __byte_perm(v, ~v, 0x5140) ^ __funnelshift_l(v, v >> 3, v) ^
                 (unsigned)__mulhi((int)v, 77777) ^ __umulhi(v, v) ^ __sad((int)v, 5, 6u) ^
                 (unsigned)(((unsigned long long)v * v) >> 13);
    }
}

/* exp, log, sin: long expansions in PTX */
__global__ void transcendental(const float *x, float *out, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < n)
        out[t] = expf(x[t]) + logf(fabsf(x[t]) + 1) + sinf(x[t] * 100) + powf(fabsf(x[t]), 1.3f) +
                 erff(x[t]) + tanhf(x[t]);
}

__global__ void softmax(const float *x, float *out, int width)
{
    __shared__ float best, total;
    const float *row = x + (size_t)blockIdx.x * width;
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < width; i += 32)
        m = fmaxf(m, row[i]);
    for (int k = 16; k; k >>= 1)
        m = fmaxf(m, __shfl_xor_sync(~0u, m, k));
    if (!threadIdx.x)
        best = m;
    __syncwarp();
    for (int i = threadIdx.x; i < width; i += 32)
        s += expf(row[i] - best);
    for (int k = 16; k; k >>= 1)
        s += __shfl_xor_sync(~0u, s, k);
    if (!threadIdx.x)
        total = s;
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += 32)
        out[(size_t)blockIdx.x * width + i] = expf(row[i] - best) / total;
}

__global__ void warp_votes(const int *x, unsigned *out, int n)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    int v = t < n ? x[t] : 0;
    unsigned odd = __ballot_sync(~0u, v & 1), any = __any_sync(~0u, v > 90),
             all = __all_sync(~0u, v >= 0);
    unsigned same = __match_any_sync(~0u, v % 3);
    if (v & 1)
        odd ^= __activemask() << 1;
    int both = __syncthreads_or(v == 50) + __syncthreads_count(v < 10) * 2 +
               __syncthreads_and(v < 1000) * 4096;
    if (t < n)
        out[t] = odd ^ (any << 3) ^ (all << 5) ^ same ^ (unsigned)both;
}
}
