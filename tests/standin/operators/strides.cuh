/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strides.cuh - where an element lies in each of several tensors
 */
#ifndef OPERATORS_STRIDES_CUH
#define OPERATORS_STRIDES_CUH

/* A size and the two numbers by which others divide by it without a division. */
struct divisor {
    unsigned size, factor, shift;
};

/* The layout of at::cuda's OffsetCalculator: up to 25 dimensions, the fastest first; strides in bytes. */
template <int n> struct strides {
    int n_dims;
    divisor sizes[25];
    unsigned strides_of[25][n];

    __device__ void get(unsigned element, unsigned offsets[n]) const
    {
        for (int tensor = 0; tensor < n; tensor++)
            offsets[tensor] = 0;
        for (int dim = 0; dim < n_dims; dim++) {
            unsigned at = element % sizes[dim].size;
            element /= sizes[dim].size;
            for (int tensor = 0; tensor < n; tensor++)
                offsets[tensor] += at * strides_of[dim][tensor];
        }
    }
};

__device__ inline long long first_element()
{
    unsigned long long block =
        blockIdx.x +
        (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return block * (blockDim.x * blockDim.y * blockDim.z) + thread;
}

__device__ inline long long all_threads()
{
    return (long long)gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z;
}

#endif
