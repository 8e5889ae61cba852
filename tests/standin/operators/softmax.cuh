/* SPDX-License-Identifier: Apache-2.0 */
/*
 * softmax.cuh - one row of softmax, or of its logarithm; the sum is kept in double
 */
#ifndef OPERATORS_SOFTMAX_CUH
#define OPERATORS_SOFTMAX_CUH

#include "strides.cuh"
#include "types.cuh"

template <bool log_of, class In, class Out>
__device__ void softmax_row(Out *to, const In *from, i64 n)
{
    float largest = -INFINITY;
    for (i64 i = 0; i < n; i++)
        largest = fmaxf(largest, from[i]);
    double sum = 0;
    for (i64 i = 0; i < n; i++)
        sum += expf((float)from[i] - largest);
    float log_sum = log_of ? (float)log(sum) : 0, whole = (float)sum;
    for (i64 i = 0; i < n; i++) {
        float above = (float)from[i] - largest;
        to[i] = Out(log_of ? above - log_sum : expf(above) / whole);
    }
}

#endif
