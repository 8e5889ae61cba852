/* SPDX-License-Identifier: Apache-2.0 */
/* Normalization of rows in one kernel, layer_norm() and rms_norm(), and the two kernels of layer_norm() for rows that are not aligned. A block is a row. */
#include "strides.cuh"
#include "types.cuh"

/* A row has a mean, 0 where squares alone are averaged, and a factor that makes its deviation 1. */
struct moments {
    float mean, factor;

    template <class T>
    __device__ moments(const T *x, i64 n, float epsilon, bool squares_alone) : mean(0)
    {
        double sum = 0, squares = 0;
        for (i64 i = 0; i < n && !squares_alone; i++)
            sum += (float)x[i];
        mean = (float)(sum / n);
        for (i64 i = 0; i < n; i++)
            squares += ((double)(float)x[i] - sum / n) * ((double)(float)x[i] - sum / n);
        factor = (float)(1 / sqrt(squares / n + epsilon));
    }
};

template <class T>
__device__ void normalize(i64 n, const T *x, float mean, float factor, const T *weights,
                          const T *biases, T *to)
{
    for (i64 i = 0; i < n; i++)
        to[i] = T(((float)x[i] - mean) * factor * (weights ? (float)weights[i] : 1) +
                  (biases ? (float)biases[i] : 0));
}

#define NORM(T, kind, squares_alone)                                                               \
    extern "C" __global__ void kind##_norm_##T(int n, float epsilon, const T *x, const T *weights, \
                                               const T *biases, float *mean, float *factor, T *to) \
    {                                                                                              \
        if (threadIdx.x || threadIdx.y)                                                            \
            return;                                                                                \
        const T *row = x + (i64)blockIdx.x * n;                                                    \
        moments m(row, n, epsilon, squares_alone);                                                 \
        if (!squares_alone)                                                                        \
            mean[blockIdx.x] = m.mean;                                                             \
        factor[blockIdx.x] = m.factor;                                                             \
        normalize(n, row, m.mean, m.factor, weights, biases, to + (i64)blockIdx.x * n);            \
    }                                                                                              \
    extern "C" __global__ void kind##_moments_##T(i64 n, float epsilon, const T *x, float *mean,   \
                                                  float *factor)                                   \
    {                                                                                              \
        if (threadIdx.x || threadIdx.y)                                                            \
            return;                                                                                \
        moments m(x + (i64)blockIdx.x * n, n, epsilon, squares_alone);                             \
        if (!squares_alone)                                                                        \
            mean[blockIdx.x] = m.mean;                                                             \
        factor[blockIdx.x] = m.factor;                                                             \
    }                                                                                              \
    extern "C" __global__ void kind##_of_moments_##T(i64 n, const T *x, const float *mean,         \
                                                     const float *factor, const T *weights,        \
                                                     const T *biases, T *to)                       \
    {                                                                                              \
        if (threadIdx.x || threadIdx.y)                                                            \
            return;                                                                                \
        i64 row = (i64)blockIdx.x * n;                                                             \
        normalize(n, x + row, squares_alone ? 0 : mean[blockIdx.x], factor[blockIdx.x], weights,   \
                  squares_alone ? nullptr : biases, to + row);                                     \
    }
#define NORMS(T) NORM(T, layer, false) NORM(T, rms, true)
NORMS(f32)
NORMS(bf16)
NORMS(f16)
