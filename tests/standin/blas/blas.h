/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas.h - what the doubles of libcublas and libcublasLt share
 *
 * NVIDIA's headers of these libraries are in no package that the tests fetch. What is needed of them stands here: numbers and
 * the order of arguments, from cublas_api.h, cublasLt.h and library_types.h of CUDA 13.0.
 */
#ifndef STANDIN_BLAS_H
#define STANDIN_BLAS_H

#include "gemm.h"

#include <cuda.h>

#define EXPORT __attribute__((visibility("default")))

enum blas_status {
    BLAS_SUCCESS = 0,
    BLAS_NOT_INITIALIZED = 1,
    BLAS_ALLOC_FAILED = 3,
    BLAS_INVALID_VALUE = 7,
    BLAS_EXECUTION_FAILED = 13,
    BLAS_NOT_SUPPORTED = 15
};
enum blas_type { BLAS_R_32F = 0, BLAS_R_64F = 1, BLAS_R_16F = 2, BLAS_R_16BF = 14 };
enum { BLAS_OP_N = 0, BLAS_OP_T = 1, BLAS_OP_C = 2 };

/* One product. The types of a and b, and of c, d and bias. */
struct blas_gemm {
    const void *a, *b, *c, *bias;
    void *d;
    enum blas_type in, out;
    int n_batch;
    CUstream stream;
    struct gemm_shape shape;
};

/**
 * blas_boot() - find the driver as NVIDIA's libraries do, and load the kernels, once a process
 * Any thread. Return: BLAS_SUCCESS or BLAS_NOT_INITIALIZED.
 */
enum blas_status blas_boot(void);

/**
 * blas_multiply() - launch one product
 * Return: BLAS_NOT_SUPPORTED for types that have no kernel.
 */
enum blas_status blas_multiply(const struct blas_gemm *gemm);

/** blas_set_scales() - take alpha and beta, of @type, from the host or leave them on the device */
void blas_set_scales(struct gemm_shape *shape, const void *alpha, const void *beta,
                     enum blas_type type, int on_device);

/**
 * blas_lacks() - say once on stderr that a function is not there, and add it to the file DMI_STANDIN_MISSING
 * Return: BLAS_NOT_SUPPORTED.
 */
int blas_lacks(const char *function);

#endif
