/* SPDX-License-Identifier: Apache-2.0 */
/* Elements by their place: ranges, and triangles of matrices. */
#include "ranges.cuh"

#define ARANGE(T, M)                                                                               \
    extern "C" __global__ void arange_##T(int n, arithmetic<M> f, T *to)                           \
    {                                                                                              \
        run_arange(n, f, to);                                                                      \
    }
#define ARANGE_LONG(T, M)                                                                          \
    extern "C" __global__ void arange_long_##T(i64 n, arithmetic<M> f, T *to)                      \
    {                                                                                              \
        run_arange(n, f, to);                                                                      \
    }
ARANGE(i32, i64)
ARANGE(i64, i64)
ARANGE(f32, f32)
ARANGE(f64, f64)
ARANGE(bf16, f32)
ARANGE_LONG(i32, i64)
ARANGE_LONG(i64, i64)
ARANGE_LONG(f32, f32)
ARANGE_LONG(f64, f64)

#define TRIANGLE_OF(name, upper, T, index, Index)                                                  \
    extern "C" __global__ void name##_##T##_##index(                                               \
        tensor_info<T, Index> to, tensor_info<const T, Index> from, i64 k, i64, Index)             \
    {                                                                                              \
        run_triangle<upper>(to, from, k);                                                          \
    }
#define TRIANGLE(T)                                                                                \
    TRIANGLE_OF(triu, true, T, int, int)                                                           \
    TRIANGLE_OF(triu, true, T, long, i64)                                                          \
    TRIANGLE_OF(tril, false, T, int, int)                                                          \
    TRIANGLE_OF(tril, false, T, long, i64)
TRIANGLE(f32)
TRIANGLE(bf16)
TRIANGLE(bool)
TRIANGLE(i64)
TRIANGLE(i32)
