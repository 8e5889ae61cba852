/* SPDX-License-Identifier: Apache-2.0 */
/* See kernels.cu: what compilers write otherwise for later devices, and functions that wait. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {

__global__ void bf16_native(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *out,
                            int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __hmax(__hfma(a[i], b[i], __hsub(b[i], a[i])), __hneg(__hadd(a[i], b[i])));
}

__global__ void bf162_native(const __nv_bfloat162 *a, const __nv_bfloat162 *b, __nv_bfloat162 *out,
                             int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __hfma2(a[i], b[i], __hmin2(a[i], b[i]));
}

__global__ void pack(const float2 *x, __nv_bfloat162 *b, __half2 *h, unsigned *sum, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = i < n ? i : 0;
    if (i < n) {
        b[i] = __float22bfloat162_rn(x[i]);
        h[i] = __float22half2_rn(x[i]);
    }
    v = __reduce_add_sync(~0u, v) ^ __reduce_max_sync(~0u, v);
    if (i < n)
        sum[i] = v;
}

/* every function that waits, kept from being inlined */
__device__ __noinline__ float warp_sum(float v)
{
    for (int s = 16; s; s >>= 1)
        v += __shfl_xor_sync(~0u, v, s);
    return v;
}
__device__ __noinline__ float whole_sum(float v, float *part)
{
    v = warp_sum(v);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
    __syncthreads();
    return warp_sum(v);
}
__global__ void called_sum(const float *x, float *out)
{
    __shared__ float part[32];
    float a = whole_sum(x[threadIdx.x], part), b = whole_sum(x[threadIdx.x] * 2, part);
    if (!threadIdx.x)
        out[0] = a + b;
}
}
