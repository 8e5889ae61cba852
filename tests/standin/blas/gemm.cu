/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.cu - d = alpha op(a) op(b) + beta c + bias, by columns, a batch in grid.z; one thread an element
 *
 * Sums go from the first product to the last in what is computed in, so a result depends on nothing but its row and column.
 */
#include "gemm.h"
#include "../operators/types.cuh"

template <class In, class Out, class M>
__device__ void multiply(const In *a, const In *b, const Out *c, Out *d, const Out *bias,
                         const struct gemm_shape &s)
{
    i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x, row = at % s.m, column = at / s.m;
    if (column >= s.n)
        return;
    M alpha = s.scales_on_device ? *(const M *)s.alpha_at : (M)s.alpha,
      beta = s.scales_on_device ? *(const M *)s.beta_at : (M)s.beta;
    a += blockIdx.z * s.a_batch + (s.a_turned ? row * s.lda : row);
    b += blockIdx.z * s.b_batch + (s.b_turned ? column : column * s.ldb);
    i64 step_a = s.a_turned ? 1 : s.lda, step_b = s.b_turned ? s.ldb : 1;
    M sum = 0;
    for (i64 i = 0; i < s.k; i++)
        sum += (M)a[i * step_a] * (M)b[i * step_b];
    M result = alpha * sum;
    if (beta != M(0)) /* else c may hold anything */
        result += beta * (M)c[blockIdx.z * s.c_batch + row + column * s.ldc];
    if (bias)
        result += (M)bias[row];
    if (s.relu && !(result > M(0)))
        result = result != result ? result : M(0);
    d[blockIdx.z * s.d_batch + row + column * s.ldd] = Out(result);
}

#define GEMM(name, In, Out, M)                                                                     \
    extern "C" __global__ void standin_gemm_##name(const In *a, const In *b, const Out *c, Out *d, \
                                                   const Out *bias, gemm_shape shape)              \
    {                                                                                              \
        multiply<In, Out, M>(a, b, c, d, bias, shape);                                             \
    }

GEMM(f32, f32, f32, f32)
GEMM(f64, f64, f64, f64)
GEMM(bf16, bf16, bf16, f32)
GEMM(f16, f16, f16, f32)
GEMM(bf16_f32, bf16, f32, f32)
GEMM(f16_f32, f16, f32, f32)
