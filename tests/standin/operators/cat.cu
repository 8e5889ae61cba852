/* SPDX-License-Identifier: Apache-2.0 */
/* cat(): blockIdx.y is the input; elements are moved as they are. */
#include "cat.cuh"

#define CAT(size, T, dims)                                                                         \
    extern "C" __global__ void cat_##size##_##dims##_64(T *to, cat_inputs<64, 64> inputs,          \
                                                        cat_shape shape, int dim, unsigned step)   \
    {                                                                                              \
        run_cat<T, dims>(to, inputs, shape, dim, step);                                            \
    }                                                                                              \
    extern "C" __global__ void cat_##size##_##dims##_128(T *to, cat_inputs<128, 1> inputs,         \
                                                         cat_shape shape, int dim, unsigned step)  \
    {                                                                                              \
        run_cat<T, dims>(to, inputs, shape, dim, step);                                            \
    }
#define CAT_WIDE(size, T, dims)                                                                    \
    extern "C" __global__ void cat_wide_##size##_##dims##_64(                                      \
        u128 *to, cat_inputs<64, 64> inputs, cat_shape shape, int dim, unsigned rest)              \
    {                                                                                              \
        run_cat_wide<T, dims>(to, inputs, shape, dim, rest);                                       \
    }                                                                                              \
    extern "C" __global__ void cat_wide_##size##_##dims##_128(                                     \
        u128 *to, cat_inputs<128, 1> inputs, cat_shape shape, int dim, unsigned rest)              \
    {                                                                                              \
        run_cat_wide<T, dims>(to, inputs, shape, dim, rest);                                       \
    }
#define CAT_DIMS(size, T)                                                                          \
    CAT(size, T, 1)                                                                                \
    CAT(size, T, 2)                                                                                \
    CAT(size, T, 3)                                                                                \
    CAT(size, T, 4)                                                                                \
    CAT_WIDE(size, T, 1) CAT_WIDE(size, T, 2) CAT_WIDE(size, T, 3) CAT_WIDE(size, T, 4)
CAT_DIMS(1, u8)
CAT_DIMS(2, i16)
CAT_DIMS(4, i32)
CAT_DIMS(8, i64)
