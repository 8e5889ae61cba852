/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and its logarithm over the last dimension, three layouts of one computation: a thread a row. */
#include "softmax.cuh"

#define SOFTMAX(name, log_of, In, Out)                                                             \
    extern "C" __global__ void warp_##name(Out *to, const In *from, int n_rows, int step, int n,   \
                                           const bool *, int, bool)                                \
    {                                                                                              \
        for (i64 row = first_element(); row < n_rows; row += all_threads())                        \
            softmax_row<log_of>(to + row * step, from + row * step, n);                            \
    }                                                                                              \
    extern "C" __global__ void block_##name(Out *to, const In *from, i64 n)                        \
    {                                                                                              \
        if (!threadIdx.x)                                                                          \
            softmax_row<log_of>(to + blockIdx.x * n, from + blockIdx.x * n, n);                    \
    }                                                                                              \
    extern "C" __global__ void large_##name(Out *to, const In *from, int n)                        \
    {                                                                                              \
        if (!threadIdx.x)                                                                          \
            softmax_row<log_of>(to + blockIdx.x * (i64)n, from + blockIdx.x * (i64)n, n);          \
    }

SOFTMAX(softmax_f32_f32, false, f32, f32)
SOFTMAX(softmax_bf16_bf16, false, bf16, bf16)
SOFTMAX(softmax_bf16_f32, false, bf16, f32)
SOFTMAX(log_softmax_f32_f32, true, f32, f32)
SOFTMAX(log_softmax_bf16_bf16, true, bf16, bf16)
SOFTMAX(log_softmax_bf16_f32, true, bf16, f32)
