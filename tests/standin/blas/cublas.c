/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cublas.c - the functions of libcublas.so.13 that PyTorch calls for products of matrices and vectors
 *
 * Source: cublas_api.h of CUDA 13.0.
 */
#include "blas.h"

#include <stddef.h>
#include <stdlib.h>

struct handle {
    CUstream stream;
    int math, pointers; /* pointers: 0, scales lie on the host; 1, on the device */
};

EXPORT int cublasCreate_v2(struct handle **handle)
{
    if (blas_boot())
        return BLAS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return *handle ? BLAS_SUCCESS : BLAS_ALLOC_FAILED;
}

EXPORT int cublasDestroy_v2(struct handle *handle)
{
    free(handle);
    return BLAS_SUCCESS;
}

EXPORT int cublasSetStream_v2(struct handle *handle, CUstream stream)
{
    handle->stream = stream;
    return BLAS_SUCCESS;
}

/* Products here need no memory beside their operands. */
EXPORT int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t n_bytes)
{
    (void)workspace;
    (void)n_bytes;
    return handle ? BLAS_SUCCESS : BLAS_NOT_INITIALIZED;
}

EXPORT int cublasSetMathMode(struct handle *handle, int mode)
{
    handle->math = mode;
    return BLAS_SUCCESS;
}

EXPORT int cublasGetMathMode(struct handle *handle, int *mode)
{
    *mode = handle->math;
    return BLAS_SUCCESS;
}

EXPORT int cublasSetPointerMode_v2(struct handle *handle, int mode)
{
    handle->pointers = mode;
    return BLAS_SUCCESS;
}

EXPORT int cublasGetPointerMode_v2(struct handle *handle, int *mode)
{
    *mode = handle->pointers;
    return BLAS_SUCCESS;
}

/* ---- products of matrices ---- */

static int multiply(struct handle *handle, struct blas_gemm *gemm, const void *alpha,
                    const void *beta, const char *name)
{
    gemm->stream = handle->stream;
    gemm->d = (void *)gemm->c;
    gemm->shape.ldd = gemm->shape.ldc;
    gemm->shape.d_batch = gemm->shape.c_batch;
    blas_set_scales(&gemm->shape, alpha, beta, gemm->in == BLAS_R_64F ? BLAS_R_64F : BLAS_R_32F,
                    handle->pointers);
    int result = blas_multiply(gemm);
    return result == BLAS_NOT_SUPPORTED ? blas_lacks(name) : result;
}

EXPORT int cublasGemmStridedBatchedEx(struct handle *handle, int op_a, int op_b, int m, int n,
                                      int k, const void *alpha, const void *a, int a_type, int lda,
                                      long long a_batch, const void *b, int b_type, int ldb,
                                      long long b_batch, const void *beta, void *c, int c_type,
                                      int ldc, long long c_batch, int n_batch, int compute,
                                      int algorithm)
{
    struct blas_gemm gemm = { .a = a,
                              .b = b,
                              .c = c,
                              .in = (enum blas_type)a_type,
                              .out = (enum blas_type)c_type,
                              .n_batch = n_batch,
                              .shape = { .m = m,
                                         .n = n,
                                         .k = k,
                                         .lda = lda,
                                         .ldb = ldb,
                                         .ldc = ldc,
                                         .a_batch = a_batch,
                                         .b_batch = b_batch,
                                         .c_batch = c_batch,
                                         .a_turned = op_a != BLAS_OP_N,
                                         .b_turned = op_b != BLAS_OP_N } };
    (void)algorithm;
    /* 64 and 65 compute, and scale, in halves. */
    if (a_type != b_type || compute == 64 || compute == 65)
        return blas_lacks("cublasGemmStridedBatchedEx of these types");
    return multiply(handle, &gemm, alpha, beta, "cublasGemmStridedBatchedEx of these types");
}

EXPORT int cublasGemmEx(struct handle *handle, int op_a, int op_b, int m, int n, int k,
                        const void *alpha, const void *a, int a_type, int lda, const void *b,
                        int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                        int compute, int algorithm)
{
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, 0, b,
                                      b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute,
                                      algorithm);
}

#define OF_TYPE(letter, type, number)                                                              \
    EXPORT int cublas##letter##gemmStridedBatched(                                                 \
        struct handle *handle, int op_a, int op_b, int m, int n, int k, const type *alpha,         \
        const type *a, int lda, long long a_batch, const type *b, int ldb, long long b_batch,      \
        const type *beta, type *c, int ldc, long long c_batch, int n_batch)                        \
    {                                                                                              \
        return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, number, lda,      \
                                          a_batch, b, number, ldb, b_batch, beta, c, number, ldc,  \
                                          c_batch, n_batch, 0, 0);                                 \
    }                                                                                              \
    EXPORT int cublas##letter##gemm_v2(struct handle *handle, int op_a, int op_b, int m, int n,    \
                                       int k, const type *alpha, const type *a, int lda,           \
                                       const type *b, int ldb, const type *beta, type *c, int ldc) \
    {                                                                                              \
        return cublas##letter##gemmStridedBatched(handle, op_a, op_b, m, n, k, alpha, a, lda, 0,   \
                                                  b, ldb, 0, beta, c, ldc, 0, 1);                  \
    }                                                                                              \
    /* As a row: y' = x' op(a)', so that both steps are leading dimensions. */                     \
    EXPORT int cublas##letter##gemv_v2(struct handle *handle, int op, int m, int n,                \
                                       const type *alpha, const type *a, int lda, const type *x,   \
                                       int step_x, const type *beta, type *y, int step_y)          \
    {                                                                                              \
        int turned = op != BLAS_OP_N;                                                              \
        if (step_x <= 0 || step_y <= 0)                                                            \
            return blas_lacks("cublas" #letter "gemv_v2 with steps below 1");                      \
        return cublas##letter##gemm_v2(handle, BLAS_OP_N, turned ? BLAS_OP_N : BLAS_OP_T, 1,       \
                                       turned ? n : m, turned ? m : n, alpha, x, step_x, a, lda,   \
                                       beta, y, step_y);                                           \
    }                                                                                              \
    EXPORT int cublas##letter##dot_v2(struct handle *handle, int n, const type *x, int step_x,     \
                                      const type *y, int step_y, type *result)                     \
    {                                                                                              \
        struct blas_gemm gemm = { .a = x,                                                          \
                                  .b = y,                                                          \
                                  .d = result,                                                     \
                                  .in = number,                                                    \
                                  .out = number,                                                   \
                                  .n_batch = 1,                                                    \
                                  .stream = handle->stream,                                        \
                                  .shape = { .m = 1,                                               \
                                             .n = 1,                                               \
                                             .k = n,                                               \
                                             .lda = step_x,                                        \
                                             .ldb = step_y,                                        \
                                             .ldc = 1,                                             \
                                             .ldd = 1,                                             \
                                             .b_turned = 1,                                        \
                                             .alpha = 1 } };                                       \
        if (!handle->pointers || step_x <= 0 || step_y <= 0)                                       \
            return blas_lacks("cublas" #letter                                                     \
                              "dot_v2 with a result on the host, or steps below 1");               \
        return blas_multiply(&gemm);                                                               \
    }

OF_TYPE(S, float, BLAS_R_32F)
OF_TYPE(D, double, BLAS_R_64F)

/* ---- what is not here ---- */

#define LACKS(name)                                                                                \
    EXPORT int name(void)                                                                          \
    {                                                                                              \
        return blas_lacks(#name);                                                                  \
    }
#include "cublas_lacks.def"
