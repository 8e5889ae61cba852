/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of bench_nodes: one that takes a set time, and copies that do less than the library's. */
#include "tests/bench/nodes.h"

static __device__ __forceinline__ void copy16(unsigned long long to, unsigned long long from,
                                              unsigned n16)
{
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n16; i += gridDim.x * blockDim.x)
        ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}

static __device__ __forceinline__ void take(unsigned long long cycles)
{
    long long start = clock64();
    while ((unsigned long long)(clock64() - start) < cycles)
        ;
}

/* A kernel of the application's: writes its tensor, and takes @cycles. */
extern "C" __global__ void step(const __grid_constant__ struct node_step s)
{
    copy16(s.to, s.from, s.n16);
    take(s.cycles);
}

extern "C" __global__ void nothing()
{
}

/* A copy that publishes nothing to the host: its tensor, and a word on the device. */
extern "C" __global__ void copy_word(const __grid_constant__ struct node_step s)
{
    copy16(s.to, s.from, s.n16);
    if (!threadIdx.x && !blockIdx.x)
        *(unsigned *)s.word = 1;
}

/* Many tensors, a block each, from a table on the device. */
extern "C" __global__ void gather(const __grid_constant__ struct node_gather g)
{
    struct node_step s = ((const struct node_step *)g.table)[blockIdx.x];
    for (unsigned i = threadIdx.x; i < s.n16; i += blockDim.x)
        ((uint4 *)s.to)[i] = ((const uint4 *)s.from)[i];
    if (!threadIdx.x)
        *(unsigned *)s.word = 1;
}
