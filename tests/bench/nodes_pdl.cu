/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of bench_nodes that let the next one start early (programmatic dependent launch, compute capability 9.0). */
#include "tests/bench/nodes.h"

static __device__ __forceinline__ void copy_after(const struct node_step *s)
{
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < s->n16;
         i += gridDim.x * blockDim.x)
        ((uint4 *)s->to)[i] = ((const uint4 *)s->from)[i];
}

extern "C" __global__ void pdl_step(const __grid_constant__ struct node_step s)
{
    copy_after(&s);
    long long start = clock64();
    while ((unsigned long long)(clock64() - start) < s.cycles)
        ;
}

extern "C" __global__ void pdl_copy(const __grid_constant__ struct node_step s)
{
    copy_after(&s);
    if (!threadIdx.x && !blockIdx.x)
        *(unsigned *)s.word = 1;
}
