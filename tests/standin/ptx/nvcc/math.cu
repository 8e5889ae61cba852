/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's mathematical functions, each a kernel y[i] = f(x[i]) or f(x[i], y[i]), for test_ptx_math.c. Built by
 * meson where nvcc is: what comes out is NVIDIA's own code, hundreds of instruction forms at work.
 */
#define ONE(name)                                                                                  \
    extern "C" __global__ void name##_float(const float *x, float *y)                              \
    {                                                                                              \
        y[threadIdx.x] = name##f(x[threadIdx.x]);                                                  \
    }                                                                                              \
    extern "C" __global__ void name##_double(const double *x, double *y)                           \
    {                                                                                              \
        y[threadIdx.x] = name(x[threadIdx.x]);                                                     \
    }
#define TWO(name)                                                                                  \
    extern "C" __global__ void name##_float(const float *x, float *y)                              \
    {                                                                                              \
        y[threadIdx.x] = name##f(x[threadIdx.x], y[threadIdx.x]);                                  \
    }                                                                                              \
    extern "C" __global__ void name##_double(const double *x, double *y)                           \
    {                                                                                              \
        y[threadIdx.x] = name(x[threadIdx.x], y[threadIdx.x]);                                     \
    }
#include "math_functions.inc"
