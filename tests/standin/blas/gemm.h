/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.h - what host and device say of a product of matrices
 */
#ifndef STANDIN_BLAS_GEMM_H
#define STANDIN_BLAS_GEMM_H

/* Sizes and leading dimensions in elements. "Turned" is transposed. */
struct gemm_shape {
    long long m, n, k, lda, ldb, ldc, ldd, a_batch, b_batch, c_batch, d_batch;
    double alpha, beta;
    unsigned long long alpha_at, beta_at; /* in device memory, with scales_on_device */
    int a_turned, b_turned, relu, scales_on_device;
};

#endif
